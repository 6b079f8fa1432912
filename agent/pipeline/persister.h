#pragma once

#include <thread>

#include "agent/pipeline/rank_events.h"
#include "agent/pipeline/rank_slots.h"
#include "storage/volume/volume.h"

namespace holdfast::agent {

/// One rank's thread that writes versions to disk: follows the sealer's counter, so that writing
/// begins before the copy has ended, and publishes once the slot is sealed. A failed write abandons
/// its file; there is one new attempt from memory (none when the disk is full), then the version is
/// not stored and everything else goes on.
class Persister {
 public:
  /// The arguments outlive it. Starts its thread.
  Persister(RankSlots& slots, Volume& volume, RankEvents& events);
  /// `slots` must be stopped before.
  ~Persister();

 private:
  void Run();
  /// False when the save or its version was given up before anything was written.
  bool Write(const SaveJob& job);
  /// Cancelled: the save was given up, there is nothing to store.
  Result<ShardSeal> WriteOnce(const SaveJob& job);
  Result<ShardSeal> AwaitSeal(const SaveJob& job);
  Result<ShardSeal> AlreadyStored(const SaveJob& job);

  RankSlots& slots_;
  Volume& volume_;
  RankEvents& events_;
  std::thread thread_;
};

}  // namespace holdfast::agent
