#include "agent/pipeline/damage_tracker.h"

#include <algorithm>

#include "base/log.h"

namespace holdfast::agent {

/// Looks for parity of the version on this node: a node that keeps such parity is a member of the
/// group that protects the version.
bool DamageTracker::IsProtected(const ShardKey& key) {
  bool in_memory = false;
  ranks_.ForEach([&](RankPipeline& rank) {
    const SegmentOwner& owner = rank.segment.owner();
    if (owner.job != key.job || !IsParity(owner.rank)) return;
    in_memory = in_memory || rank.slots.view().Has(key.version);
  });
  if (in_memory) return true;
  const std::vector<StoredShard> stored = volume_.List();
  return std::any_of(stored.begin(), stored.end(), [&](const StoredShard& shard) {
    const ShardIdentity& identity = shard.identity;
    return IsParity(identity.rank) && identity.job == key.job && identity.version == key.version;
  });
}

Result<ShardSeal> DamageTracker::SealOfProtected(const ShardKey& key, Tier tier) {
  if (!IsProtected(key)) {
    return Fail(NotFoundError("no parity group protects " + ToString(key)));
  }
  if (tier == Tier::kDisk) {
    HOLDFAST_ASSIGN_OR_RETURN(const auto chunks, volume_.OpenChunks(key));
    return chunks->seal();
  }
  const RankLease rank = ranks_.FindHolder(key);
  if (!rank) return Fail(NotFoundError(ToString(key) + " is not in memory"));
  HOLDFAST_ASSIGN_OR_RETURN(const uint32_t slot,
                            rank->slots.pins().Pin(key.version, SlotPins::Find::kAny));
  auto seal = rank->segment.seal(slot);
  rank->slots.pins().Unpin(slot);
  return seal;
}

bool DamageTracker::OnDamaged(const ShardKey& key, Tier tier, const Status& how) {
  // Parity groups repair the replicas of nodes. A shard of a shared tier is copied there again.
  const auto seal =
      IsShared(tier) ? Result<ShardSeal>(Fail(NotFoundError(""))) : SealOfProtected(key, tier);
  if (!seal) {
    OnLost(key, tier, how);
    return true;
  }
  if (tier == Tier::kMemory) {
    const RankLease rank = ranks_.FindHolder(key);
    if (!rank || !rank->slots.pins().MarkDamaged(key.version).ok()) return false;
  } else {
    MutexLock lock(mutex_);
    if (!damaged_on_disk_.insert(key).second) return false;
  }
  Log(LogLevel::kError, "ShardDamaged",
      {Kv("shard", ToString(key)), Kv("tier", ToString(tier)), Kv("error", how.message())});
  link_.Report(StoredReplica{seal->identity, tier, seal->digest(), seal->image_bytes, how.message(),
                             seal->life});
  return true;
}

void DamageTracker::OnLost(const ShardKey& key, Tier tier, const Status& how) {
  if (tier == Tier::kMemory) {
    const RankLease rank = ranks_.FindHolder(key);
    if (!rank || !rank->slots.pins().Discard(key.version).ok()) return;  // known already
  } else {
    if (stores_[tier] == nullptr) return;
    const Status moved = stores_[tier]->Quarantine(key, how.message());
    if (tier == Tier::kDisk) ForgetOnDisk({key});
    if (moved.code() == ErrorCode::kNotFound) return;
    if (!moved.ok()) Log(LogLevel::kError, "QuarantineFailed", {Kv("error", moved.ToString())});
  }
  Log(LogLevel::kError, "ShardLost",
      {Kv("shard", ToString(key)), Kv("tier", ToString(tier)), Kv("error", how.message())});
  link_.Report(RemovedReplica{key, tier, how.message()});
  if (tier == Tier::kMemory) ranks_.NotifySlotsChanged(key.job, key.rank);
}

void DamageTracker::OnVerified(const ShardIdentity& identity, Tier tier, const ShardSeal& seal) {
  if (tier == Tier::kDisk) ForgetOnDisk({identity.key()});
  link_.Report(StoredReplica{identity, tier, seal.digest(), seal.image_bytes, "", seal.life});
}

void DamageTracker::ForgetOnDisk(const std::vector<ShardKey>& keys) {
  MutexLock lock(mutex_);
  for (const ShardKey& key : keys) damaged_on_disk_.erase(key);
}

}  // namespace holdfast::agent
