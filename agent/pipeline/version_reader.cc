#include "agent/pipeline/version_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <optional>
#include <thread>

#include "agent/parity/rebuild.h"
#include "base/log.h"
#include "storage/format/checksum.h"
#include "storage/format/image.h"

namespace holdfast::agent {
namespace {
constexpr size_t kLoadersMax = 8;
constexpr std::chrono::seconds kReadTime(60);
constexpr std::chrono::milliseconds kRetryPause(200);
constexpr std::chrono::seconds kRefreshInterval(1);
constexpr uint32_t kLossesMax = 5;
constexpr size_t kIdleFilesMax = 8;  // per shard

Status CheckChunks(const ShardSeal& seal, uint64_t offset, std::span<const std::byte> bytes,
                   const std::string& where) {
  for (uint64_t at = 0; at < bytes.size(); at += kChunkBytes) {
    const uint64_t chunk = (offset + at) / kChunkBytes;
    const auto piece = bytes.subspan(at, std::min<uint64_t>(kChunkBytes, bytes.size() - at));
    if (Crc32c(piece) == seal.chunk_crcs[chunk]) continue;
    return DataLossError(fmt::format("{} {}: chunk {} does not match its checksum",
                                     ToString(seal.identity.key()), where, chunk));
  }
  return Status::Ok();
}

Status DigestMismatch() {
  return NotFoundError("digest mismatch: the replica is not the committed image");
}

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

/// A source that a shard can be read from.
class VersionReader::Source {
 public:
  enum class Kind { kMemory, kDisk, kOther, kGroup };
  Kind kind = Kind::kMemory;
  ShardPlace place;                  // kOther
  const GroupPlan* group = nullptr;  // kGroup
  uint32_t cost = 0;

