#include "agent/pipeline/group_reporter.h"

#include <chrono>
#include <memory>
#include <string_view>

#include "agent/pipeline/shard_header.h"
#include "base/log.h"

namespace holdfast::agent {
namespace {
constexpr std::chrono::seconds kPause(2);
}  // namespace

void GroupReporter::SetLife(const SeenLife& seen) {
  MutexLock lock(mutex_);
  if (seen.life != seen_.life) settled_.clear();
  seen_ = seen;
  next_ = {};
}

void GroupReporter::Tick() {
  {
    MutexLock lock(mutex_);
    const Clock::TimePoint now = clock_.Now();
    if (running_ || seen_.life.value == 0 || now < next_) return;
    next_ = now + kPause;
    running_ = true;
  }
  if (background_.Post([this] { Run(); })) return;
  MutexLock lock(mutex_);
  running_ = false;
}

void GroupReporter::Run() {
  SeenLife seen;
  std::set<Place> settled;
  {
    MutexLock lock(mutex_);
    seen = seen_;
    settled = settled_;
  }
  std::set<Place> now;
  for (const Place& place : ParityShards()) {
    if (background_.stopping()) break;
    if (settled.contains(place) || Report(place, seen)) now.insert(place);
  }
  MutexLock lock(mutex_);
  running_ = false;
  if (seen.life == seen_.life) settled_ = std::move(now);
}

std::vector<GroupReporter::Place> GroupReporter::ParityShards() const {
  std::vector<Place> found;
  for (const StoredShard& shard : volume_.List()) {
    if (IsParity(shard.identity.rank)) found.emplace_back(shard.identity.key(), Tier::kDisk);
  }
  ranks_.ForEach([&found](RankPipeline& rank) {
    const SegmentOwner& owner = rank.segment.owner();
    if (!IsParity(owner.rank)) return;
    for (const auto& [version, verified] : rank.slots.view().SealedVersions()) {
      if (verified) found.emplace_back(ShardKey{owner.job, version, owner.rank}, Tier::kMemory);
    }
  });
  return found;
}

bool GroupReporter::Report(const Place& place, const SeenLife& seen) {
  const auto& [key, tier] = place;
  const auto seal = shards_.Source(key, tier)->ReadSeal();
  if (!seal) return false;  // removed meanwhile, or not verified yet
  const LifeId life = seal->life.value == 0 ? seen.unlabeled : seal->life;
  if (life == seen.life) return true;
  auto group = Read(place, *seal);
  if (!group) {
    Log(LogLevel::kWarn, "ParityGroupNotRead",
        {Kv("shard", ToString(key)), Kv("tier", ToString(tier)),
         Kv("error", group.error().ToString()),
         Kv("effect", "the coordinator cannot adopt versions that need this parity shard")});
    return true;
  }
  StoredReplica report{seal->identity, tier, seal->digest(), seal->image_bytes, "", seal->life};
  report.group = std::make_shared<const ShardGroup>(*std::move(group));
  link_.Report(std::move(report));
  // A removal at the same time may have been reported first.
  if (!shards_.Source(key, tier)->ReadSeal()) link_.Report(RemovedReplica{key, tier});
  return true;
}

Result<ShardGroup> GroupReporter::Read(const Place& place, const ShardSeal& seal) const {
  const auto source = shards_.Source(place.first, place.second);
  ParsedImage image;
  const ReadImage read = [&](uint64_t offset, std::span<std::byte> into) {
    std::vector<WantedChunk> chunks = ChunksOf(seal, offset / kChunkBytes, into);
    return source->Read(seal, chunks);
  };
  HOLDFAST_ASSIGN_OR_RETURN(const ShardHeader header, ReadShardHeader(seal, read, &image));
  HOLDFAST_ASSIGN_OR_RETURN(const holdfast::ImageRange range, SealsOf(image));
  HOLDFAST_ASSIGN_OR_RETURN(const std::vector<std::byte> seals,
                            ReadImageBytes(seal, read, range.begin, range.end));
  const std::string_view extra(reinterpret_cast<const char*>(header.extras.data()),
                               header.extras.size());
  return ParseShardGroup(seal.identity, seals, extra);
}

}  // namespace holdfast::agent
