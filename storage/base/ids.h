#pragma once

#include <compare>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "storage/base/status.h"

namespace holdfast {

/// A number that only compares with its own kind.
template <typename Tag, typename Number>
struct StrongNumber {
  Number value = 0;
  constexpr auto operator<=>(const StrongNumber&) const = default;
};

using Rank = StrongNumber<struct RankTag, uint32_t>;
/// Counts the starts of a job, from 1. Messages of an older incarnation are refused.
using Incarnation = StrongNumber<struct IncarnationTag, uint64_t>;
using Step = StrongNumber<struct StepTag, uint64_t>;
/// Counts coordinator leaderships, from 1.
using Epoch = StrongNumber<struct EpochTag, uint64_t>;

/// One checkpoint of one job. Newest = highest incarnation, then step.
struct VersionId {
  Incarnation incarnation;
  Step step;
  constexpr auto operator<=>(const VersionId&) const = default;
};

/// "3-120": incarnation 3, step 120. The form in paths, in the CLI and in logs.
std::string ToString(VersionId version);
/// Parses "3-120"; refuses anything else, including leading zeros and signs.
Result<VersionId> ParseVersionId(std::string_view text);

/// Where a version is safe. The numbers are stable (wire and metadata).
enum class Tier : uint8_t { kMemory = 1, kPeer = 2, kDisk = 3, kRemote = 4 };
std::string_view ToString(Tier tier);
Result<Tier> ParseTier(std::string_view text);
/// Bit of a tier in a mask of tiers.
constexpr uint32_t TierBit(Tier tier) { return 1U << static_cast<uint32_t>(tier); }

/// A node's parity is a shard without a trainer: its rank is that of no process. Node numbers are
/// those of the job's parity plan.
inline constexpr uint32_t kParityRankBit = 1U << 31;
constexpr Rank ParityRank(uint32_t node) { return Rank{kParityRankBit | node}; }
constexpr bool IsParity(Rank rank) { return (rank.value & kParityRankBit) != 0; }
constexpr uint32_t ParityNode(Rank rank) { return rank.value & ~kParityRankBit; }
/// "rank-7", or "parity-2" for the parity of node 2: the form in paths and in logs.
std::string ShardName(Rank rank);

/// What one rank saved in one version.
struct ShardKey {
  std::string job;
  VersionId version;
  Rank rank;
  auto operator<=>(const ShardKey&) const = default;
};
/// "job/3-120/rank-7"
std::string ToString(const ShardKey& key);

/// A shard's key with the size of the world it belongs to: what every copy of it carries.
struct ShardIdentity {
  std::string job;
  VersionId version;
  Rank rank;
  uint32_t world = 0;
  bool operator==(const ShardIdentity&) const = default;
  ShardKey key() const { return {job, version, rank}; }
};

/// Largest world accepted anywhere: bounds allocations made from received numbers.
inline constexpr uint32_t kWorldMax = 1U << 20;

/// True for a trainer's rank below `world`, and for every node's parity.
constexpr bool RankInWorld(Rank rank, uint32_t world) {
  return IsParity(rank) ? ParityNode(rank) < kWorldMax : rank.value < world;
}

/// Names of jobs, nodes, clusters and extra state: `[A-Za-z0-9._-]{1,128}`, not "." or "..". They
/// become path components, so this is checked wherever one arrives. `what` starts the message.
Status ValidateName(std::string_view what, std::string_view name);

}  // namespace holdfast

template <typename Tag, typename Number>
struct std::hash<holdfast::StrongNumber<Tag, Number>> {
  size_t operator()(const holdfast::StrongNumber<Tag, Number>& n) const noexcept {
    return std::hash<Number>{}(n.value);
  }
};
