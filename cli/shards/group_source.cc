#include "cli/shards/group_source.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include "cli/core/interrupt.h"

namespace holdfast::cli {

namespace {

/// Chunks requested from a replica at a time: with a call to an agent for each, the calls would
/// take longer than the transfer.
constexpr uint64_t kChunksAtOnce = 4;

/// The shards that the decoder reads, each from any of its replicas. Keeps the last chunks of each
/// shard, since the next reads are adjacent.
class ReplicaImages : public ShardImages {
 public:
  explicit ReplicaImages(const VersionReplicas& replicas) : replicas_(replicas) {}

  Result<ShardSeal> Seal(Rank shard) override {
    Reader& reader = Of(shard);
    if (!reader.seal) {
      HOLDFAST_ASSIGN_OR_RETURN(reader.seal, reader.selector->ReadSeal());
    }
    return *reader.seal;
  }

  Status Read(Rank shard, uint64_t offset, std::span<std::byte> into) override {
    HOLDFAST_ASSIGN_OR_RETURN(const ShardSeal seal, Seal(shard));
    if (offset > seal.image_bytes || into.size() > seal.image_bytes - offset) {
      return DataLossError(fmt::format("{} has {} bytes, fewer than its parity group's plan has",
                                       ToString(seal.identity.key()), seal.image_bytes));
    }
    Reader& reader = Of(shard);
    for (uint64_t done = 0; done < into.size();) {
      const uint64_t begin = reader.first * kChunkBytes;
      const uint64_t at = offset + done;
      if (at < begin || at >= begin + reader.bytes.size()) {
        HOLDFAST_RETURN_IF_ERROR(Load(seal, at / kChunkBytes, reader));
        continue;
      }
      const uint64_t bytes =
          std::min<uint64_t>(begin + reader.bytes.size() - at, into.size() - done);
      std::memcpy(into.data() + done, reader.bytes.data() + (at - begin), bytes);
      done += bytes;
    }
    return Status::Ok();
  }

 private:
  struct Reader {
    SourceList sources;
    std::optional<SourceSelector> selector;
    std::optional<ShardSeal> seal;
    uint64_t first = 0;  // chunk at the begin of `bytes`
    std::vector<std::byte> bytes;
  };

  Reader& Of(Rank shard) {
    Reader& reader = readers_[shard];
    if (!reader.selector) {
      const auto replicas = replicas_.Of(shard);
      reader.sources = replicas_.Open(shard);
      reader.selector.emplace(ShardKey{replicas_.job(), replicas_.version(), shard},
                              replicas.empty() ? 0 : replicas[0].expected.digest, reader.sources,
                              NoDamageReporter());
      reader.selector->SetStopping(Interrupt::requested);
    }
    return reader;
  }

  /// Keeps at least one chunk, from `chunk` on.
  static Status Load(const ShardSeal& seal, uint64_t chunk, Reader& reader) {
    HOLDFAST_RETURN_IF_ERROR(Interrupt::Check());
    const uint64_t begin = chunk * kChunkBytes;
    reader.first = chunk;
    reader.bytes.resize(std::min(kChunksAtOnce * kChunkBytes, seal.image_bytes - begin));
    std::vector<WantedChunk> chunks = ChunksOf(seal, chunk, reader.bytes);
    const Status status = reader.selector->Read(seal, chunks);
    const auto bad = std::find_if(chunks.begin(), chunks.end(),
                                  [](const WantedChunk& wanted) { return !wanted.done; });
    // The chunks before a bad one can be used.
    if (bad != chunks.end()) reader.bytes.resize((bad->index - chunk) * kChunkBytes);
    return reader.bytes.empty() ? status : Status::Ok();
  }

  const VersionReplicas& replicas_;
  std::map<Rank, Reader> readers_;
};

}  // namespace

Result<LostShards::Opened> LostShards::Open(Rank rank) {
  {
    MutexLock lock(mutex_);
    auto idle = idle_.find(rank);
    if (idle != idle_.end() && !idle->second.empty()) {
      Opened opened = std::move(idle->second.back());
      idle->second.pop_back();
      return opened;
    }
  }
  Status last = NotFoundError("no available parity shard protects " + ShardName(rank));
  for (const Rank parity : replicas_.Parity()) {
    HOLDFAST_RETURN_IF_ERROR(Interrupt::Check());
    Opened opened;
    opened.images = std::make_unique<ReplicaImages>(replicas_);
    auto decoder = GroupDecoder::Open(*opened.images, replicas_.job(), replicas_.version(), parity);
    if (!decoder) {
      last = decoder.error();
      continue;
    }
    if (!(*decoder)->plan().PositionOf(rank)) continue;
    opened.decoder = *std::move(decoder);
    return opened;
  }
  return Fail(last);
}

void LostShards::Return(Rank rank, Opened opened) {
  MutexLock lock(mutex_);
  idle_[rank].push_back(std::move(opened));
}

Result<ShardSeal> LostShards::Find(Rank rank) {
  HOLDFAST_ASSIGN_OR_RETURN(Opened opened, Open(rank));
  HOLDFAST_RETURN_IF_ERROR(opened.decoder->CheckDecodable(rank));
  auto seal = opened.decoder->Seal(rank);
  Return(rank, std::move(opened));
  return seal;
}

std::vector<GroupPlan> LostShards::Plans() {
  std::vector<GroupPlan> plans;
  for (const Rank parity : replicas_.Parity()) {
    if (Interrupt::requested()) break;
    const bool known = std::any_of(plans.begin(), plans.end(), [&](const GroupPlan& plan) {
      return plan.PositionOfNumber(ParityNode(parity)).has_value();
    });
    if (known) continue;
    const auto images = std::make_unique<ReplicaImages>(replicas_);
    auto decoder = GroupDecoder::Open(*images, replicas_.job(), replicas_.version(), parity);
    if (decoder) plans.push_back((*decoder)->plan());
  }
  return plans;
}

Status LostShards::Read(Rank rank, const ShardSeal& seal, std::span<WantedChunk> chunks) {
  HOLDFAST_ASSIGN_OR_RETURN(Opened opened, Open(rank));
  HOLDFAST_ASSIGN_OR_RETURN(const ShardSeal listed, opened.decoder->Seal(rank));
  if (!SameImage(listed, seal)) {
    return NotFoundError("the parity of the group is of another image than the wanted one");
  }
  Status damage;
  for (WantedChunk& chunk : chunks) {
    if (chunk.done) continue;
    HOLDFAST_RETURN_IF_ERROR(Interrupt::Check());
    Status decoded = opened.decoder->Decode(rank, chunk.index * kChunkBytes, chunk.into);
    chunk.done = decoded.ok() && IsChunk(seal, chunk.index, chunk.into);
    if (chunk.done) continue;
    if (decoded.ok()) decoded = BadChunkError(seal, chunk.index, "decoded from its group");
    if (decoded.code() != ErrorCode::kDataLoss) return decoded;
    if (damage.ok()) damage = decoded;
  }
  Return(rank, std::move(opened));
  return damage;
}

}  // namespace holdfast::cli
