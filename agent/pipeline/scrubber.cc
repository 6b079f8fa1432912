#include "agent/pipeline/scrubber.h"

#include <algorithm>
#include <chrono>
#include <span>
#include <utility>

#include "base/log.h"

namespace holdfast::agent {

Scrubber::Scrubber(const ScrubOptions& options, const LocalShards& shards, const Volume& volume,
                   DamageTracker& damage, Clock& clock)
    : options_(options), shards_(shards), volume_(volume), damage_(damage), clock_(clock) {
  if (options_.bytes_per_s != 0) thread_ = Thread([this] { Run(); });
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
  const Clock::TimePoint until = clock_.Now() + time;
  MutexLock lock(mutex_);
  while (!stopping_ && clock_.Now() < until) changed_.WaitUntil(mutex_, until);
  return !stopping_;
}

bool Scrubber::Pace(uint64_t bytes) {
  bytes_ += bytes;
  const double seconds = static_cast<double>(bytes) / static_cast<double>(options_.bytes_per_s);
  return Pause(std::chrono::duration_cast<Clock::Duration>(std::chrono::duration<double>(seconds)));
}

void Scrubber::Run() {
  while (Pause(std::chrono::milliseconds(options_.pause_ms))) {
    const Clock::TimePoint begin = clock_.Now();
    const uint64_t before = bytes_.load();
    Pass();
    const auto took = std::chrono::duration<double>(clock_.Now() - begin);
    ++passes_;
    Log(LogLevel::kDebug, "Scrubbed",
        {Kv("bytes", bytes_.load() - before), Kv("seconds", took.count()),
         Kv("damaged_ever", damaged_.load())});
  }
}

void Scrubber::Pass() {
  for (const ShardKey& key : shards_.KeptInMemory()) Check(key, Tier::kMemory);
  for (const StoredShard& shard : volume_.List()) Check(shard.identity.key(), Tier::kDisk);
}

void Scrubber::Check(const ShardKey& key, Tier tier) {
  const auto source = shards_.Source(key, tier);
  const auto seal = source->ReadSeal();
  if (!seal) return Report(key, tier, seal.error());
  std::vector<std::byte> buffer(std::min(kChunkBytes, seal->image_bytes));
  for (uint64_t index = 0; index < seal->chunk_crcs.size(); ++index) {
    WantedChunk chunk{index, std::span(buffer).first(ChunkBytes(*seal, index))};
    const Status status = source->Read(*seal, {&chunk, 1});
    if (!status.ok()) return Report(key, tier, status.WithContext(source->where()));
    if (!Pace(chunk.into.size())) return;
  }
}

void Scrubber::Report(const ShardKey& key, Tier tier, const Status& how) {
  // Other errors, such as a shard removed meanwhile, are not damage.
  if (how.code() != ErrorCode::kDataLoss && how.code() != ErrorCode::kIoError) return;
  if (damage_.OnDamaged(key, tier, how)) ++damaged_;
}

}  // namespace holdfast::agent
