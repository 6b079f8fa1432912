#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "agent/api/segment_layout.h"
#include "base/clock.h"
#include "base/ids.h"
#include "base/invariant.h"
#include "base/life.h"
#include "base/mutex.h"
#include "storage/format/seal.h"

// The memory that outlives its users. A segment is one rank's memory: a sealed memfd that trainer
// and agent map (control block and slots), and a second memfd, the ledger, that only the agent maps
// and that records the content of each slot. The keeper process holds both, so a restarted agent
// finds them again. The arena is the node's byte budget over all segments.

namespace holdfast::agent {

enum class SlotState : uint32_t { kFree = 0, kLeased = 1, kSealed = 2 };

struct SlotRecord {
  SlotState state = SlotState::kFree;
  VersionId version;
  uint32_t world = 0;
  uint64_t image_bytes = 0;
  LifeId life = {};  // of a sealed slot
};

/// The rank and user that a segment belongs to.
struct SegmentOwner {
  std::string job;
  Rank rank;
  uid_t uid = 0;
  bool operator==(const SegmentOwner&) const = default;
};

/// One rank's slots. Lease → (copy) → Seal → Free, or Lease → Abandon. Every change is in the
/// ledger before the call returns. If the agent is killed at any instant, a slot is either in its
/// old or in its new state. Thread-safe.
class Segment {
 public:
  virtual ~Segment() = default;

  virtual uint64_t id() const = 0;
  virtual const SegmentOwner& owner() const = 0;
  virtual uint32_t slot_count() const = 0;
  virtual uint64_t slot_bytes() const = 0;
  /// Returns the monitor of the rank's memory and pipeline. Once it is violated, the agent neither
  /// reports nor serves anything from this memory. The memory stays with the keeper.
  virtual InvariantMonitor& invariants() const = 0;
  /// Returns the descriptor of the complete segment, which is passed to the trainer and registered
  /// for I/O.
  virtual int fd() const = 0;
  virtual std::span<std::byte> memory() = 0;

  virtual std::span<std::byte> slot(uint32_t index) = 0;
  virtual SlotProgress& progress(uint32_t index) = 0;
  /// Returns the control block, which the trainer shares in addition to the slots.
  virtual SegmentControl& control() = 0;
  virtual SlotRecord record(uint32_t index) const = 0;
  /// Returns the seal of a sealed slot; FailedPrecondition otherwise.
  virtual Result<ShardSeal> seal(uint32_t index) const = 0;

  /// Leases a free slot for `version`, sets its progress to 0 and returns its index.
  /// ResourceExhausted: no slot is free. InvalidArgument: image_bytes exceeds slot_bytes (the
  /// message has both numbers).
  virtual Result<uint32_t> Lease(VersionId version, uint32_t world, uint64_t image_bytes) = 0;
  /// Changes a leased slot to free.
  virtual Status Abandon(uint32_t index) = 0;
  /// Changes a leased slot to sealed: from now on others may use it. `seal` must match the lease.
  virtual Status Seal(uint32_t index, const ShardSeal& seal) = 0;
  /// Changes a sealed slot to free.
  virtual Status Free(uint32_t index) = 0;
};

struct ArenaOptions {
  uint64_t budget_bytes = 0;  // over all segments, control blocks included
  uint64_t user_bytes = 0;    // the same for the segments of a user other than root; 0: no limit
  uint64_t job_bytes = 0;     // the same for the segments of a job; 0: no limit
  std::set<std::string> priority_jobs = {};
  uint64_t priority_bytes = 0;  // part of the budget that only priority_jobs get
  std::string run_dir;          // the folder of keeper.sock
  bool start_keeper = true;     // false: another process starts the keeper
  std::string keeper_binary;    // started when no keeper answers; empty: next to this executable
};

struct ArenaUsage {
  uint64_t budget_bytes = 0;
  uint64_t reserved_bytes = 0;
  uint32_t segments = 0;
  std::map<std::string, uint64_t> of_jobs = {};  // reserved_bytes by job
};

/// The limit that a new segment would exceed: that of the job, of the user, of all jobs without
/// priority, or of the arena.
enum class ArenaShortage { kNone, kJob, kUser, kOrdinary, kArena };

/// All segments of a node. One process at a time may have a run directory's arena open: Open()
/// waits 2 s for a predecessor to exit, then returns AlreadyExists. Thread-safe. Segments live
/// until Release() or the arena's destruction, which unmaps them and leaves them with the keeper.
class Arena {
 public:
  /// Connects to the node's keeper and adopts every segment of the keeper whose ledger is intact:
  /// sealed slots stay as they are (their bytes are NOT yet verified), leased ones become free.
  /// Segments that fail their checks are released and logged.
  static Result<std::unique_ptr<Arena>> Open(const ArenaOptions& options, Clock& clock);
  virtual ~Arena() = default;

  /// Returns the owner's segment with at least `slots` slots of `slot_bytes`, adopted or new (fully
  /// fallocated and sealed against resizing, so that touching it never faults). A smaller segment
  /// of the same owner is released first if all its slots are free. FailedPrecondition otherwise:
  /// the message lists what that segment holds. ResourceExhausted: the message names the limit,
  /// the reserved bytes, the request and the setting to raise.
  virtual Result<Segment*> Reserve(const SegmentOwner& owner, uint32_t slots,
                                   uint64_t slot_bytes) = 0;
  /// Returns the segment that the rank saves into, or null.
  virtual Segment* Find(const std::string& job, Rank rank) = 0;
  /// Makes `segment` a retained segment: it keeps its content until it is released, and the owner
  /// gets new memory at the next Reserve(). All adopted segments of an owner but the largest are
  /// retained segments.
  virtual Status RetainSegment(Segment* segment) = 0;
  /// Undoes RetainSegment(). AlreadyExists when the owner has another segment meanwhile.
  virtual Status ReinstateSegment(Segment* segment) = 0;
  /// Returns whether `segment` is a retained segment.
  virtual bool IsRetained(const Segment* segment) const = 0;
  virtual std::vector<Segment*> segments() = 0;
  /// Frees the segment's memory. No thread may use the segment any more.
  virtual Status Release(Segment* segment) = 0;
  virtual ArenaUsage usage() const = 0;
  /// Returns the first limit, in the order of the enumeration, that a new segment would exceed.
  virtual ArenaShortage ShortageOf(const SegmentOwner& owner, uint32_t slots,
                                   uint64_t slot_bytes) const = 0;
  /// Returns whether the job is one of ArenaOptions::priority_jobs.
  virtual bool HasPriority(const std::string& job) const = 0;
  /// Ensures that a keeper holds every segment: when the old keeper has died, starts a new one and
  /// passes the descriptors to it. With ArenaOptions::start_keeper false, waits a moment for a new
  /// keeper instead of starting one. Call it about every second: between a keeper's death and this
  /// call only this process holds the memory.
  virtual Status EnsureKeeper() = 0;
};

}  // namespace holdfast::agent
