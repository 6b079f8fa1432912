#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "agent/api/segment_layout.h"
#include "storage/base/ids.h"
#include "storage/base/life.h"
#include "storage/base/mutex.h"
#include "storage/format/seal.h"

// The memory that outlives its users. A segment is one rank's memory: a sealed memfd that trainer
// and agent map (control block and slots), and a second memfd, the ledger, that only the agent maps
// and that says what each slot holds. Both live in the keeper process, so a restarted agent finds
// them again. The arena is the node's byte budget over all segments.

namespace holdfast::agent {

enum class SlotState : uint32_t { kFree = 0, kLeased = 1, kSealed = 2 };

struct SlotRecord {
  SlotState state = SlotState::kFree;
  VersionId version;
  uint32_t world = 0;
  uint64_t image_bytes = 0;
  LifeId life = {};  // of a sealed slot
};

/// What a segment belongs to.
struct SegmentOwner {
  std::string job;
  Rank rank;
  uid_t uid = 0;
  bool operator==(const SegmentOwner&) const = default;
};

/// One rank's slots. Lease → (copy) → Seal → Free, or Lease → Abandon. Every change is in the
/// ledger before the call returns, ordered so that an agent killed at any instant leaves a slot
/// either as it was or as it became. Thread-safe.
class Segment {
 public:
  virtual ~Segment() = default;

  virtual uint64_t id() const = 0;
  virtual const SegmentOwner& owner() const = 0;
  virtual uint32_t slot_count() const = 0;
  virtual uint64_t slot_bytes() const = 0;
  /// Whole segment: what is passed to the trainer and registered for I/O.
  virtual int fd() const = 0;
  virtual std::span<std::byte> memory() = 0;

  virtual std::span<std::byte> slot(uint32_t index) = 0;
  virtual SlotProgress& progress(uint32_t index) = 0;
  /// What the trainer shares beside its slots.
  virtual SegmentControl& control() = 0;
  virtual SlotRecord record(uint32_t index) const = 0;
  /// The seal of a sealed slot; FailedPrecondition otherwise.
  virtual Result<ShardSeal> seal(uint32_t index) const = 0;

  /// Takes a free slot for `version`, its progress set to 0. ResourceExhausted: none is free.
  /// InvalidArgument: image_bytes over slot_bytes (with both numbers).
  virtual Result<uint32_t> Lease(VersionId version, uint32_t world, uint64_t image_bytes) = 0;
  /// leased → free.
  virtual Status Abandon(uint32_t index) = 0;
  /// leased → sealed: from here the slot exists for others. `seal` must match the lease.
  virtual Status Seal(uint32_t index, const ShardSeal& seal) = 0;
  /// sealed → free.
  virtual Status Free(uint32_t index) = 0;
};

struct ArenaOptions {
  uint64_t budget_bytes = 0;  // over all segments, control blocks included
  std::string run_dir;        // keeper.sock lives here
  std::string keeper_binary;  // started when none answers; empty: beside this executable
};

struct ArenaUsage {
  uint64_t budget_bytes = 0;
  uint64_t reserved_bytes = 0;
  uint32_t segments = 0;
};

/// All segments of a node; one process at a time may have a run directory's arena open (Open waits
/// 2 s for a predecessor to go, then AlreadyExists). Thread-safe. Segments live until Release() or
/// the arena's destruction, which unmaps them and leaves them with the keeper.
class Arena {
 public:
  /// Connects to the node's keeper (starts it if there is none) and adopts every segment it holds
  /// whose ledger is whole: sealed slots stay as they are (their bytes are NOT yet verified),
  /// leased ones become free. Segments that fail their checks are released and logged.
  static Result<std::unique_ptr<Arena>> Open(const ArenaOptions& options);
  virtual ~Arena() = default;

  /// The owner's segment with at least `slots` slots of `slot_bytes`, adopted or new (fallocated
  /// whole and sealed against resizing, so that touching it never faults). A smaller one of the
  /// same owner is released first when all its slots are free, else FailedPrecondition says what it
  /// holds. ResourceExhausted gives the budget, what is reserved, what was asked, and which setting
  /// to raise.
  virtual Result<Segment*> Reserve(const SegmentOwner& owner, uint32_t slots,
                                   uint64_t slot_bytes) = 0;
  virtual Segment* Find(const std::string& job, Rank rank) = 0;
  /// The owner gets new memory at the next Reserve(); this stays as it is, for what it holds, until
  /// it is released. Of an owner's adopted segments all but the largest have been set aside.
  virtual Status SetAside(Segment* segment) = 0;
  /// Undoes it while the owner has got no other.
  virtual Status TakeBack(Segment* segment) = 0;
  /// Whether it is what the owner would get.
  virtual bool IsSetAside(const Segment* segment) const = 0;
  virtual std::vector<Segment*> segments() = 0;
  /// Gives the memory back; nobody may use the segment any more.
  virtual Status Release(Segment* segment) = 0;
  virtual ArenaUsage usage() const = 0;
  /// Sees to it that a keeper holds every segment: starts a new one when the old one died and hands
  /// it the descriptors again. Call it every second or so: between a keeper's death and this call
  /// the memory has no other holder than this process. OK when all is well.
  virtual Status EnsureKeeper() = 0;
};

}  // namespace holdfast::agent
