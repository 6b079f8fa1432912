#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "agent/pipeline/slot_table.h"

namespace holdfast::agent {

/// The sealed slots of one rank, as readers, checks and repairs use them: a pinned slot is not
/// freed. Thread-safe.
class SlotPins {
 public:
  /// `table` outlives the object.
  explicit SlotPins(SlotTable& table) : table_(table) {}

  /// The sealed slots that Pin() accepts. kIntact: only verified and intact ones. kIncludeDamaged:
  /// also damaged ones. kAny: any, including those that are not verified yet.
  enum class Find : uint8_t { kIntact, kIncludeDamaged, kAny };
  /// Keeps the sealed slot of `version` from being freed until Unpin(). NotFound: memory has no
  /// slot of the version that `find` accepts.
  Result<uint32_t> Pin(VersionId version, Find find = Find::kIntact);
  void Unpin(uint32_t slot);
  /// Returns whether the pinned slot will stay after Unpin(), because nothing has discarded it.
  bool StaysAfterUnpin(uint32_t slot);
  /// Records that all chunks of the pinned slot are good, possibly after a repair. `on_disk`: the
  /// disk has the same image.
  void Verified(uint32_t slot, bool on_disk);
  /// Records that the sealed slot has bad chunks. It is not offered as an intact replica until
  /// Verified(); peers may read its good chunks. NotFound: memory does not have the version, or the
  /// damage was known already.
  Status MarkDamaged(VersionId version);
  /// Stops offering a sealed slot and frees it as soon as it has no users. NotFound: memory does
  /// not have the version.
  Status Discard(VersionId version);

 private:
  SlotTable& table_;
};

struct SlotStatus {
  SlotInfo info;
  uint64_t image_bytes = 0;
  uint64_t checksummed = 0;
  bool verified = false;
  std::string_view disk;
};

/// The current content of one rank's slots, for overviews. Thread-safe.
class SlotView {
 public:
  /// `table` outlives the object.
  explicit SlotView(SlotTable& table) : table_(table) {}

  /// Returns whether memory has the version, damaged and unverified replicas included.
  bool Has(VersionId version);
  /// Returns the intact sealed versions that the policy does not allow to be freed.
  std::vector<VersionId> Kept();
  /// Returns the sealed versions, newest first, with whether each is verified.
  std::vector<std::pair<VersionId, bool>> SealedVersions();
  /// Returns the incarnation of a save that is not sealed yet, or of a slot that was not verified
  /// yet after a restart of the agent.
  std::optional<Incarnation> Unsealed();
  std::vector<SlotStatus> Snapshot();

 private:
  SlotTable& table_;
};

}  // namespace holdfast::agent
