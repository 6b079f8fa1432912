#include "agent/pipeline/local_shards.h"

#include <cstddef>

#include "agent/pipeline/memory_chunks.h"
#include "storage/chunks/disk_chunks.h"
#include "storage/chunks/tier_chunks.h"

namespace holdfast::agent {

std::unique_ptr<ChunkSource> LocalShards::Source(const ShardKey& key, Tier tier) const {
  if (tier == Tier::kMemory) return std::make_unique<MemoryChunks>(ranks_, key);
  if (IsShared(tier)) return std::make_unique<TierChunks>(shared_[tier], tier, key);
  return std::make_unique<DiskChunks>(volume_, key);
}

bool LocalShards::Has(const ShardKey& key) const {
  return MemoryChunks(ranks_, key).ReadSeal().has_value() || volume_.ReadSeal(key).has_value();
}

Status LocalShards::Check(const ShardKey& key, Tier tier, bool deep, const ShardSeal& seal) const {
  if (tier == Tier::kDisk) return volume_.VerifyShard(key, deep);
  // The caller has read the seal, so this node reaches the tier.
  if (IsShared(tier)) return shared_[tier]->VerifyShard(key, deep);
  if (!deep) return Status::Ok();
  MemoryChunks source(ranks_, key);
  std::vector<std::byte> buffer(std::min(kChunkBytes, seal.image_bytes));
  // One chunk at a time, so that no save waits for the slot.
  for (uint64_t index = 0; index < seal.chunk_crcs.size(); ++index) {
    WantedChunk chunk{index, std::span(buffer).first(ChunkBytes(seal, index))};
    HOLDFAST_RETURN_IF_ERROR(source.Read(seal, {&chunk, 1}));
  }
  return Status::Ok();
}

Result<ShardSeal> LocalShards::Verify(const ShardKey& key, Tier tier, bool deep) const {
  HOLDFAST_ASSIGN_OR_RETURN(ShardSeal seal, Source(key, tier)->ReadSeal());
  const Status status = Check(key, tier, deep, seal);
  if (status.code() == ErrorCode::kDataLoss) damage_.OnDamaged(key, tier, status);
  HOLDFAST_RETURN_IF_ERROR(status);
  return seal;
}

std::vector<ShardKey> LocalShards::KeptInMemory() const {
  std::vector<ShardKey> kept;
  ranks_.ForEach([&](RankPipeline& rank) {
    const SegmentOwner& owner = rank.segment.owner();
    for (VersionId version : rank.slots.view().Kept()) {
      kept.push_back({owner.job, version, owner.rank});
    }
  });
  return kept;
}

}  // namespace holdfast::agent
