#pragma once

#include <compare>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "base/status.h"

namespace holdfast {

/// A number that compares only with numbers of the same tag.
template <typename Tag, typename Number>
struct StrongNumber {
  Number value = 0;
  constexpr auto operator<=>(const StrongNumber&) const = default;
};

using Rank = StrongNumber<struct RankTag, uint32_t>;
/// Counts the starts of a job, from 1. Messages of an older incarnation are refused.
using Incarnation = StrongNumber<struct IncarnationTag, uint64_t>;
using Step = StrongNumber<struct StepTag, uint64_t>;
/// Counts the starts of the coordinator, from 1.
using Epoch = StrongNumber<struct EpochTag, uint64_t>;

/// One checkpoint of one job. A newer version has a higher incarnation, or the same and a higher
/// step.
struct VersionId {
  Incarnation incarnation;
  Step step;
  constexpr auto operator<=>(const VersionId&) const = default;
};

/// Returns "3-120" for incarnation 3, step 120: the form in paths, in the CLI and in logs.
std::string ToString(VersionId version);
/// Parses "3-120"; refuses anything else, including leading zeros and signs.
Result<VersionId> ParseVersionId(std::string_view text);

/// The kind of storage that holds a version. The numbers are stable (wire and metadata).
enum class Tier : uint8_t { kMemory = 1, kPeer = 2, kDisk = 3, kRemote = 4 };
std::string_view ToString(Tier tier);
Result<Tier> ParseTier(std::string_view text);
/// Returns the bit of a tier in a mask of tiers.
constexpr uint32_t TierBit(Tier tier) { return 1U << static_cast<uint32_t>(tier); }

/// A node's parity shard has no trainer. Its rank has kParityRankBit set and belongs to no process.
/// The node numbers are those of the job's parity plan.
inline constexpr uint32_t kParityRankBit = 1U << 31;
constexpr Rank ParityRank(uint32_t node) { return Rank{kParityRankBit | node}; }
constexpr bool IsParity(Rank rank) { return (rank.value & kParityRankBit) != 0; }
constexpr uint32_t ParityNode(Rank rank) { return rank.value & ~kParityRankBit; }
/// Returns "rank-7", or "parity-2" for the parity of node 2: the form in paths and in logs.
std::string ShardName(Rank rank);

/// Identifies a shard: what one rank saved in one version.
struct ShardKey {
  std::string job;
  VersionId version;
  Rank rank;
  auto operator<=>(const ShardKey&) const = default;
};
/// Returns "job/3-120/rank-7".
std::string ToString(const ShardKey& key);

/// A shard's key with the size of the world it belongs to. Every replica of the shard carries it.
struct ShardIdentity {
  std::string job;
  VersionId version;
  Rank rank;
  uint32_t world = 0;
  bool operator==(const ShardIdentity&) const = default;
  ShardKey key() const { return {job, version, rank}; }
};

/// The largest world accepted anywhere. It bounds allocations made from received numbers.
inline constexpr uint32_t kWorldMax = 1U << 20;
/// The largest slot accepted anywhere, in bytes. Slots are multiples of kSlotBytesAlign.
inline constexpr uint64_t kSlotBytesMax = uint64_t{1} << 42;
inline constexpr uint64_t kSlotBytesAlign = 4096;

/// Returns true for a trainer's rank below `world`, and for every node's parity.
constexpr bool RankInWorld(Rank rank, uint32_t world) {
  return IsParity(rank) ? ParityNode(rank) < kWorldMax : rank.value < world;
}

/// Checks the name of a job, node, cluster or extra state: `[A-Za-z0-9._-]{1,128}`, not "." or
/// "..". Names become path components, so every entry point checks them. `what` starts the message.
Status ValidateName(std::string_view what, std::string_view name);

}  // namespace holdfast

template <typename Tag, typename Number>
struct std::hash<holdfast::StrongNumber<Tag, Number>> {
  size_t operator()(const holdfast::StrongNumber<Tag, Number>& n) const noexcept {
    return std::hash<Number>{}(n.value);
  }
};
