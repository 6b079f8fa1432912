#include "coordinator/state/versions.h"

#include <fmt/format.h>

#include <algorithm>

#include "coordinator/state/invariants.h"
#include "coordinator/state/survivability.h"
#include "coordinator/state/targets.h"

namespace holdfast::coord {
namespace {
constexpr size_t kDamageTextsMax = 16;

LifeId LifeOf(const Job& job, Incarnation incarnation) {
  auto lineage = job.lineages.find(incarnation);
  return lineage == job.lineages.end() ? LifeId{} : lineage->second.life;
}

/// Whether the two incarnations were opened in different, known lives of the store.
bool AreOfDifferentLives(const Job& job, Incarnation a, Incarnation b) {
  const LifeId life_a = LifeOf(job, a);
  const LifeId life_b = LifeOf(job, b);
  return life_a.value != 0 && life_b.value != 0 && life_a != life_b;
}
}  // namespace

VersionState& CreateVersion(Job& job, VersionId id, uint32_t world, Phase phase) {
  VersionState& version = job.versions[id];
  version.id = id;
  version.world = world;
  version.phase = phase;
  version.ranks.resize(world);
  if (const GroupIndex* groups = job.groups_of(id.incarnation)) {
    version.parity.resize(groups->members.size());
  }
  return version;
}

void StoreVersion(Context& context, const Job& job, VersionState& version,
                  uint32_t committed_tier_bit) {
  version.recorded = true;
  VersionRecord record;
  record.job = job.name;
  record.version = version.id;
  record.world = version.world;
  record.phase = version.phase;
  record.tiers = version.tiers;
  record.failed_tiers = version.failed_tiers;
  record.pinned = version.pinned;
  record.wall_nanos = version.wall_nanos;
  record.bytes = version.bytes;
  record.disputes = version.disputes;
  record.adopted_from = version.adopted_from;
  record.verification = version.verification;
  if (version.tiers != 0) {
    record.digests.reserve(version.ranks.size());
    for (const RankShard& shard : version.ranks) record.digests.push_back(shard.digest);
    if (version.commit_digest == 0) version.commit_digest = CommitDigest(record.digests);
    record.commit_digest = version.commit_digest;
  }
  // An adopted version may lack parity, whose digests are then not known.
  const bool some_parity =
      version.adopted_from.value != 0 &&
      std::ranges::any_of(version.parity, [](const RankShard& shard) { return shard.known; });
  if (version.committed_at(Tier::kPeer) || some_parity) {
    for (const RankShard& shard : version.parity) record.parity_digests.push_back(shard.digest);
  }
  CheckVersionRecord(context, job, record, committed_tier_bit);
  context.effects.emplace_back(PutVersion{std::move(record), committed_tier_bit});
}

VersionCommit CommitOf(const ReadContext& context, const Job& job, const VersionState& version) {
  LifeId life = version.adopted_from;
  if (life.value == 0) life = LifeOf(job, version.id.incarnation);
  if (life.value == 0) life = context.options.life;
  return {job.name, life, version.id, version.world, version.commit_digest};
}

void AbortVersion(Context& context, Job& job, VersionState& version, bool store) {
  if (version.phase != Phase::kPending) return;
  for (const TierTraits& traits : kTierTable) {
    TierTarget* target = job.target(traits.tier);
    if (target != nullptr && SelectsVersion(job, *target, version.id)) {
      target->Resolve(version.id.step);
    }
  }
  HOLDFAST_INVARIANT(*context.options.invariants, version.tiers == 0, Kv("job", job.name),
                     Kv("version", ToString(version.id)), Kv("tiers", version.tiers));
  version.phase = Phase::kAborted;
  version.samples.clear();
  ++job.aborted_total;
  if (store) StoreVersion(context, job, version, 0);
  RemoveStored(job, version, kStoredTiers);
  job.changed = true;
  job.job_state_changed = true;
}

void RemoveStored(Job& job, const VersionState& version, uint32_t tiers) {
  // Called for every report of a removal, while a version may have thousands of other replicas.
  const auto has_some = [&](const TierTraits& traits) {
    return (tiers & TierBit(traits.tier)) != 0 && version.any_at(traits.tier);
  };
  if (version.damaged.empty() && std::none_of(kTierTable.begin(), kTierTable.end(), has_some)) {
    return;
  }
  version.ForEachReplica([&](const Replica& replica) {
    if ((tiers & TierBit(replica.tier)) == 0) return;
    job.removals.insert({replica.node, version.id, replica.tier});
  });
}

bool IsDead(const Job& job, VersionId version) {
  if (version.incarnation < job.incarnation) return true;
  if (version.step <= job.abort_floor && job.abort_floor.value != 0) return true;
  for (auto it = job.versions.rbegin(); it != job.versions.rend() && it->first > version; ++it) {
    if (it->second.tiers != 0) return true;
  }
  return false;
}

bool IsAbandoned(const Job& job, VersionId version) {
  for (auto it = job.lineages.upper_bound(version.incarnation); it != job.lineages.end(); ++it) {
    const LineageRecord& later = it->second;
    if (later.decision != Decision::kVersion || version.step <= later.restored.step) continue;
    // Another life of the store had no record of the version, so a start there did not reject it.
    const Incarnation restored = later.restored.incarnation;
    if (restored > version.incarnation && AreOfDifferentLives(job, version.incarnation, restored)) {
      continue;
    }
    return true;
  }
  return false;
}

bool IsRestorable(const Job& job, const VersionState& version) {
  return version.committed() && !IsAbandoned(job, version.id) && IsFullyAvailable(job, version);
}

bool MayBeRestorable(const Job& job, const VersionState& version) {
  return version.committed() && !IsAbandoned(job, version.id) && MayBeFullyAvailable(job, version);
}

bool IsAtSharedTier(const VersionState& version) {
  return std::ranges::any_of(kTierTable, [&](const TierTraits& traits) {
    return IsShared(traits.tier) && version.committed_at(traits.tier) &&
           version.held_at(traits.tier) == version.world;
  });
}

std::optional<VersionId> NewestCommitted(const Job& job, Tier tier) {
  for (auto it = job.versions.rbegin(); it != job.versions.rend(); ++it) {
    if (it->second.committed_at(tier) && !IsAbandoned(job, it->first)) return it->first;
  }
  return std::nullopt;
}

std::optional<VersionId> NewestOfNodes(const Job& job) {
  return std::max(NewestCommitted(job, Tier::kMemory), NewestCommitted(job, Tier::kDisk));
}

std::optional<VersionId> NewestRestorable(const Job& job) {
  for (auto it = job.versions.rbegin(); it != job.versions.rend(); ++it) {
    if (IsRestorable(job, it->second)) return it->first;
  }
  return std::nullopt;
}

std::optional<VersionId> PeerFloor(const Job& job) {
  const bool unprotected = job.lineage().peers.empty() && job.ranks_joined == job.lineage().world;
  const auto newest = NewestCommitted(job, Tier::kMemory);
  if (unprotected && newest && newest->incarnation == job.incarnation) return std::nullopt;
  return NewestCommitted(job, Tier::kPeer);
}

DamagedReplica& RecordDamage(Context& context, Job& job, VersionState& version, Rank rank,
                             Replica replica, const std::string& what) {
  job.repair_due = true;
  if (DamagedReplica* known = version.Damaged(rank, replica)) return *known;
  const std::string text =
      fmt::format("{} at {} on {}: {}", ToString(ShardKey{job.name, version.id, rank}),
                  ToString(replica.tier), PlaceName(context, replica), what);
  if (version.damage_texts.size() < kDamageTextsMax) version.damage_texts.push_back(text);
  RecordFinding(context, job.name, replica.node, DataLossError(text));
  return version.damaged.emplace_back(DamagedReplica{rank, replica});
}

}  // namespace holdfast::coord
