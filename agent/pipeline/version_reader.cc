#include "agent/pipeline/version_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <utility>

#include "agent/api/version_listing.h"
#include "agent/chunks/decoded_chunks.h"
#include "agent/chunks/peer_chunks.h"
#include "agent/pipeline/index_gatherer.h"
#include "agent/pipeline/parallel.h"
#include "base/log.h"

namespace holdfast::agent {
namespace {
constexpr std::chrono::seconds kReadTime(60);
constexpr std::chrono::milliseconds kRetryPause(200);
constexpr std::chrono::seconds kRefreshInterval(1);
constexpr uint32_t kLossesMax = 5;
}  // namespace

/// The committed digests of all shards (0: any) and their sources, by rank.
struct VersionReader::Located {
  std::vector<uint64_t> digests;
  std::vector<SourceList> sources;
  VersionPlaces places;
};

VersionReader::~VersionReader() = default;

/// Requests the locations when they are needed for the first time: a rank whose own shard is in its
/// memory never needs them.
Result<std::shared_ptr<const VersionReader::Located>> VersionReader::located() {
  const auto known = [this] {
    MutexLock lock(mutex_);
    return located_;
  };
  if (auto found = known()) return found;
  MutexLock finding(finding_);
  if (auto found = known()) return found;
  HOLDFAST_RETURN_IF_ERROR(FindPlaces());
  MutexLock lock(mutex_);
  return located_;
}

Status VersionReader::FindPlaces() {
  HOLDFAST_ASSIGN_OR_RETURN(VersionPlaces found, finder_.FindPlaces(job_, version_));
  if (shards_.empty() || shards_.size() != found.shards.size()) {
    return InternalError(fmt::format("the coordinator names {} shards of version {}, expected {}",
                                     found.shards.size(), ToString(version_), shards_.size()));
  }
  auto located = std::make_shared<Located>();
  std::vector<std::shared_ptr<const GroupPlan>> groups;
  for (const GroupPlan& group : found.groups) groups.push_back(std::make_shared<GroupPlan>(group));
  for (uint32_t rank = 0; rank < found.shards.size(); ++rank) {
    located->digests.push_back(found.shards[rank].digest);
    located->sources.push_back(SourcesOf(Rank{rank}, found.shards[rank].places, groups));
  }
  located->places = std::move(found);
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

Status VersionReader::CheckRank(Rank rank) const {
  if (rank.value < shards_.size()) return Status::Ok();
  return InvalidArgumentError(fmt::format("rank {}: version {} has {} ranks", rank.value,
                                          ToString(version_), shards_.size()));
}

Result<std::shared_ptr<const ShardSeal>> VersionReader::SealOf(Rank rank) {
  Shard& shard = shards_[rank.value];
  MutexLock lock(shard.mutex);
  if (shard.seal == nullptr) {
    HOLDFAST_RETURN_IF_ERROR(
        TrySources(rank, [&](SourceSelector& sources) HOLDFAST_REQUIRES(shard.mutex) -> Status {
          HOLDFAST_ASSIGN_OR_RETURN(ShardSeal seal, sources.ReadSeal());
          shard.seal = std::make_shared<const ShardSeal>(std::move(seal));
          return Status::Ok();
        }));
  }
  return shard.seal;
}

Result<ShardHeader> VersionReader::ReadHeader(Rank rank, ParsedImage* image) {
  HOLDFAST_RETURN_IF_ERROR(CheckRank(rank));
  HOLDFAST_ASSIGN_OR_RETURN(const auto seal, SealOf(rank));
  return ReadShardHeader(
      *seal,
      [&](uint64_t offset, std::span<std::byte> into) { return ReadSources(rank, offset, into); },
      image);
}

Result<ShardHeader> VersionReader::ReadOwnHeader(Rank rank) {
  HOLDFAST_RETURN_IF_ERROR(CheckRank(rank));
  HOLDFAST_ASSIGN_OR_RETURN(const auto seal, SealOf(rank));
  return ReadShardHeader(*seal, [&](uint64_t offset, std::span<std::byte> into) {
    return cache_.Read(rank, offset / kChunkBytes, into,
                       [&](uint64_t first, std::span<std::byte> target) {
                         return ReadSources(rank, first * kChunkBytes, target);
                       });
  });
}

bool VersionReader::IsNear(Rank rank) const {
  return tools_.local.Has(ShardKey{job_, version_, rank});
}

Result<std::vector<ShardHeader>> VersionReader::ReadAllHeaders() {
  std::vector<ShardHeader> headers(shards_.size());
  std::atomic<uint64_t> bytes{0};
  HOLDFAST_RETURN_IF_ERROR(InParallel(
      shards_.size(), FirstOf(tools_.node(), shards_.size()), [&](size_t rank) -> Status {
        HOLDFAST_ASSIGN_OR_RETURN(headers[rank], ReadHeader(Rank{static_cast<uint32_t>(rank)}));
        bytes += headers[rank].header.size() + headers[rank].extras.size();
        if (bytes <= kListingBytesMax) return Status::Ok();
        return ResourceExhaustedError(fmt::format(
            "the headers and extra state of version {} of job '{}' are longer than the limit of {} "
            "bytes for a listing: install the client library of this release, which needs none",
            ToString(version_), job_, kListingBytesMax));
      }));
  return headers;
}

std::shared_ptr<const VersionReader::IndexFile> VersionReader::KnownIndex() {
  MutexLock lock(mutex_);
  return index_;
}

Result<std::shared_ptr<const VersionReader::IndexFile>> VersionReader::Index() {
  MutexLock making(making_index_);
  if (auto known = KnownIndex()) return known;
  HOLDFAST_ASSIGN_OR_RETURN(const auto where, located());
  IndexGatherer gatherer(
      tools_, where->places, {job_, version_, world(), incarnation_},
      [this](Rank rank, ParsedImage* image) { return ReadHeader(rank, image); },
      [this] { return finder_.stopping(); });
  HOLDFAST_ASSIGN_OR_RETURN(std::string bytes, gatherer.Gather());
  auto made = std::make_shared<IndexFile>();
  made->index_bytes = bytes.size();
  for (uint32_t rank = 0; rank < where->places.shards.size(); ++rank) {
    const std::vector<ShardPlace>& places = where->places.shards[rank].places;
    const bool near = std::any_of(places.begin(), places.end(), [&](const ShardPlace& place) {
      return place.node == tools_.node() && !IsShared(place.tier);
    });
    if (!near) continue;
    bytes.append(reinterpret_cast<const char*>(&rank), sizeof(rank));
    ++made->near;
  }
  HOLDFAST_ASSIGN_OR_RETURN(made->file,
                            SealedFile::Create("holdfast-index", std::as_bytes(std::span(bytes))));
  Log(LogLevel::kInfo, "IndexMade",
      {Kv("job", job_), Kv("version", ToString(version_)), Kv("bytes", made->index_bytes)});
  MutexLock lock(mutex_);
  index_ = made;
  return std::shared_ptr<const IndexFile>(made);
}

SourceList VersionReader::SourcesOf(Rank rank, const std::vector<ShardPlace>& places,
                                    const std::vector<std::shared_ptr<const GroupPlan>>& groups) {
  const ShardKey key{job_, version_, rank};
  SourceList sources;
  // Of several holders that are equally near, each node begins with another one.
  const size_t turn = FirstOf(tools_.node() + std::to_string(rank.value), places.size());
  MutexLock lock(counting_);
  for (size_t i = 0; i < places.size(); ++i) {
    const ShardPlace& place = places[(turn + i) % places.size()];
    if (place.node == tools_.node()) {
      sources.push_back(tools_.local.Source(key, place.tier));
    } else {
      auto& reads = reads_[place.node];
      if (reads == nullptr) reads = std::make_shared<std::atomic<uint32_t>>(0);
      sources.push_back(std::make_unique<PeerChunks>(
          tools_.reach.transport, tools_.clock,
          PeerPlace{place.node, place.peer_address, place.tier}, key, incarnation_, reads));
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
    const auto found_places = located();
    if (!found_places) return found_places.error();
    const std::shared_ptr<const Located>& where = *found_places;
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

Status VersionReader::ReadSources(Rank rank, uint64_t offset, std::span<std::byte> into) {
  HOLDFAST_RETURN_IF_ERROR(CheckRank(rank));
  HOLDFAST_ASSIGN_OR_RETURN(const auto kept, SealOf(rank));
  const ShardSeal& seal = *kept;
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

Status VersionReader::Read(Rank rank, uint64_t offset, std::span<std::byte> into, bool shared) {
  // ReadSources() checks the rank and the offset.
  if (offset % kChunkBytes != 0 || !CheckRank(rank).ok()) return ReadSources(rank, offset, into);
  const auto fetch = [&](uint64_t first, std::span<std::byte> target) {
    return ReadSources(rank, first * kChunkBytes, target);
  };
  const uint64_t first = offset / kChunkBytes;
  // What is on this node is not copied a second time.
  return shared && !IsNear(rank) ? cache_.Read(rank, first, into, fetch)
                                 : cache_.ReadKept(rank, first, into, fetch);
}

}  // namespace holdfast::agent
