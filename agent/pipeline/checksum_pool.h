#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>
#include <vector>

#include "base/mutex.h"
#include "base/thread.h"

namespace holdfast::agent {

class Checksums;

/// Threads that help the sealers of a node with the checksums of chunks: one core computes 7 to
/// 13 GB/s, and a GPU copies 55 GB/s into a slot. Thread-safe.
class ChecksumPool {
 public:
  /// With 0 threads, the sealers compute alone.
  explicit ChecksumPool(uint32_t threads);
  ~ChecksumPool();
  ChecksumPool(const ChecksumPool&) = delete;
  ChecksumPool& operator=(const ChecksumPool&) = delete;

  /// Returns the number of threads for this machine: three quarters of the processors, at most 48.
  static uint32_t UsualThreads();

 private:
  friend class Checksums;
  void Run();

  Mutex mutex_;
  CondVar work_;  // there is a chunk to compute, or the pool ends
  CondVar done_;  // the last chunk that was being computed is done
  std::deque<Checksums*> ready_ HOLDFAST_GUARDED_BY(mutex_);  // those with chunks to begin
  bool stopping_ HOLDFAST_GUARDED_BY(mutex_) = false;
  std::vector<Thread> threads_;
};

/// The checksums of an image whose bytes become final from front to back. One thread uses the
/// object; the pool's threads help it.
class Checksums {
 public:
  /// `pool` and the memory of `image` outlive the object.
  Checksums(ChecksumPool& pool, std::span<const std::byte> image);
  /// Waits for chunks that are being computed.
  ~Checksums();
  Checksums(const Checksums&) = delete;
  Checksums& operator=(const Checksums&) = delete;

  /// The first `bytes` of the image are final: their whole chunks may be computed. At the end of
  /// the image, the last chunk may be short.
  void Offer(uint64_t bytes);
  /// Computes one of the offered chunks. Returns false when all of them have begun.
  bool ComputeOne();
  /// Waits until all offered chunks are done.
  void AwaitOffered();
  /// Returns the number of bytes from the front whose checksums are done.
  uint64_t done_bytes();
  /// Returns the CRC-32C of each chunk. All chunks must be done.
  std::vector<uint32_t> Take() { return std::move(crcs_); }

 private:
  friend class ChecksumPool;
  /// Computes the next chunk. Unlocks the pool's mutex meanwhile.
  void ComputeNext() HOLDFAST_REQUIRES(pool_.mutex_);
  bool has_work() const HOLDFAST_REQUIRES(pool_.mutex_) { return begun_ < offered_; }

  ChecksumPool& pool_;
  const std::span<const std::byte> image_;
  std::vector<uint32_t> crcs_;
  std::vector<bool> is_done_ HOLDFAST_GUARDED_BY(pool_.mutex_);
  // Numbers of chunks. Those in front of `first_open_` are done.
  size_t offered_ HOLDFAST_GUARDED_BY(pool_.mutex_) = 0;
  size_t begun_ HOLDFAST_GUARDED_BY(pool_.mutex_) = 0;
  size_t first_open_ HOLDFAST_GUARDED_BY(pool_.mutex_) = 0;
  size_t running_ HOLDFAST_GUARDED_BY(pool_.mutex_) = 0;
};

}  // namespace holdfast::agent
