#pragma once

#include <thread>

#include "agent/pipeline/rank_events.h"
#include "agent/pipeline/rank_slots.h"
#include "storage/base/clock.h"

namespace holdfast::agent {

/// One rank's thread that turns copies into sealed slots: follows the trainer's progress counter,
/// takes the CRC-32C of each chunk as it becomes final, and when the trainer has ended the save,
/// checks that the image is what the lease says and writes the seal into the ledger. Everything in
/// the shared memory is taken as hostile: a counter that jumps or goes back, or a header that is
/// not this shard's, fails that one save.
class Sealer {
 public:
  /// The arguments outlive it. Starts its thread.
  Sealer(RankSlots& slots, RankEvents& events, Clock& clock);
  /// `slots` must be stopped before.
  ~Sealer();

 private:
  void Run();
  /// `samples`: those that the image lists.
  Result<ShardSeal> Follow(const SaveJob& job, std::vector<ReplicaSample>* samples);
  Status CheckProgress(const SaveJob& job, uint64_t seen, uint64_t copied, bool ended) const;

  RankSlots& slots_;
  RankEvents& events_;
  Clock& clock_;
  std::thread thread_;
};

/// Parses the head of `image` from a private copy and compares its identity with what was leased.
Result<ParsedImage> ParseImageOf(std::span<const std::byte> image, const ShardIdentity& expected);
/// Only whether that succeeds.
Status CheckImageIdentity(std::span<const std::byte> image, const ShardIdentity& expected);

}  // namespace holdfast::agent
