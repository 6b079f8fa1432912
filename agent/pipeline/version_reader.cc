#include "agent/pipeline/version_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <utility>

#include "agent/chunks/decoded_chunks.h"
#include "agent/chunks/peer_chunks.h"
#include "base/log.h"
#include "base/thread.h"
#include "storage/format/image.h"

namespace holdfast::agent {
namespace {
constexpr size_t kLoadersMax = 8;
constexpr std::chrono::seconds kReadTime(60);
constexpr std::chrono::milliseconds kRetryPause(200);
constexpr std::chrono::seconds kRefreshInterval(1);
constexpr uint32_t kLossesMax = 5;

/// Reads the image bytes [begin, end); fetches the complete chunks that contain them.
Status ReadBytes(VersionReader& reader, Rank rank, uint64_t image_bytes, uint64_t begin,
                 uint64_t end, std::vector<std::byte>* into) {
  const uint64_t first = begin / kChunkBytes * kChunkBytes;
  const uint64_t last = std::min(RoundUp(end, kChunkBytes), image_bytes);
  into->resize(last - first);
  HOLDFAST_RETURN_IF_ERROR(reader.Read(rank, first, *into));
  into->erase(into->begin(), into->begin() + static_cast<ptrdiff_t>(begin - first));
  into->resize(end - begin);
  into->shrink_to_fit();
  return Status::Ok();
}
}  // namespace

/// The committed digests of all shards (0: any) and their sources, by rank.
struct VersionReader::Located {
  std::vector<uint64_t> digests;
  std::vector<SourceList> sources;
};

VersionReader::~VersionReader() = default;

Result<std::shared_ptr<VersionReader>> VersionReader::Open(const RestoreTools& tools,
                                                           PlaceFinder& finder,
                                                           const std::string& job,
                                                           VersionId version,
                                                           Incarnation incarnation) {
  auto reader = std::make_shared<VersionReader>(tools, finder, job, version, incarnation);
  HOLDFAST_RETURN_IF_ERROR(reader->FindPlaces());
  HOLDFAST_RETURN_IF_ERROR(reader->LoadShards());
  return reader;
}

std::shared_ptr<const VersionReader::Located> VersionReader::located() {
  MutexLock lock(mutex_);
  return located_;
}

Status VersionReader::FindPlaces() {
  HOLDFAST_ASSIGN_OR_RETURN(VersionPlaces found, finder_.FindPlaces(job_, version_));
  if (found.shards.empty() || (!shards_.empty() && shards_.size() != found.shards.size())) {
    return InternalError(fmt::format(
        "the coordinator names {} shards of version {}, expected {}", found.shards.size(),
        ToString(version_), shards_.empty() ? "one or more" : std::to_string(shards_.size())));
  }
  auto located = std::make_shared<Located>();
  std::vector<std::shared_ptr<const GroupPlan>> groups;
  for (const GroupPlan& group : found.groups) groups.push_back(std::make_shared<GroupPlan>(group));
  for (uint32_t rank = 0; rank < found.shards.size(); ++rank) {
    located->digests.push_back(found.shards[rank].digest);
    located->sources.push_back(SourcesOf(Rank{rank}, found.shards[rank].places, groups));
  }
  MutexLock lock(mutex_);
  located_ = std::move(located);
  found_at_ = tools_.clock.Now();
  return Status::Ok();
}

void VersionReader::RefreshPlaces() {
  {
    MutexLock lock(mutex_);
    if (tools_.clock.Now() - found_at_ < kRefreshInterval) return;
    found_at_ = tools_.clock.Now();  // keeps other threads from doing the same
  }
  const Status found = FindPlaces();
  if (!found.ok()) Log(LogLevel::kDebug, "ReplicasNotLocated", {Kv("error", found.ToString())});
}

Status VersionReader::LoadShards() {
  shards_.resize(located()->sources.size());
  std::atomic<size_t> next{0};
  std::atomic<uint64_t> bytes{0};
  std::vector<Status> outcomes(std::min(kLoadersMax, shards_.size()));
  const auto load = [&](Status* outcome) {
    for (size_t rank = next++; rank < shards_.size(); rank = next++) {
      *outcome = LoadShard(Rank{static_cast<uint32_t>(rank)});
      bytes += shards_[rank].header.size() + shards_[rank].extras.size();
      if (outcome->ok() && bytes > kListingBytesMax) {
        *outcome = ResourceExhaustedError(
            fmt::format("the headers and extra state of version {} of job '{}' are longer than the "
                        "limit of {} bytes: the version cannot be resharded",
                        ToString(version_), job_, kListingBytesMax));
      }
      if (!outcome->ok()) next = shards_.size();
    }
  };
  std::vector<Thread> loaders;
  for (size_t i = 1; i < outcomes.size(); ++i) loaders.emplace_back(load, &outcomes[i]);
  load(&outcomes[0]);
  for (Thread& loader : loaders) loader.join();
  for (const Status& outcome : outcomes) HOLDFAST_RETURN_IF_ERROR(outcome);
  return Status::Ok();
}

Status VersionReader::LoadShard(Rank rank) {
  Shard& shard = shards_[rank.value];
  const ShardKey key{job_, version_, rank};
  HOLDFAST_RETURN_IF_ERROR(TrySources(rank, [&](SourceSelector& sources) -> Status {
    HOLDFAST_ASSIGN_OR_RETURN(shard.seal, sources.ReadSeal());
    return Status::Ok();
  }));
  const uint64_t image_bytes = shard.seal.image_bytes;
  if (image_bytes < sizeof(uint64_t)) {
    return DataLossError(
        fmt::format("{}: an image of {} bytes has no header", ToString(key), image_bytes));
  }
  std::vector<std::byte>& header = shard.header;
  // Most headers fit into the first chunk.
  HOLDFAST_RETURN_IF_ERROR(
      ReadBytes(*this, rank, image_bytes, 0, std::min(kChunkBytes, image_bytes), &header));
  HOLDFAST_ASSIGN_OR_RETURN(const uint64_t header_bytes, HeaderBytes(header, image_bytes));
  if (header_bytes > header.size()) {
    HOLDFAST_RETURN_IF_ERROR(ReadBytes(*this, rank, image_bytes, 0, header_bytes, &header));
  }
  header.resize(header_bytes);
  header.shrink_to_fit();
  HOLDFAST_ASSIGN_OR_RETURN(const ParsedImage image, ParseImage(header, image_bytes));
  if (image.identity != shard.seal.identity) {
    return DataLossError("the image header of " + ToString(key) + " names " +
                         ToString(image.identity.key()));
  }
  if (image.extras.empty()) return Status::Ok();
  const uint64_t begin = image.data_offset + image.extras.front().begin;
  return ReadBytes(*this, rank, image_bytes, begin, image_bytes, &shard.extras);
}

std::vector<ListedShard> VersionReader::Listing() const {
  // `near` helps to choose between tensor replicas; the state at this moment is good enough.
  std::vector<ListedShard> listing;
  for (uint32_t rank = 0; rank < shards_.size(); ++rank) {
    const Shard& shard = shards_[rank];
    const ShardKey key{job_, version_, Rank{rank}};
    listing.push_back(
        {rank, tools_.local.Has(key), shard.seal.image_bytes, shard.header, shard.extras});
  }
  return listing;
}

SourceList VersionReader::SourcesOf(
    Rank rank, const std::vector<ShardPlace>& places,
    const std::vector<std::shared_ptr<const GroupPlan>>& groups) const {
  const ShardKey key{job_, version_, rank};
  SourceList sources;
  for (const ShardPlace& place : places) {
    if (place.node == tools_.node()) {
      sources.push_back(tools_.local.Source(key, place.tier));
    } else {
      sources.push_back(std::make_unique<PeerChunks>(
          tools_.reach.transport, tools_.clock,
          PeerPlace{place.node, place.peer_address, place.tier}, key, incarnation_));
    }
  }
  for (const auto& group : groups) {
    if (!group->PositionOf(rank)) continue;
    sources.push_back(std::make_unique<DecodedChunks>(tools_.reach, group, key, incarnation_));
  }
  return sources;
}

Status VersionReader::TrySources(Rank rank, const std::function<Status(SourceSelector&)>& take) {
  const ShardKey key{job_, version_, rank};
  const Clock::TimePoint deadline = tools_.clock.Now() + kReadTime;
  for (uint32_t losses = 0;;) {
    const std::shared_ptr<const Located> where = located();
    SourceSelector selector(key, where->digests[rank.value], where->sources[rank.value],
                            tools_.damage);
    selector.SetStopping([this] { return finder_.stopping(); });
    const Status taken = take(selector);
    if (taken.ok() && selector.any_failed()) RefreshPlaces();
    if (taken.ok() || taken.code() == ErrorCode::kCancelled) return taken;
    // After a few rounds with damage only, do not wait for a repair.
    const bool damaged = taken.code() == ErrorCode::kDataLoss && ++losses > kLossesMax;
    if (damaged || tools_.clock.Now() + kRetryPause >= deadline) {
      return taken.WithContext(
          fmt::format("rank {} of version {}", rank.value, ToString(version_)));
    }
    tools_.clock.SleepFor(kRetryPause);
    Status found = FindPlaces();
    // Of all errors, only Unavailable is worth another round.
    if (!found.ok() && found.code() != ErrorCode::kUnavailable) return found;
    if (finder_.stopping()) return CancelledError("the agent is stopping");
  }
}

Status VersionReader::Read(Rank rank, uint64_t offset, std::span<std::byte> into) {
  if (rank.value >= shards_.size()) {
    return InvalidArgumentError(fmt::format("rank {}: version {} has {} ranks", rank.value,
                                            ToString(version_), shards_.size()));
  }
  const ShardSeal& seal = shards_[rank.value].seal;
  const uint64_t left = offset <= seal.image_bytes ? seal.image_bytes - offset : 0;
  const bool complete = into.size() % kChunkBytes == 0 || into.size() == left;
  if (offset % kChunkBytes != 0 || into.size() > left || !complete) {
    return InvalidArgumentError(
        fmt::format("{} bytes from offset {} of {} are not complete chunks of its {} bytes",
                    into.size(), offset, ToString(seal.identity.key()), seal.image_bytes));
  }
  return TrySources(rank, [&](SourceSelector& sources) {
    std::vector<WantedChunk> chunks = ChunksOf(seal, offset / kChunkBytes, into);
    return sources.Read(seal, chunks);
  });
}

}  // namespace holdfast::agent
