#pragma once

#include <atomic>
#include <cstdint>
#include <optional>

#include "agent/pipeline/slot_table.h"
#include "base/clock.h"

namespace holdfast::agent {

/// The slots of one rank, as the peer tier uses them: the version whose parity is built, and the
/// bytes that peers read while a version is saved and afterwards. Thread-safe.
class PeerSlots {
 public:
  /// `table` outlives the object.
  explicit PeerSlots(SlotTable& table) : table_(table) {}

  /// Returns the shard whose parity is to be built now. Of the versions saved here, it is the first
  /// one at or after the coordinator's target whose step is divisible by `peer_every_steps`, so
  /// that all ranks of the job choose the same one. Its slot is kept until the target moves past
  /// the version or the version is aborted.
  std::optional<ShardIdentity> NextForPeers();
  /// Waits until the version is being saved or is sealed here, and pins its slot: the caller must
  /// Unpin() it. NotFound: memory does not have the version and never will. Cancelled: `cancelled`
  /// was set (see Wake).
  Result<uint32_t> Follow(VersionId version, const std::atomic<bool>& cancelled,
                          Clock::TimePoint deadline);
  /// Waits until bytes [0, until) of a followed slot are checksummed, or the slot is sealed.
  /// Returns the number of checksummed bytes. Aborted: the save was given up.
  Result<uint64_t> AwaitBytes(uint32_t slot, uint64_t until, const std::atomic<bool>& cancelled,
                              Clock::TimePoint deadline);
  /// Waits until a followed slot is sealed. Errors as AwaitBytes.
  Result<ShardSeal> AwaitSeal(uint32_t slot, const std::atomic<bool>& cancelled,
                              Clock::TimePoint deadline);
  /// Makes every wait check its `cancelled` again.
  void Wake();

 private:
  Status CheckWait(const std::atomic<bool>& cancelled, Clock::TimePoint deadline)
      HOLDFAST_REQUIRES(table_.mutex);

  SlotTable& table_;
};

}  // namespace holdfast::agent
