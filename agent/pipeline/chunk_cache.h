#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "base/ids.h"
#include "base/mutex.h"
#include "base/status.h"

namespace holdfast::agent {

/// The chunks that trainers of this node have just read from other nodes. Trainers that restore the
/// same tensor replica read the same chunks at about the same time: one of them reads a chunk, and
/// the others wait for it. Thread-safe; calls block.
class ChunkCache {
 public:
  explicit ChunkCache(uint64_t chunks_max) : chunks_max_(chunks_max) {}

  /// Reads complete chunks, verified, from chunk `first` on.
  using Fetch = std::function<Status(uint64_t first, std::span<std::byte> into)>;
  /// Fills `into`, which ends where a chunk ends, with the chunks of the shard from chunk `first`
  /// on. Calls `fetch` for those that no caller reads or has read. A failed read is not kept.
  Status Read(Rank rank, uint64_t first, std::span<std::byte> into, const Fetch& fetch);
  /// As Read(), but keeps nothing and waits for no other caller: calls `fetch` for all chunks that
  /// are not kept at this moment.
  Status ReadKept(Rank rank, uint64_t first, std::span<std::byte> into, const Fetch& fetch);

 private:
  using Key = std::pair<uint32_t, uint64_t>;  // rank, chunk
  using Bytes = std::shared_ptr<const std::vector<std::byte>>;

  /// Claims chunk `first` and those after it that no caller reads, up to `last`. Returns how many.
  uint64_t Claim(Rank rank, uint64_t first, uint64_t last) HOLDFAST_REQUIRES(mutex_);
  void Keep(Key key, Bytes bytes) HOLDFAST_REQUIRES(mutex_);
  /// Copies a kept chunk to the start of `into`.
  static Status Copy(const Bytes& chunk, std::span<std::byte> into);

  const uint64_t chunks_max_;
  Mutex mutex_;
  CondVar changed_;
  std::map<Key, Bytes> chunks_ HOLDFAST_GUARDED_BY(mutex_);  // null: it is being read
  std::deque<Key> order_ HOLDFAST_GUARDED_BY(mutex_);        // of those read, oldest first
};

}  // namespace holdfast::agent
