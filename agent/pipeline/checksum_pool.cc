#include "agent/pipeline/checksum_pool.h"

#include <algorithm>
#include <thread>

#include "storage/format/checksum.h"

namespace holdfast::agent {
namespace {
constexpr uint32_t kThreadsMax = 16;
}  // namespace

ChecksumPool::ChecksumPool(uint32_t threads) {
  for (uint32_t i = 0; i < threads; ++i) threads_.emplace_back([this] { Run(); });
}

ChecksumPool::~ChecksumPool() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    changed_.NotifyAll();
  }
  for (Thread& thread : threads_) thread.join();
}

uint32_t ChecksumPool::UsualThreads() {
  return std::min(std::thread::hardware_concurrency() / 4, kThreadsMax);
}

void ChecksumPool::Append(std::span<const std::byte> bytes, std::vector<uint32_t>* crcs) {
  const size_t before = crcs->size();
  crcs->resize(before + ChunkCount(bytes.size()));
  Batch batch{.bytes = bytes, .crcs = std::span(*crcs).subspan(before)};
  MutexLock lock(mutex_);
  if (!threads_.empty() && batch.crcs.size() > 1) {
    batches_.push_back(&batch);
    changed_.NotifyAll();
  }
  while (batch.begun < batch.crcs.size()) ComputeNext(batch);
  while (batch.done < batch.crcs.size()) changed_.Wait(mutex_);
}

void ChecksumPool::Run() {
  MutexLock lock(mutex_);
  while (!stopping_) {
    if (batches_.empty()) {
      changed_.Wait(mutex_);
    } else {
      ComputeNext(*batches_.front());
    }
  }
}

void ChecksumPool::ComputeNext(Batch& batch) {
  const size_t index = batch.begun++;
  // From here on no thread finds the batch: it ends when its last chunk is done.
  if (batch.begun == batch.crcs.size()) std::erase(batches_, &batch);
  mutex_.Unlock();
  const uint64_t begin = index * kChunkBytes;
  const uint64_t size = std::min<uint64_t>(kChunkBytes, batch.bytes.size() - begin);
  const uint32_t crc = Crc32c(batch.bytes.subspan(begin, size));
  mutex_.Lock();
  batch.crcs[index] = crc;
  if (++batch.done == batch.crcs.size()) changed_.NotifyAll();
}

}  // namespace holdfast::agent
