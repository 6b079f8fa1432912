#include "agent/pipeline/memory_shards.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "storage/format/checksum.h"

namespace holdfast::agent {
namespace {

class MemoryReader final : public ShardReader {
 public:
  MemoryReader(RankLease rank, uint32_t slot, ShardSeal seal)
      : rank_(std::move(rank)), slot_(slot), seal_(std::move(seal)) {}
  ~MemoryReader() override { rank_->slots.pins().Unpin(slot_); }
  const ShardSeal& seal() const override { return seal_; }
  Status ReadChunk(uint64_t index, std::vector<std::byte>* into) override {
    if (index >= seal_.chunk_crcs.size()) return NoSuchChunk();
    into->resize(std::min(kChunkBytes, seal_.image_bytes - index * kChunkBytes));
    return CopyChunk(index, *into);
  }
  Status CopyChunk(uint64_t index, std::span<std::byte> into) override {
    if (index >= seal_.chunk_crcs.size()) return NoSuchChunk();
    const uint64_t offset = index * kChunkBytes;
    if (into.size() != std::min(kChunkBytes, seal_.image_bytes - offset)) return NoSuchChunk();
    std::memcpy(into.data(), rank_->segment.slot(slot_).data() + offset, into.size());
    if (Crc32c(into) == seal_.chunk_crcs[index]) return Status::Ok();
    return DataLossError(fmt::format("{} in memory: chunk {} does not match its checksum",
                                     ToString(seal_.identity.key()), index));
  }

 private:
  static Status NoSuchChunk() {
    return InvalidArgumentError("the index or the length of the chunk is wrong");
  }

  RankLease rank_;
  uint32_t slot_;
  ShardSeal seal_;
};

}  // namespace

Result<std::unique_ptr<ShardReader>> MemoryShards::Open(const ShardKey& key) {
  RankLease rank = ranks_.FindHolder(key);
  if (!rank) {
    return Fail(NotFoundError(
        fmt::format("node {} has no memory of rank {} of {}", node_, key.rank.value, key.job)));
  }
  HOLDFAST_ASSIGN_OR_RETURN(const uint32_t slot, rank->slots.pins().Pin(key.version));
  auto seal = rank->segment.seal(slot);
  if (!seal) {
    rank->slots.pins().Unpin(slot);
    return Fail(seal.error());
  }
  return std::make_unique<MemoryReader>(std::move(rank), slot, *std::move(seal));
}

Status MemoryShards::Verify(const ShardKey& key, bool deep, ShardSeal* seal) {
  HOLDFAST_ASSIGN_OR_RETURN(auto reader, Open(key));
  *seal = reader->seal();
  std::vector<std::byte> chunk;
  for (uint64_t i = 0; deep && i < seal->chunk_crcs.size(); ++i) {
    Status status = reader->ReadChunk(i, &chunk);
    if (status.code() == ErrorCode::kDataLoss) damage_.OnDamaged(key, Tier::kMemory, status);
    HOLDFAST_RETURN_IF_ERROR(status);
  }
  return Status::Ok();
}

std::vector<ShardKey> MemoryShards::Kept() {
  std::vector<ShardKey> kept;
  ranks_.ForEach([&](RankPipeline& rank) {
    const SegmentOwner& owner = rank.segment.owner();
    for (VersionId version : rank.slots.view().Kept()) {
      kept.push_back({owner.job, version, owner.rank});
    }
  });
  return kept;
}

Result<uint64_t> MemoryShards::CheckChunk(const ShardKey& key, uint64_t chunk) {
  HOLDFAST_ASSIGN_OR_RETURN(auto reader, Open(key));
  if (chunk >= reader->seal().chunk_crcs.size()) return 0;
  std::vector<std::byte> bytes;
  HOLDFAST_RETURN_IF_ERROR(reader->ReadChunk(chunk, &bytes));
  return bytes.size();
}

}  // namespace holdfast::agent
