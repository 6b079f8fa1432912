#include "agent/pipeline/scrubber.h"

#include <chrono>
#include <utility>

#include "base/log.h"

namespace holdfast::agent {

Scrubber::Scrubber(const ScrubOptions& options, MemoryShards& memory, const Volume& volume,
                   DamageTracker& damage)
    : options_(options), memory_(memory), volume_(volume), damage_(damage) {
  if (options_.bytes_per_s != 0) thread_ = std::thread([this] { Run(); });
}

Scrubber::~Scrubber() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    changed_.NotifyAll();
  }
  if (thread_.joinable()) thread_.join();
}

Scrubber::Counts Scrubber::counts() const {
  return {passes_.load(), bytes_.load(), damaged_.load()};
}

bool Scrubber::Pause(Clock::Duration time) {
  const Clock::TimePoint until = Clock::Real().Now() + time;
  MutexLock lock(mutex_);
  while (!stopping_ && Clock::Real().Now() < until) changed_.WaitUntil(mutex_, until);
  return !stopping_;
}

bool Scrubber::Pace(uint64_t bytes) {
  bytes_ += bytes;
  const double seconds = static_cast<double>(bytes) / static_cast<double>(options_.bytes_per_s);
  return Pause(std::chrono::duration_cast<Clock::Duration>(std::chrono::duration<double>(seconds)));
}

void Scrubber::Run() {
  while (Pause(std::chrono::milliseconds(options_.pause_ms))) {
    const Clock::TimePoint begin = Clock::Real().Now();
    const uint64_t before = bytes_.load();
    Pass();
    const auto took = std::chrono::duration<double>(Clock::Real().Now() - begin);
    ++passes_;
    Log(LogLevel::kDebug, "Scrubbed",
        {Kv("bytes", bytes_.load() - before), Kv("seconds", took.count()),
         Kv("damaged_ever", damaged_.load())});
  }
}

void Scrubber::Pass() {
  for (const ShardKey& key : memory_.Kept()) CheckMemory(key);
  for (const StoredShard& shard : volume_.List()) CheckDisk(shard.identity.key());
}

void Scrubber::CheckMemory(const ShardKey& key) {
  for (uint64_t chunk = 0;; ++chunk) {
    const auto checked = memory_.CheckChunk(key, chunk);
    if (!checked) return Report(key, Tier::kMemory, checked.error());
    if (*checked == 0 || !Pace(*checked)) return;
  }
}

void Scrubber::CheckDisk(const ShardKey& key) {
  auto chunks = volume_.OpenChunks(key);
  if (!chunks) return Report(key, Tier::kDisk, chunks.error());
  for (uint64_t i = 0; i < (*chunks)->seal().chunk_crcs.size(); ++i) {
    const auto chunk = (*chunks)->Read(i);
    if (!chunk) return Report(key, Tier::kDisk, chunk.error());
    if (!Pace(chunk->size())) return;
  }
}

void Scrubber::Report(const ShardKey& key, Tier tier, const Status& how) {
  // Other errors, such as a shard removed meanwhile, are not damage.
  if (how.code() != ErrorCode::kDataLoss && how.code() != ErrorCode::kIoError) return;
  if (damage_.OnDamaged(key, tier, how)) ++damaged_;
}

}  // namespace holdfast::agent
