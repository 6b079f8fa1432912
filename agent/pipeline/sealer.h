#pragma once

#include "agent/pipeline/checksum_pool.h"
#include "agent/pipeline/rank_events.h"
#include "agent/pipeline/save_slots.h"
#include "base/clock.h"
#include "base/thread.h"
#include "storage/format/image.h"

namespace holdfast::agent {

/// One rank's thread that seals slots. It follows the trainer's progress counter and computes the
/// CRC-32C of each chunk as the chunk becomes final. When the trainer has ended the save, the
/// thread checks that the image is the shard that was leased, and writes the seal into the ledger.
/// The shared memory is untrusted: a counter that jumps or goes back, or the header of another
/// shard, fails only that save.
class Sealer {
 public:
  /// Starts the thread. The arguments outlive the sealer.
  Sealer(SealSlots& slots, ChecksumPool& checksums, RankEvents& events, Clock& clock);
  /// Joins the thread. The rank's slots must be stopped first (see RankSlots::Stop).
  ~Sealer();

 private:
  /// A save whose bytes are all there and checked.
  struct Complete {
    ShardSeal seal;
    std::vector<ReplicaSample> samples;  // that the image lists
    /// Kept until the slot is sealed: to free thousands of names takes a millisecond.
    ParsedImage header;
  };

  void Run();
  /// Computes the checksums of one save and checks its image.
  Result<Complete> Follow(const SaveJob& job);
  Status CheckProgress(const SaveJob& job, uint64_t seen, uint64_t copied, bool ended) const;

  SealSlots& slots_;
  ChecksumPool& checksums_;
  RankEvents& events_;
  Clock& clock_;
  Thread thread_;
};

/// Parses the header of `image` from a private copy. InvalidArgument: the identity is not
/// `expected`.
Status CheckImageIdentity(std::span<const std::byte> image, const ShardIdentity& expected);

}  // namespace holdfast::agent
