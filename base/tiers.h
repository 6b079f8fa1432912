#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include "base/ids.h"

// The table of tiers: what the coordinator's rules, the agents, the messages and the displays know
// about each of them. A new tier is a row here and a TierStore (storage/volume/tier_store.h).

namespace holdfast {

/// What makes a version count at a tier.
enum class TierReporter : uint8_t {
  kNode,    // each node reports the replicas that it has; they are lost with the node
  kParity,  // no replica reports: the shards and parity at another tier make the version count
  kShared,  // any node reports, and any node can read the replica; no node's loss removes it
};

/// What brings a version to a tier.
enum class TierPace : uint8_t {
  kEachSave,  // every save ends there
  kTarget,    // the writers take the first version at or after a target step (tier_target.h)
  kCopy,      // the coordinator orders copies of versions that are committed on disk (copies.h)
};

struct TierTraits {
  Tier tier = Tier::kMemory;
  std::string_view name;  // in messages, metrics and the CLI
  /// How many kinds of failure a version survives there. A larger rank survives what a smaller one
  /// does, and more: 0 the end of a trainer, 1 the loss of nodes, 2 a power cut, 3 the loss of all
  /// nodes.
  int durability = 0;
  TierReporter reporter = TierReporter::kNode;
  TierPace pace = TierPace::kEachSave;
  /// The coordinator's section with the tier's retention; empty: retention follows from other
  /// tiers.
  std::string_view retention;
};

inline constexpr std::array kTierTable = {
    TierTraits{Tier::kMemory, "memory", 0, TierReporter::kNode, TierPace::kEachSave, ""},
    TierTraits{Tier::kPeer, "peer", 1, TierReporter::kParity, TierPace::kTarget, ""},
    TierTraits{Tier::kDisk, "disk", 2, TierReporter::kNode, TierPace::kTarget, "retention"},
    TierTraits{Tier::kRemote, "remote", 3, TierReporter::kShared, TierPace::kCopy, "remote"},
};

/// The numbers of tiers are consecutive from 1, so that they index arrays.
inline constexpr size_t kTierNumbers = kTierTable.size() + 1;

constexpr const TierTraits& TraitsOf(Tier tier) {
  return kTierTable[static_cast<size_t>(tier) - 1];
}
constexpr bool IsShared(Tier tier) { return TraitsOf(tier).reporter == TierReporter::kShared; }
/// Whether replicas at the tier are files that retention removes.
constexpr bool IsStored(Tier tier) { return !TraitsOf(tier).retention.empty(); }
/// Whether agents report replicas at the tier.
constexpr bool HasReplicas(Tier tier) { return TraitsOf(tier).reporter != TierReporter::kParity; }
constexpr bool IsTierNumber(uint32_t number) { return number >= 1 && number < kTierNumbers; }

/// A mask of TierBit with the tiers that `matches` accepts.
template <typename Matches>
constexpr uint32_t TierMask(const Matches& matches) {
  uint32_t mask = 0;
  for (const TierTraits& traits : kTierTable) {
    if (matches(traits.tier)) mask |= TierBit(traits.tier);
  }
  return mask;
}
inline constexpr uint32_t kStoredTiers = TierMask(IsStored);
inline constexpr uint32_t kSharedTiers = TierMask(IsShared);

/// One value for each tier.
template <typename Value>
class PerTier {
 public:
  constexpr Value& operator[](Tier tier) { return values_[static_cast<size_t>(tier)]; }
  constexpr const Value& operator[](Tier tier) const { return values_[static_cast<size_t>(tier)]; }
  bool operator==(const PerTier&) const = default;

 private:
  std::array<Value, kTierNumbers> values_{};
};

namespace tiers_internal {
constexpr bool IsOrdered() {
  for (size_t i = 0; i < kTierTable.size(); ++i) {
    if (static_cast<size_t>(kTierTable[i].tier) != i + 1) return false;
    if (i > 0 && kTierTable[i].durability <= kTierTable[i - 1].durability) return false;
  }
  return true;
}
}  // namespace tiers_internal
static_assert(tiers_internal::IsOrdered(), "rows are in the order of their numbers and durability");

}  // namespace holdfast
