#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>

#include "agent/pipeline/persister.h"
#include "agent/pipeline/rank_events.h"
#include "agent/pipeline/rank_slots.h"
#include "agent/pipeline/sealer.h"
#include "base/clock.h"
#include "storage/volume/volume.h"

namespace holdfast::agent {

/// One rank's slots, with the threads that seal them and write them to disk.
struct RankPipeline {
  /// The arguments outlive the pipeline.
  RankPipeline(Segment& segment_in, uint64_t disk_every_steps, uint64_t peer_every_steps,
               ChangeSignal& peer_versions, Volume& volume, ChecksumPool& checksums,
               RankEvents& events, Clock& clock)
      : segment(segment_in),
        slots(segment_in, disk_every_steps, peer_every_steps, peer_versions),
        sealer(slots.sealing(), checksums, events, clock),
        persister(slots.disk(), volume, events) {}
  ~RankPipeline() { slots.Stop(); }

  Segment& segment;
  std::atomic<bool> connected{false};  // a trainer has the memory mapped
  std::atomic<uint32_t> leases{0};     // see RankLease
  RankSlots slots;
  Sealer sealer;
  Persister persister;
};

/// The right to use a rank's pipeline and its memory. While a lease exists, the memory is neither
/// freed nor assigned to another rank. Only RankRegistry makes leases; a copy is another lease of
/// the same rank. Thread-compatible. An empty lease names no rank.
///
/// The lease also keeps the pipeline's threads and mutex alive, because a stop clears the registry
/// while readers of the data service may still hold leases.
class RankLease {
 public:
  RankLease() = default;
  RankLease(const RankLease& other) : RankLease(other.rank_) {}
  RankLease(RankLease&& other) noexcept : rank_(std::move(other.rank_)) {}
  RankLease& operator=(RankLease other) noexcept {
    std::swap(rank_, other.rank_);
    return *this;
  }
  ~RankLease() {
    if (rank_ != nullptr) rank_->leases.fetch_sub(1);
  }

  explicit operator bool() const { return rank_ != nullptr; }
  RankPipeline& operator*() const { return *rank_; }
  RankPipeline* operator->() const { return rank_.get(); }
  /// Returns nullptr for an empty lease.
  RankPipeline* get() const { return rank_.get(); }
  /// Returns whether no other lease of the rank exists. The answer is reliable only while the
  /// registry's mutex is held.
  bool IsOnly() const { return rank_->leases.load() == 1; }

 private:
  friend class RankRegistry;
  explicit RankLease(std::shared_ptr<RankPipeline> rank) : rank_(std::move(rank)) {
    if (rank_ != nullptr) rank_->leases.fetch_add(1);
  }

  std::shared_ptr<RankPipeline> rank_;
};

}  // namespace holdfast::agent
