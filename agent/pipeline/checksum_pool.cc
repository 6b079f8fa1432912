#include "agent/pipeline/checksum_pool.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "storage/format/checksum.h"

namespace holdfast::agent {
namespace {
constexpr uint32_t kThreadsMax = 48;
}  // namespace

ChecksumPool::ChecksumPool(uint32_t threads) {
  for (uint32_t i = 0; i < threads; ++i) threads_.emplace_back([this] { Run(); });
}

ChecksumPool::~ChecksumPool() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    work_.NotifyAll();
  }
  for (Thread& thread : threads_) thread.join();
}

uint32_t ChecksumPool::UsualThreads() {
  return std::min(std::thread::hardware_concurrency() * 3 / 4, kThreadsMax);
}

void ChecksumPool::Run() {
  MutexLock lock(mutex_);
  while (!stopping_) {
    if (ready_.empty()) {
      work_.Wait(mutex_);
    } else {
      // NOLINTNEXTLINE(clang-diagnostic-thread-safety-precise): its pool is this one.
      ready_.front()->ComputeNext();
    }
  }
}

Checksums::Checksums(ChecksumPool& pool, std::span<const std::byte> image)
    : pool_(pool), image_(image), crcs_(ChunkCount(image.size())), is_done_(crcs_.size()) {}

Checksums::~Checksums() {
  MutexLock lock(pool_.mutex_);
  offered_ = begun_;
  std::erase(pool_.ready_, this);
  while (running_ > 0) pool_.done_.Wait(pool_.mutex_);
}

void Checksums::Offer(uint64_t bytes) {
  MutexLock lock(pool_.mutex_);
  const bool had_work = has_work();
  offered_ = bytes == image_.size() ? crcs_.size() : bytes / kChunkBytes;
  if (had_work || !has_work() || pool_.threads_.empty()) return;
  pool_.ready_.push_back(this);
  if (offered_ - begun_ > 1) pool_.work_.NotifyAll();
}

bool Checksums::ComputeOne() {
  MutexLock lock(pool_.mutex_);
  if (!has_work()) return false;
  ComputeNext();
  return true;
}

void Checksums::AwaitOffered() {
  while (ComputeOne()) {
  }
  MutexLock lock(pool_.mutex_);
  while (running_ > 0) pool_.done_.Wait(pool_.mutex_);
}

uint64_t Checksums::done_bytes() {
  MutexLock lock(pool_.mutex_);
  return std::min<uint64_t>(first_open_ * kChunkBytes, image_.size());
}

void Checksums::ComputeNext() {
  const size_t index = begun_++;
  ++running_;
  if (!has_work()) std::erase(pool_.ready_, this);
  pool_.mutex_.Unlock();
  const uint64_t begin = index * kChunkBytes;
  const uint64_t bytes = std::min<uint64_t>(kChunkBytes, image_.size() - begin);
  crcs_[index] = Crc32c(image_.subspan(begin, bytes));
  pool_.mutex_.Lock();
  is_done_[index] = true;
  while (first_open_ < begun_ && is_done_[first_open_]) ++first_open_;
  // After the last one, the owner may destroy the object.
  if (--running_ == 0) pool_.done_.NotifyAll();
}

}  // namespace holdfast::agent
