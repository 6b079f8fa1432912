#include "coordinator/state/commit.h"

#include <fmt/format.h>

#include <algorithm>

#include "coordinator/state/forgotten.h"
#include "coordinator/state/invariants.h"
#include "coordinator/state/lives.h"
#include "coordinator/state/restore_plan.h"
#include "coordinator/state/survivability.h"
#include "coordinator/state/targets.h"
#include "coordinator/state/tensor_replicas.h"
#include "coordinator/state/versions.h"

namespace holdfast::coord {
namespace {
// Far above any real incarnation. A reported number from here on is not a valid incarnation.
constexpr uint64_t kIncarnationMax = uint64_t{1} << 48;

/// Creates the version of `report`, which is the first report of it. A version that can never be
/// committed is created as aborted, or as removing if the replica is on disk. Returns nullptr for a
/// replica in memory that its agent frees after a newer commit anyway, and for a version of an
/// incarnation of another life, which only an adoption creates.
VersionState* AdmitNew(Context& context, NodeIndex node, const StoredReplica& report, Job& job) {
  if (!IsDead(job, report.identity.version)) {
    if (IsOfOtherLife(context, job.lineages.at(report.identity.version.incarnation))) {
      QuarantineReplica(context, node, report);
      return nullptr;
    }
    return &CreateVersion(job, report.identity.version, report.identity.world, Phase::kPending);
  }
  // The version has no record any more, although it may have been committed once. A replica on disk
  // is removed. The agent frees a replica in memory after a newer commit.
  if (IsStored(report.tier)) {
    return &CreateVersion(job, report.identity.version, report.identity.world, Phase::kRemoving);
  }
  if (report.identity.version < NewestCommitted(job, Tier::kMemory)) return nullptr;
  return &CreateVersion(job, report.identity.version, report.identity.world, Phase::kAborted);
}

/// Whether `node` is planned to keep the parity shard `shard`. Records a finding if not.
bool IsPlannedNode(Context& context, NodeIndex node, const ShardKey& shard, Job& job) {
  auto refuse = [&](const std::string& why) {
    RecordFinding(context, job.name, node,
                  FailedPreconditionError(
                      fmt::format("{}: {}; the report does not count", ToString(shard), why)));
    return false;
  };
  const GroupIndex* groups = job.groups_of(shard.version.incarnation);
  if (groups == nullptr) {
    return refuse(
        fmt::format("incarnation {} has no parity groups", shard.version.incarnation.value));
  }
  const uint32_t number = ParityNode(shard.rank);
  if (number >= groups->members.size()) {
    return refuse(fmt::format("the parity groups have {} nodes", groups->members.size()));
  }
  const NodeIndex planned = groups->members[number].node;
  if (planned == node) return true;
  return refuse(fmt::format("number {} is node {}", number, context.cluster.nodes[planned].name));
}

/// Whether `report`, of a parity shard, comes from the planned node.
bool AdmitParity(Context& context, NodeIndex node, const StoredReplica& report, Job& job) {
  const Incarnation incarnation = report.identity.version.incarnation;
  auto known = job.versions.find(report.identity.version);
  const bool removed = known == job.versions.end() || known->second.phase == Phase::kRemoving;
  // A plan is erased with the last version of its incarnation. Parity that is still on a disk is
  // removed.
  if (removed && incarnation < job.incarnation && job.groups_of(incarnation) == nullptr &&
      report.tier == Tier::kDisk) {
    job.removals.insert({node, report.identity.version, report.tier});
    job.changed = true;
    return false;
  }
  if (!IsPlannedNode(context, node, {job.name, report.identity.version, report.identity.rank},
                     job)) {
    return false;
  }
  if (incarnation == job.incarnation && report.tier == Tier::kMemory) {
    // Also for a version without a record: the target may have selected it.
    job.targets[Tier::kPeer].Acknowledge(report.identity.rank, report.identity.version.step);
    job.changed = true;
  }
  return true;
}

/// Returns the version that `report` belongs to, or nullptr if the report is refused. A finding
/// states why, except for replicas of superseded versions in memory and for removed parity.
VersionState* AdmitReplica(Context& context, NodeIndex node, const StoredReplica& report,
                           Job& job) {
  // Called for every replica of a large world: texts are made only for findings.
  const auto shard = [&] {
    return ToString(ShardKey{job.name, report.identity.version, report.identity.rank});
  };
  auto lineage = job.lineages.find(report.identity.version.incarnation);
  if (lineage == job.lineages.end()) {
    RecordFinding(
        context, job.name, node,
        FailedPreconditionError(fmt::format(
            "{}: the job is at incarnation {} and never had this one; the replica is kept and does "
            "not count",
            shard(), job.incarnation.value)));
    QuarantineReplica(context, node, report);
    return nullptr;
  }
  if (lineage->second.world != report.identity.world) {
    RecordFinding(
        context, job.name, node,
        InvalidArgumentError(fmt::format("{}: saved in a world of {}, that incarnation has {}",
                                         shard(), report.identity.world, lineage->second.world)));
    return nullptr;
  }
  if (IsParity(report.identity.rank) && !AdmitParity(context, node, report, job)) return nullptr;
  auto found = job.versions.find(report.identity.version);
  if (found == job.versions.end()) return AdmitNew(context, node, report, job);
  const RankShard& known = *found->second.Shard(report.identity.rank);
  if (known.known && known.digest != report.digest) {
    RecordFinding(
        context, job.name, node,
        DataLossError(fmt::format("{} at {}: digest {:016x} differs from the known {:016x}; this "
                                  "replica does not count",
                                  shard(), ToString(report.tier), report.digest, known.digest)));
    return nullptr;
  }
  return &found->second;
}

/// Adds a replica with bad chunks. It does not count as a replica, but until it is repaired, its
/// parity group can decode from its good chunks.
void AddDamagedReplica(Context& context, NodeIndex node, const StoredReplica& report, Job& job,
                       VersionState& version) {
  const Replica replica = ReplicaAt(node, report.tier);
  version.RemoveReplica(report.identity.rank, replica);
  RecordDamage(context, job, version, report.identity.rank, replica, report.damage).readable = true;
  if (job.subscribers.insert(node).second) job.job_state_to.insert(node);
  job.changed = true;
  if (version.phase != Phase::kAborted && version.phase != Phase::kRemoving) return;
  job.job_state_to.insert(node);
  if (IsStored(report.tier)) job.removals.insert({replica.node, version.id, replica.tier});
}

/// Aborts older pending versions that the rank of `newer` has not reported. A rank seals its steps
/// in order, so it will never report these versions: its trainer was cut off from its agent when
/// they were saved. The slots of other ranks must not stay occupied by them.
void AbortSuperseded(Context& context, Job& job, const StoredReplica& newer) {
  auto it = job.versions.lower_bound(newer.identity.version);
  while (it != job.versions.begin()) {
    VersionState& version = (--it)->second;
    // A commit has aborted all pending versions older than it.
    if (version.id.incarnation != job.incarnation || version.committed()) return;
    const bool skipped = !version.ranks[newer.identity.rank.value].known;
    if (version.phase == Phase::kPending && skipped) AbortVersion(context, job, version, true);
  }
}

/// Updates the job's newest step, the rank's node and the tier's target from a report of a rank's
/// shard.
void UpdateRankProgress(Context& context, NodeIndex node, const StoredReplica& report,
                        bool inventory, Job& job) {
  if (report.identity.version.incarnation != job.incarnation) return;
  if (report.identity.version.step > job.newest_seen) job.newest_at = context.at.now;
  job.newest_seen = std::max(job.newest_seen, report.identity.version.step);
  NodeIndex& place = job.rank_nodes[report.identity.rank.value];
  if (place == kNoNode && report.tier == Tier::kMemory) {
    place = node;
    ++job.ranks_joined;
    // The coordinator may have ended before it recorded that the node joined.
    AddNode(job, node);
    ResetRestoreTask(job, report.identity.rank);
  }
  if (TierTarget* target = job.target(report.tier)) {
    target->Acknowledge(report.identity.rank, report.identity.version.step);
  }
  if (report.tier == Tier::kMemory && !inventory) AbortSuperseded(context, job, report);
}

void TryCommit(Context& context, Job& job, VersionState& version, Tier tier) {
  if (version.phase != Phase::kPending && version.phase != Phase::kCommitted) return;
  if (version.committed_at(tier)) return;
  // If parity could not be built in memory, it may have been built on disk since.
  if ((version.failed_tiers & TierBit(tier)) != 0 && tier != Tier::kPeer) return;
  const bool complete =
      tier == Tier::kPeer ? IsCompleteAtPeer(job, version) : version.held_at(tier) == version.world;
  if (!complete) return;
  // Only the current incarnation commits new versions; a committed one may reach more tiers later.
  if (version.id.incarnation != job.incarnation && version.tiers == 0) return;
  CheckCommit(context, job, version, tier);
  if (version.tiers == 0) {
    CompareTensorReplicas(context, job, version);
    version.wall_nanos = context.at.wall_nanos;
    ++job.committed_total;
  }
  version.phase = Phase::kCommitted;
  version.tiers |= TierBit(tier);
  version.failed_tiers &= ~TierBit(tier);
  version.fully_available.reset();
  version.bytes = 0;
  for (const RankShard& shard : version.ranks) version.bytes += shard.image_bytes;
  StoreVersion(context, job, version, TierBit(tier));
  job.record_due = job.record_due || job.unrecorded != 0;
  if (version.id.incarnation == job.incarnation) {
    for (auto& [id, older] : job.versions) {
      if (id >= version.id) break;
      // No abort record is needed: this commit makes older pending versions dead.
      if (older.phase == Phase::kPending) AbortVersion(context, job, older, false);
    }
    if (TierTarget* target = job.target(tier)) target->Resolve(version.id.step);
  }
  job.copies[tier].committed_at = context.at.now;
  job.changed = true;
  job.job_state_changed = true;
  job.retention_due = true;
  if (tier != Tier::kMemory) job.repair_due = true;
}

void OnReplicaStored(Context& context, NodeIndex node, const StoredReplica& report,
                     bool inventory) {
  if (RejectForgotten(context, node, report)) return;
  if (report.identity.version.incarnation.value < kIncarnationMax) {
    Incarnation& highest = context.cluster.nodes[node].reported[report.identity.job];
    highest = std::max(highest, report.identity.version.incarnation);
  }
  if (!CountsInThisLife(context, report)) return QuarantineReplica(context, node, report);
  auto found = context.cluster.jobs.find(report.identity.job);
  if (found == context.cluster.jobs.end() || !HasReplicas(report.tier)) {
    RecordFinding(context, report.identity.job, node,
                  FailedPreconditionError(
                      fmt::format("{} at {}: unknown job or tier; the replica does not count",
                                  ToString(report.identity.key()), ToString(report.tier))));
    if (found == context.cluster.jobs.end()) QuarantineReplica(context, node, report);
    return;
  }
  Job& job = found->second;
  VersionState* version = AdmitReplica(context, node, report, job);
  if (version == nullptr) return;
  const Replica replica = ReplicaAt(node, report.tier);
  if (!report.damage.empty()) return AddDamagedReplica(context, node, report, job, *version);
  if (DamagedReplica* damaged = version->Damaged(report.identity.rank, replica)) {
    if (inventory) {  // the replica that is known to be damaged is listed again
      damaged->readable = true;
      job.changed = true;
      return;
    }
    version->damaged.erase(version->damaged.begin() + (damaged - version->damaged.data()));
  }
  RankShard& shard = *version->Shard(report.identity.rank);
  shard.known = true;
  shard.digest = report.digest;
  shard.image_bytes = report.image_bytes;
  bool added = version->AddReplica(report.identity.rank, replica);
  if (job.subscribers.insert(node).second) job.job_state_to.insert(node);
  if (!IsParity(report.identity.rank)) UpdateRankProgress(context, node, report, inventory, job);
  if (!IsParity(report.identity.rank) && version->phase == Phase::kPending) {
    for (const ReplicaSample& sample : report.samples) {
      const TensorBytes bytes{sample.tensor, sample.first, sample.first + sample.bytes};
      version->samples[bytes][report.identity.rank.value] = sample.crc;
    }
  }
  // Retention has dropped the version at this tier and keeps it at another one.
  const bool dropped = version->committed_stored() && IsStored(report.tier) &&
                       (version->failed_tiers & TierBit(report.tier)) != 0;
  if (version->phase == Phase::kAborted || version->phase == Phase::kRemoving || dropped) {
    job.job_state_to.insert(node);
    if (IsStored(report.tier)) job.removals.insert({replica.node, version->id, replica.tier});
  } else {
    if (!IsParity(report.identity.rank)) TryCommit(context, job, *version, report.tier);
    TryCommit(context, job, *version, Tier::kPeer);
  }
  job.changed = job.changed || added;
}

/// Records that the version will not be committed at `tier`. Other tiers are not affected.
void FailTier(Context& context, Job& job, VersionState& version, Tier tier) {
  if (version.phase != Phase::kPending && version.phase != Phase::kCommitted) return;
  if (((version.tiers | version.failed_tiers) & TierBit(tier)) != 0) return;
  version.failed_tiers |= TierBit(tier);
  if (version.recorded) StoreVersion(context, job, version, 0);
  TierTarget* target = job.target(tier);
  if (target != nullptr && version.id.incarnation == job.incarnation) {
    target->Resolve(version.id.step);
  }
  job.retention_due = true;
}
}  // namespace

void OnReplicasStored(Context& context, NodeIndex node, std::vector<StoredReplica> replicas,
                      bool inventory) {
  // In version order, so that a late report commits an older version before a newer one supersedes
  // it.
  std::stable_sort(replicas.begin(), replicas.end(),
                   [](const StoredReplica& a, const StoredReplica& b) {
                     return a.identity.version < b.identity.version;
                   });
  for (const StoredReplica& report : replicas) OnReplicaStored(context, node, report, inventory);
}

void OnReplicaFailed(Context& context, NodeIndex node, const FailedReplica& failed) {
  auto found = context.cluster.jobs.find(failed.key.job);
  if (found == context.cluster.jobs.end()) return;
  Job& job = found->second;
  const ShardKey key{job.name, failed.key.version, failed.key.rank};
  auto lineage = job.lineages.find(failed.key.version.incarnation);
  if (lineage == job.lineages.end() || IsOfOtherLife(context, lineage->second)) return;
  const bool parity = IsParity(failed.key.rank);
  if (parity ? !IsPlannedNode(context, node, key, job)
             : failed.key.rank.value >= lineage->second.world)
    return;
  const bool current = failed.key.version.incarnation == job.incarnation;
  if (current && failed.key.version.step > job.newest_seen) job.newest_at = context.at.now;
  if (current) job.newest_seen = std::max(job.newest_seen, failed.key.version.step);
  if (current && parity && failed.tier != Tier::kDisk) {
    // Also for a version without a record: the target may have selected it.
    job.targets[Tier::kPeer].Resolve(failed.key.version.step);
    job.changed = true;
  }
  auto known = job.versions.find(failed.key.version);
  if (known == job.versions.end()) {
    if (IsDead(job, failed.key.version)) return;
    CreateVersion(job, failed.key.version, lineage->second.world, Phase::kPending);
    known = job.versions.find(failed.key.version);
  }
  VersionState& version = known->second;
  RecordFinding(context, job.name, node,
                AbortedError(fmt::format("{} will not reach {}: {}", ToString(key),
                                         ToString(failed.tier), failed.why)));
  job.changed = true;
  if (!parity) {
    version.RemoveReplica(failed.key.rank, ReplicaAt(node, failed.tier));
    return failed.tier == Tier::kMemory ? AbortVersion(context, job, version, true)
                                        : FailTier(context, job, version, failed.tier);
  }
  // Parity counts for tier peer and is built in memory, so its failure on disk fails no tier.
  const bool on_disk = failed.tier == Tier::kDisk;
  version.RemoveReplica(failed.key.rank, {node, on_disk ? Tier::kDisk : Tier::kMemory});
  if (!on_disk) FailTier(context, job, version, Tier::kPeer);
}

void OnReplicaRemoved(Context& context, NodeIndex node, const RemovedReplica& removed) {
  OnForgottenRemoved(context, node, removed);
  DropQuarantined(context, node, removed);
  auto found = context.cluster.jobs.find(removed.key.job);
  if (found == context.cluster.jobs.end()) return;
  auto version = found->second.versions.find(removed.key.version);
  if (version == found->second.versions.end()) return;
  Job& job = found->second;
  const Replica replica = ReplicaAt(node, removed.tier);
  if (version->second.RemoveReplica(removed.key.rank, replica)) {
    job.changed = true;
    if (IsStored(removed.tier) && version->second.committed()) job.repair_due = true;
  }
  if (DamagedReplica* damaged = version->second.Damaged(removed.key.rank, replica)) {
    damaged->readable = false;
  }
  if (removed.damage.empty() || version->second.Shard(removed.key.rank) == nullptr) return;
  RecordDamage(context, job, version->second, removed.key.rank, replica, removed.damage);
}

}  // namespace holdfast::coord
