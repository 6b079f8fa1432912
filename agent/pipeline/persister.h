#pragma once

#include "agent/pipeline/disk_slots.h"
#include "agent/pipeline/rank_events.h"
#include "base/thread.h"
#include "storage/volume/volume.h"

namespace holdfast::agent {

/// One rank's thread that writes versions to disk. It follows the sealer's counter, so that writing
/// begins before the copy has ended, and publishes the shard once the slot is sealed. A failed
/// write abandons its file and is repeated once from memory, except when the disk is full. After a
/// second failure the version is reported as not stored, and the thread continues with the next
/// one.
class Persister {
 public:
  /// Starts the thread. The arguments outlive the persister.
  Persister(DiskSlots& slots, Volume& volume, RankEvents& events);
  /// Joins the thread. The rank's slots must be stopped first (see RankSlots::Stop).
  ~Persister();

 private:
  void Run();
  /// Returns false when the save or its version was given up before the shard was written.
  bool Write(const SaveJob& job);
  /// Cancelled: the save was given up.
  Result<ShardSeal> WriteOnce(const SaveJob& job);
  Result<ShardSeal> AwaitSeal(const SaveJob& job);
  Result<ShardSeal> AlreadyStored(const SaveJob& job);

  DiskSlots& slots_;
  Volume& volume_;
  RankEvents& events_;
  Thread thread_;
};

}  // namespace holdfast::agent
