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
  uint64_t bytes_per_s = 64ULL << 20;  // limit of the read rate; 0: never scrub
  int64_t pause_ms = 3'600'000;        // before each pass
};

/// The data that the scrubber verifies. All outlive the scrubber.
struct ScrubTools {
  /// Returns the shards in memory that must stay. Slots that a save may take are not scrubbed.
  std::function<std::vector<ShardKey>()> in_memory;
  /// Checks one chunk of a shard in memory against its seal. Returns the chunk's length, or 0 after
  /// the last chunk. NotFound: the shard was removed. DataLoss: the chunk does not match.
  std::function<Result<uint64_t>(const ShardKey& key, uint64_t chunk)> check_in_memory;
  const Volume& volume;
  /// Handles a replica that does not match its seal or cannot be read. Returns false when the
  /// damage was known already.
  std::function<bool(const ShardKey& key, Tier tier, const Status& how)> damaged;
};

/// Verifies all shards that this node keeps, at a limited rate, so that decayed chunks are found
/// while they can still be replaced. Has a thread. Does not block other users: memory is checked
/// one chunk at a time.
class Scrubber {
 public:
  struct Counts {
    uint64_t passes = 0;   // completed
    uint64_t bytes = 0;    // checked since the start
    uint64_t damaged = 0;  // damaged replicas found since the start
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
  /// Waits as long as the rate limit requires after `bytes` more were read. Returns false when
  /// stopping.
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
