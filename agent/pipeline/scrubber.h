#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <thread>
#include <vector>

#include "storage/base/clock.h"
#include "storage/base/ids.h"
#include "storage/base/mutex.h"
#include "storage/volume/volume.h"

namespace holdfast::agent {

struct ScrubOptions {
  uint64_t bytes_per_s = 64ULL << 20;  // read at most so fast; 0: never scrub
  int64_t pause_ms = 3'600'000;        // before the first pass and between two
};

/// What the scrubber looks at; all outlive it.
struct ScrubTools {
  /// Shards in memory that are to stay: those that a save may take are left alone.
  std::function<std::vector<ShardKey>()> in_memory;
  /// Checks one chunk of a shard in memory against its seal: its bytes, or 0 behind the last one.
  /// NotFound when the shard has gone; DataLoss.
  std::function<Result<uint64_t>(const ShardKey& key, uint64_t chunk)> check_in_memory;
  const Volume& volume;
  /// A copy differs from what was sealed, or cannot be read. False: that was known.
  std::function<bool(const ShardKey& key, Tier tier, const Status& how)> damaged;
};

/// Reads everything that this node keeps, at its own slow pace, so that what has decayed is found
/// while it can still be replaced. Its own thread. Nothing is kept from use: memory is looked at a
/// chunk at a time.
class Scrubber {
 public:
  struct Counts {
    uint64_t passes = 0;   // completed
    uint64_t bytes = 0;    // checked since the start
    uint64_t damaged = 0;  // copies found bad
  };

  Scrubber(ScrubOptions options, ScrubTools tools);
  ~Scrubber();

  Counts counts() const;

 private:
  void Run();
  void Pass();
  void CheckMemory(const ShardKey& key);
  void CheckDisk(const ShardKey& key);
  void Report(const ShardKey& key, Tier tier, const Status& how);
  /// So that `bytes` more keep to the rate. False: stopping.
  bool Pace(uint64_t bytes);
  bool Pause(Clock::Duration time);

  const ScrubOptions options_;
  const ScrubTools tools_;
  std::atomic<uint64_t> passes_{0};
  std::atomic<uint64_t> bytes_{0};
  std::atomic<uint64_t> damaged_{0};
  Mutex mutex_;
  CondVar changed_;
  bool stopping_ HOLDFAST_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace holdfast::agent
