#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "agent/pipeline/damage_tracker.h"
#include "agent/pipeline/local_shards.h"
#include "base/clock.h"
#include "base/ids.h"
#include "base/mutex.h"
#include "base/thread.h"
#include "storage/volume/volume.h"

namespace holdfast::agent {

struct ScrubOptions {
  uint64_t bytes_per_s = 64ULL << 20;  // limit of the read rate; 0: never scrub
  int64_t pause_ms = 3'600'000;        // before each pass
};

/// Verifies all shards that this node keeps, at a limited rate, so that decayed chunks are found
/// while good copies of them still exist. Has a thread. Does not block other users: memory is
/// checked one chunk at a time.
class Scrubber {
 public:
  struct Counts {
    uint64_t passes = 0;   // completed
    uint64_t bytes = 0;    // checked since the start
    uint64_t damaged = 0;  // damaged replicas found since the start
  };

  /// Starts the thread. The arguments outlive the scrubber.
  Scrubber(const ScrubOptions& options, const LocalShards& shards, const Volume& volume,
           DamageTracker& damage, Clock& clock);
  ~Scrubber();

  Counts counts() const;

 private:
  void Run();
  void Pass();
  void Check(const ShardKey& key, Tier tier);
  void Report(const ShardKey& key, Tier tier, const Status& how);
  /// Waits as long as the rate limit requires after `bytes` more were read. Returns false when
  /// stopping.
  bool Pace(uint64_t bytes);
  bool Pause(Clock::Duration time);

  const ScrubOptions options_;
  const LocalShards& shards_;
  const Volume& volume_;
  DamageTracker& damage_;
  Clock& clock_;
  std::atomic<uint64_t> passes_{0};
  std::atomic<uint64_t> bytes_{0};
  std::atomic<uint64_t> damaged_{0};
  Mutex mutex_;
  CondVar changed_;
  bool stopping_ HOLDFAST_GUARDED_BY(mutex_) = false;
  Thread thread_;
};

}  // namespace holdfast::agent
