#include "agent/pipeline/memory_chunks.h"

#include <cstring>
#include <utility>

#include "base/crash_point.h"

namespace holdfast::agent {

/// Keeps the memory mapped and the slot pinned.
class MemoryChunks::PinnedSlot {
 public:
  PinnedSlot(RankLease rank, uint32_t slot) : rank_(std::move(rank)), slot_(slot) {}
  ~PinnedSlot() { rank_->slots.pins().Unpin(slot_); }
  PinnedSlot(const PinnedSlot&) = delete;
  PinnedSlot& operator=(const PinnedSlot&) = delete;

  Result<ShardSeal> seal() const { return rank_->segment.seal(slot_); }
  std::span<const std::byte> memory() const { return rank_->segment.slot(slot_); }

 private:
  const RankLease rank_;
  const uint32_t slot_;
};

Result<std::unique_ptr<MemoryChunks::PinnedSlot>> MemoryChunks::Pin() {
  RankLease rank = ranks_.FindHolder(key_);
  if (!rank) return Fail(NotFoundError(ToString(key_) + " has no memory on this node"));
  HOLDFAST_ASSIGN_OR_RETURN(const uint32_t slot,
                            rank->slots.pins().Pin(key_.version, SlotPins::Find::kIncludeDamaged));
  return std::make_unique<PinnedSlot>(std::move(rank), slot);
}

Result<ShardSeal> MemoryChunks::ReadSeal() {
  HOLDFAST_ASSIGN_OR_RETURN(const auto pinned, Pin());
  return pinned->seal();
}

Status MemoryChunks::Read(const ShardSeal& seal, std::span<WantedChunk> chunks) {
  HOLDFAST_RETURN_IF_ERROR(CheckWanted(key_, seal, chunks));
  HOLDFAST_ASSIGN_OR_RETURN(const auto pinned, Pin());
  HOLDFAST_ASSIGN_OR_RETURN(const ShardSeal kept, pinned->seal());
  if (!SameImage(kept, seal)) {
    return NotFoundError("the replica there is another image than the wanted one");
  }
  Status damage;
  for (WantedChunk& chunk : chunks) {
    if (chunk.done) continue;
    // The copy is checked and not the slot, which a trainer has mapped and might change.
    std::memcpy(chunk.into.data(), pinned->memory().data() + chunk.index * kChunkBytes,
                chunk.into.size());
    chunk.done = IsChunk(seal, chunk.index, chunk.into);
    if (!chunk.done && damage.ok()) damage = BadChunkError(seal, chunk.index);
    HOLDFAST_CRASH_POINT("agent.mid_restore");
  }
  return damage;
}

}  // namespace holdfast::agent
