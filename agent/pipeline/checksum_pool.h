#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>
#include <vector>

#include "base/mutex.h"
#include "base/thread.h"

namespace holdfast::agent {

/// Threads that help the sealers of a node with the checksums of chunks. One core computes about
/// 13 GB/s, and a GPU copies 55 GB/s into a slot. Thread-safe.
class ChecksumPool {
 public:
  /// With 0 threads, the caller of Append() computes alone.
  explicit ChecksumPool(uint32_t threads);
  ~ChecksumPool();
  ChecksumPool(const ChecksumPool&) = delete;
  ChecksumPool& operator=(const ChecksumPool&) = delete;

  /// Returns the number of threads for this machine: a quarter of the processors, at most 16.
  static uint32_t UsualThreads();

  /// Returns how many chunks a caller should pass at a time, so that every thread has some.
  size_t chunks_at_once() const { return threads_.empty() ? 1 : 4 * (threads_.size() + 1); }
  /// Appends the CRC-32C of each chunk of `bytes` to `crcs`, in order. The last chunk may be short.
  void Append(std::span<const std::byte> bytes, std::vector<uint32_t>* crcs);

 private:
  /// The chunks of one Append().
  struct Batch {
    std::span<const std::byte> bytes;
    std::span<uint32_t> crcs;
    size_t begun = 0;
    size_t done = 0;
  };

  void Run();
  /// Computes the next chunk of the batch. Unlocks the mutex meanwhile.
  void ComputeNext(Batch& batch) HOLDFAST_REQUIRES(mutex_);

  Mutex mutex_;
  CondVar changed_;
  std::deque<Batch*> batches_ HOLDFAST_GUARDED_BY(mutex_);  // those with chunks that have not begun
  bool stopping_ HOLDFAST_GUARDED_BY(mutex_) = false;
  std::vector<Thread> threads_;
};

}  // namespace holdfast::agent
