#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "agent/pipeline/slot_table.h"
#include "base/clock.h"

namespace holdfast::agent {

/// The slots of one rank, as its persister uses them: which versions go to disk, and how many of
/// their bytes are checksummed. Thread-safe.
class DiskSlots {
 public:
  /// `table` outlives the object.
  explicit DiskSlots(SlotTable& table) : table_(table) {}
  Segment& segment() { return table_.segment; }

  /// Waits for the next version to write. Returns nothing when stopping.
  std::optional<SaveJob> TakeDisk();
  struct DiskFollow {
    uint64_t checksummed = 0;
    bool sealed = false;
    bool given_up = false;
  };
  /// Waits until more than `seen` bytes are checksummed, or the save is sealed or given up.
  DiskFollow AwaitChecksummed(uint32_t slot, uint64_t seen);
  /// Ends the persister's use of the slot. `given_up`: the save or the version was given up, and
  /// nothing was written.
  void FinishDisk(const SaveJob& job, bool given_up);
  /// What a departure of the agent waits for.
  struct Progress {
    std::optional<VersionId> saving;  // newest that a trainer copies, or that is not sealed yet
    std::optional<VersionId> sealed;  // newest in memory of the job's current incarnation
    std::optional<VersionId> memory;  // newest committed in memory
    std::optional<VersionId> disk;    // newest committed on disk
    std::optional<VersionId> shared;  // newest committed at tier remote
    std::optional<VersionId> flush;   // all ranks write it
    bool writing = false;  // the version that a flush writes is being written, or is next
  };
  Progress progress() const;
  /// From now on the persister also writes the version committed at memory, regardless of the
  /// target.
  void StartFlush();
  /// Waits until the flush has ended: the version is on disk, or its write failed. Returns false
  /// when the deadline passed first.
  bool AwaitFlushed(Clock::TimePoint deadline);

 private:
  /// The version that is written regardless of the target: the one that the coordinator names for
  /// all ranks, else, after StartFlush(), the newest one committed at memory.
  std::optional<VersionId> VersionToFlush() const HOLDFAST_REQUIRES(table_.mutex);
  std::optional<uint32_t> ToFlush() const HOLDFAST_REQUIRES(table_.mutex);
  bool IsFlushed() const HOLDFAST_REQUIRES(table_.mutex);
  std::vector<DiskCandidate> DiskCandidates() const HOLDFAST_REQUIRES(table_.mutex);
  std::optional<uint32_t> OtherLifeForDisk() const HOLDFAST_REQUIRES(table_.mutex);

  SlotTable& table_;
  bool flushing_ HOLDFAST_GUARDED_BY(table_.mutex) = false;
};

}  // namespace holdfast::agent