  std::string Name() const {
    switch (kind) {
      case Kind::kMemory:
        return "in this node's memory";
      case Kind::kDisk:
        return "on this node's disk";
      case Kind::kOther:
        return fmt::format("at {} on node {}", ToString(place.tier), place.node);
      case Kind::kGroup:
        return "decoded by its group";
    }
    return "";
  }
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

std::shared_ptr<const VersionPlaces> VersionReader::places() {
  MutexLock lock(mutex_);
  return places_;
}

Status VersionReader::FindPlaces() {
  HOLDFAST_ASSIGN_OR_RETURN(VersionPlaces found, finder_.FindPlaces(job_, version_));
  if (found.shards.empty() || (!shards_.empty() && shards_.size() != found.shards.size())) {
    return InternalError(fmt::format(
        "the coordinator names {} shards of version {}, expected {}", found.shards.size(),
        ToString(version_), shards_.empty() ? "one or more" : std::to_string(shards_.size())));
  }
  MutexLock lock(mutex_);
  places_ = std::make_shared<const VersionPlaces>(std::move(found));
  found_at_ = Clock::Real().Now();
  return Status::Ok();
}

void VersionReader::RefreshPlaces() {
  {
    MutexLock lock(mutex_);
    if (Clock::Real().Now() - found_at_ < kRefreshInterval) return;
    found_at_ = Clock::Real().Now();  // keeps other threads from doing the same
  }
  const Status found = FindPlaces();
  if (!found.ok()) Log(LogLevel::kDebug, "ReplicasNotLocated", {Kv("error", found.ToString())});
}

Status VersionReader::LoadShards() {
  shards_.resize(places()->shards.size());
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
  std::vector<std::thread> loaders;
  for (size_t i = 1; i < outcomes.size(); ++i) loaders.emplace_back(load, &outcomes[i]);
  load(&outcomes[0]);
  for (std::thread& loader : loaders) loader.join();
  for (const Status& outcome : outcomes) HOLDFAST_RETURN_IF_ERROR(outcome);
  return Status::Ok();
}

Status VersionReader::LoadShard(Rank rank) {
  Shard& shard = shards_[rank.value];
  const ShardKey key{job_, version_, rank};
  HOLDFAST_RETURN_IF_ERROR(TrySources(rank, [&](const Source& source) {
    return ReadSeal(source, key, places()->shards[rank.value].digest, &shard.seal);
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
    const bool near =
        tools_.memory.Open(key).has_value() || tools_.volume.ReadSeal(key).has_value();
    listing.push_back({rank, near, shard.seal.image_bytes, shard.header, shard.extras});
  }
  return listing;
}

std::vector<VersionReader::Source> VersionReader::SourcesOf(Rank rank,
                                                            const VersionPlaces& places) const {
  std::vector<Source> sources;
  for (const ShardPlace& place : places.shards[rank.value].places) {
    const bool local = place.node == tools_.node;
    const bool in_memory = place.tier == Tier::kMemory;
    Source source;
    source.kind = !local      ? Source::Kind::kOther
                  : in_memory ? Source::Kind::kMemory
                              : Source::Kind::kDisk;
    source.place = place;
    source.cost = (in_memory ? 0 : 2) + (local ? 0 : 1);
    sources.push_back(std::move(source));
  }
  for (const GroupPlan& group : places.groups) {
    if (!group.PositionOf(rank)) continue;
    Source source;
    source.kind = Source::Kind::kGroup;
    source.group = &group;
    source.cost = 4;
    sources.push_back(std::move(source));
  }
  std::stable_sort(sources.begin(), sources.end(),
                   [](const Source& a, const Source& b) { return a.cost < b.cost; });
  return sources;
}

Status VersionReader::TrySources(Rank rank, const std::function<Status(const Source&)>& take) {
  const Clock::TimePoint deadline = Clock::Real().Now() + kReadTime;
  for (uint32_t losses = 0;;) {
    const std::shared_ptr<const VersionPlaces> where = places();
    Status last = UnavailableError("no replica is available now");
    bool first = true;
    for (const Source& source : SourcesOf(rank, *where)) {
      Status status = take(source);
      if (status.ok() && !first) RefreshPlaces();
      if (status.ok()) return status;
      first = false;
      last = Status(status.code(), source.Name() + ": " + status.message());
      Log(LogLevel::kWarn, "ReaderSourceFailed",
          {Kv("job", job_), Kv("version", ToString(version_)), Kv("rank", rank.value),
           Kv("error", last.ToString())});
      // Report a damaged local replica, so that the coordinator has it repaired.
      const ShardKey key{job_, version_, rank};
      const bool bad = status.code() == ErrorCode::kDataLoss;
      if (bad && source.kind == Source::Kind::kMemory) {
        tools_.damage.OnDamaged(key, Tier::kMemory, status);
      } else if (bad && source.kind == Source::Kind::kDisk) {
        tools_.damage.OnDamaged(key, Tier::kDisk, status);
      }
      if (finder_.stopping()) return CancelledError("the agent is stopping");
    }
    // After a few rounds with damage only, do not wait for a repair.
    const bool damaged = last.code() == ErrorCode::kDataLoss && ++losses > kLossesMax;
    if (damaged || Clock::Real().Now() + kRetryPause >= deadline) {
      return last.WithContext(fmt::format("rank {} of version {}", rank.value, ToString(version_)));
    }
    Clock::Real().SleepFor(kRetryPause);
    Status found = FindPlaces();
    // Of all errors, only Unavailable is worth another round.
    if (!found.ok() && found.code() != ErrorCode::kUnavailable) return found;
    if (finder_.stopping()) return CancelledError("the agent is stopping");
  }
}

Status VersionReader::ReadSeal(const Source& source, const ShardKey& key, uint64_t digest,
                               ShardSeal* seal) {
  const auto read = [&]() -> Result<ShardSeal> {
    switch (source.kind) {
      case Source::Kind::kMemory: {
        HOLDFAST_ASSIGN_OR_RETURN(const auto reader, tools_.memory.Open(key));
        return reader->seal();
      }
      case Source::Kind::kDisk:
        return tools_.volume.ReadSeal(key);
      case Source::Kind::kOther:
        return tools_.fetcher.ReadRange(source.place.address, key, source.place.tier, 0, {});
      case Source::Kind::kGroup: {
        Cancellation cancellation;
        const GroupAccess access =
            tools_.Group(*source.group, job_, version_, incarnation_, cancellation);
        return FetchSeal(access, key.rank, Clock::Real().Now() + kReadTime);
      }
    }
    return Fail(InternalError("no such source"));
  };
  HOLDFAST_ASSIGN_OR_RETURN(*seal, read());
  if (seal->identity.key() != key) {
    return DataLossError("the source returned the seal of " + ToString(seal->identity.key()));
  }
  if (digest == 0 || seal->digest() == digest) return Status::Ok();
  return DataLossError(fmt::format("the replica has digest {:016x}, the committed one {:016x}",
                                   seal->digest(), digest));
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
  return TrySources(rank,
                    [&](const Source& source) { return ReadFrom(source, seal, offset, into); });
}

Status VersionReader::ReadFrom(const Source& source, const ShardSeal& seal, uint64_t offset,
                               std::span<std::byte> into) {
  const ShardKey key = seal.identity.key();
  switch (source.kind) {
    case Source::Kind::kMemory: {
      HOLDFAST_ASSIGN_OR_RETURN(const auto reader, tools_.memory.Open(key));
      if (reader->seal().digest() != seal.digest()) return DigestMismatch();
      for (uint64_t at = 0; at < into.size(); at += kChunkBytes) {
        const auto piece = into.subspan(at, std::min<uint64_t>(kChunkBytes, into.size() - at));
        HOLDFAST_RETURN_IF_ERROR(reader->CopyChunk((offset + at) / kChunkBytes, piece));
      }
      return Status::Ok();
    }
    case Source::Kind::kDisk:
      return ReadFromDisk(seal, offset, into);
    case Source::Kind::kOther: {
      HOLDFAST_ASSIGN_OR_RETURN(
          const ShardSeal sent,
          tools_.fetcher.ReadRange(source.place.address, key, source.place.tier, offset, into));
      return sent.digest() == seal.digest() ? Status::Ok() : DigestMismatch();
    }
    case Source::Kind::kGroup:
      return Decode(source, seal, offset, into);
  }
  return InternalError("no such source");
}

Status VersionReader::ReadFromDisk(const ShardSeal& seal, uint64_t offset,
                                   std::span<std::byte> into) {
  const uint32_t rank = seal.identity.rank.value;
  std::unique_ptr<ShardChunks> file;
  {
    MutexLock lock(mutex_);
    auto& idle = files_[rank];
    if (!idle.empty()) {
      file = std::move(idle.back());
      idle.pop_back();
    }
  }
  if (file == nullptr) {
    HOLDFAST_ASSIGN_OR_RETURN(file, tools_.volume.OpenChunks(seal.identity.key()));
    if (file->seal().digest() != seal.digest()) return DigestMismatch();
  }
  for (uint64_t at = 0; at < into.size(); at += kChunkBytes) {
    // After an error the file is dropped, and the next read opens it again.
    HOLDFAST_ASSIGN_OR_RETURN(const auto bytes, file->Read((offset + at) / kChunkBytes));
    if (bytes.size() > into.size() - at) {
      return InternalError("a chunk is longer than the rest of its buffer");
    }
    std::memcpy(into.data() + at, bytes.data(), bytes.size());
  }
  MutexLock lock(mutex_);
  auto& idle = files_[rank];
  if (idle.size() < kIdleFilesMax) idle.push_back(std::move(file));
  return Status::Ok();
}

Status VersionReader::Decode(const Source& source, const ShardSeal& seal, uint64_t offset,
                             std::span<std::byte> into) {
  Cancellation cancellation;
  const GroupAccess access =
      tools_.Group(*source.group, job_, version_, incarnation_, cancellation);
  const ImageRange range{offset, into};
  HOLDFAST_RETURN_IF_ERROR(DecodeRanges(
      access, seal.identity, {&range, 1}, [](uint64_t) {}, Clock::Real().Now() + kReadTime));
  return CheckChunks(seal, offset, into, "as decoded from its group");
}

}  // namespace holdfast::agent
