#include "coordinator/state/adoption.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

#include "coordinator/state/adoptable.h"
#include "coordinator/state/owner.h"
#include "coordinator/state/parity_plan.h"
#include "coordinator/state/versions.h"

namespace holdfast::coord {
namespace {
/// Whether the user to whom the job belongs here may get the versions of another life. The seals do
/// not name a user: another user may have taken the name since the store was lost.
bool OwnerMayGet(const Job& job, LifeId life, std::optional<uint32_t> named) {
  if (job.uid == kNoOwner || job.uid == kRootUser || named == job.uid) return true;
  if (job.adopted_lives.contains(life)) return true;
  return std::any_of(job.lineages.begin(), job.lineages.end(),
                     [&](const auto& entry) { return entry.second.life == life; });
}

/// Returns why the version cannot be adopted: it is incomplete, its number is not free here, or the
/// job may belong to another user here. Empty if it can be adopted. `owner` is the user whom the
/// operator names.
std::string WhyNotAdopted(const ReadContext& context, const Adoptable& adoption,
                          std::optional<uint32_t> owner) {
  if (adoption.life.value == 0) return "its seals name no life: an older Holdfast wrote them";
  if (!adoption.incomplete.empty()) return adoption.incomplete;
  auto found = context.cluster.jobs.find(adoption.job);
  if (found == context.cluster.jobs.end()) return "";
  const Job& job = found->second;
  if (!OwnerMayGet(job, adoption.life, owner)) {
    return fmt::format(
        "the job belongs to uid {} here, and nothing shows that the versions do: "
        "add --owner {} if so",
        job.uid, job.uid);
  }
  const Incarnation incarnation = adoption.version.incarnation;
  auto lineage = job.lineages.find(incarnation);
  if (lineage != job.lineages.end()) {
    const bool same = lineage->second.life == adoption.life &&
                      adoption.life != context.options.life &&
                      lineage->second.world == adoption.world;
    if (!same) {
      return fmt::format("this life of the store has its own incarnation {}", incarnation.value);
    }
  }
  if (auto known = job.versions.find(adoption.version); known != job.versions.end()) {
    if (known->second.phase == Phase::kAborted) return "it was aborted";
    return "the store has this version with other bytes";
  }
  const LifeId current = job.lineage().life;
  if (incarnation > job.incarnation && (current == context.options.life || current.value == 0)) {
    return fmt::format("the job is at incarnation {} here: start it once more, then adopt",
                       job.incarnation.value);
  }
  if (IsAbandoned(job, adoption.version)) return "a later incarnation restored an older version";
  return "";
}

/// Returns the job of the version, which is created if this life of the store does not have it.
Job& JobOf(Context& context, const Adoptable& adoption) {
  auto [found, made] = context.cluster.jobs.try_emplace(adoption.job);
  Job& job = found->second;
  if (made) {
    job.name = adoption.job;
    job.uid = kNoOwner;
    job.joined_at = job.alive_at = job.newest_at = context.at.now;
    if (auto forgotten = context.cluster.forgotten.find(job.name);
        forgotten != context.cluster.forgotten.end()) {
      job.forgotten_upto = forgotten->second.upto;
      context.cluster.forgotten.erase(forgotten);
    }
  }
  return job;
}

/// Adds the incarnation of the version, and its parity groups, unless the store has them already.
void AdoptIncarnation(Context& context, const Adoptable& adoption, Job& job) {
  const Incarnation incarnation = adoption.version.incarnation;
  const auto known = job.lineages.find(incarnation);
  const bool plan =
      !adoption.plan.empty() && (known == job.lineages.end() || known->second.peers.empty());
  if (known == job.lineages.end()) {
    LineageRecord lineage;
    lineage.job = job.name;
    lineage.incarnation = incarnation;
    // No run ID of a trainer contains a space, so this one differs from all of them.
    lineage.run_id = fmt::format("adopted {}-{}", ToString(adoption.life), incarnation.value);
    lineage.world = adoption.world;
    lineage.decision = Decision::kFresh;  // this incarnation never restores a version here
    lineage.life = adoption.life;
    lineage.peers = adoption.plan;
    job.lineages[incarnation] = lineage;
    context.effects.emplace_back(PutLineage{lineage});
  } else if (plan) {
    known->second.peers = adoption.plan;
    context.effects.emplace_back(PutLineage{known->second});
  }
  if (plan) IndexGroups(context, job, incarnation);
  if (incarnation > job.incarnation) {
    job.incarnation = incarnation;
    job.ranks_joined = 0;
    job.rank_nodes.assign(adoption.world, kNoNode);
    job.slot_bytes.assign(adoption.world, 0);
  }
}

void Know(RankShard& shard, uint64_t digest, uint64_t image_bytes) {
  shard.known = true;
  shard.digest = digest;
  shard.image_bytes = image_bytes;
}

/// Makes a quarantined replica count.
void AdoptReplica(Context& context, Job& job, VersionState& version, NodeIndex node,
                  const StoredReplica& report) {
  const Rank rank = report.identity.rank;
  Know(*version.Shard(rank), report.digest, report.image_bytes);
  version.AddReplica(rank, {node, report.tier});
  job.nodes_before.insert(node);
  if (job.subscribers.insert(node).second) job.job_state_to.insert(node);
  context.cluster.nodes[node].other_lives.erase({report.identity.key(), report.tier});
}

/// Makes the quarantined replicas of the version count, and its parity where the groups keep it.
void AdoptReplicas(Context& context, const Adoptable& adoption, Job& job, VersionState& version) {
  for (const auto& [rank, held] : adoption.replicas) {
    for (const auto& [node, report] : held) AdoptReplica(context, job, version, node, report);
  }
  for (const auto& [rank, shard] : adoption.decoded) {
    Know(version.ranks[rank], shard.digest, shard.image_bytes);
  }
  for (const RankShard& shard : version.ranks) version.bytes += shard.image_bytes;
  const GroupIndex* groups = job.groups_of(version.id.incarnation);
  if (groups == nullptr || adoption.plan.empty()) return;
  for (const auto& [number, held] : adoption.parity) {
    for (const auto& [node, report] : held) {
      if (groups->members[number].node == node) AdoptReplica(context, job, version, node, report);
    }
  }
}

void AdoptVersion(Context& context, const Adoptable& adoption) {
  Job& job = JobOf(context, adoption);
  AdoptIncarnation(context, adoption, job);
  VersionState& version = CreateVersion(job, adoption.version, adoption.world, Phase::kCommitted);
  version.adopted_from = adoption.life;
  version.wall_nanos = context.at.wall_nanos;
  AdoptReplicas(context, adoption, job, version);
  if (version.held_at(Tier::kMemory) == version.world) version.tiers |= TierBit(Tier::kMemory);
  // If some ranks' shards are only in memory and those of others only on disk, or are decoded, the
  // version counts as committed on disk, and repairs write the missing shards there.
  const bool on_disk = version.held_at(Tier::kDisk) == version.world || version.tiers == 0;
  if (on_disk) version.tiers |= TierBit(Tier::kDisk);
  // If the job has started again since, its retention must not remove all adopted versions.
  version.pinned = on_disk && job.lineage().life == context.options.life &&
                   job.adopted_lives.count(adoption.life) == 0;
  job.adopted_lives.insert(adoption.life);
  StoreVersion(context, job, version, 0);
  StoreJob(context, job);
  ++job.committed_total;
  job.changed = true;
  job.job_state_changed = true;
  job.repair_due = true;
  RecordFinding(context, job.name, kNoNode,
                Status(ErrorCode::kAborted,
                       fmt::format("version {} of life {} was adopted: it is complete, and {}",
                                   ToString(adoption.version), ToString(adoption.life),
                                   adoption.commit == CommitEvidence::kProven
                                       ? "was committed with these bytes"
                                       : "no node knows whether it was committed")));
}

/// Gives the job an owner, or all jobs that have none.
Status SetOwner(Context& context, const AdoptRequested& event) {
  if (event.job.empty()) {
    for (auto& [name, job] : context.cluster.jobs) {
      if (job.uid != kNoOwner) continue;
      job.uid = *event.owner;
      job.job_state_changed = true;
      StoreJob(context, job);
    }
    return Status::Ok();
  }
  const auto found = context.cluster.jobs.find(event.job);
  if (found == context.cluster.jobs.end()) {
    return NotFoundError(fmt::format("no job '{}', so it gets no owner", event.job));
  }
  Job& job = found->second;
  if (job.uid != kNoOwner && job.uid != *event.owner) {
    return FailedPreconditionError(
        fmt::format("job '{}' belongs to uid {} already", job.name, job.uid));
  }
  job.uid = *event.owner;
  job.job_state_changed = true;
  StoreJob(context, job);
  return Status::Ok();
}
}  // namespace

void OnAdoptRequested(Context& context, const AdoptRequested& event) {
  Reply reply;
  // One call adopts an incarnation from one life only: the life of its newest adoptable version.
  std::map<std::pair<std::string, Incarnation>, LifeId> first;
  for (const Adoptable& one : FindAdoptable(context, event)) {
    AdoptedVersion adopted;
    adopted.job = one.job;
    adopted.life = one.life;
    adopted.version = one.version;
    adopted.world = one.world;
    adopted.ranks = static_cast<uint32_t>(one.replicas.size());
    adopted.decoded = static_cast<uint32_t>(one.decoded.size());
    for (const auto& [rank, replicas] : one.replicas) {
      adopted.bytes += replicas.front().second.image_bytes;
    }
    for (const auto& [rank, shard] : one.decoded) adopted.bytes += shard.image_bytes;
    const bool in_memory = one.held_at(Tier::kMemory) == one.world;
    if (in_memory) adopted.tiers |= TierBit(Tier::kMemory);
    if (!in_memory || one.held_at(Tier::kDisk) == one.world) adopted.tiers |= TierBit(Tier::kDisk);
    adopted.commit = one.commit;
    adopted.why_not = WhyNotAdopted(context, one, event.owner);
    if (adopted.why_not.empty()) {
      const auto life = first.try_emplace({one.job, one.version.incarnation}, one.life).first;
      if (life->second != one.life) {
        adopted.why_not = fmt::format("life {} has the same incarnation: name one with --life",
                                      ToString(life->second));
      } else if (!event.dry_run) {
        AdoptVersion(context, one);
      }
    }
    reply.adopted.push_back(std::move(adopted));
  }
  if (event.owner && !event.dry_run) reply.outcome = SetOwner(context, event);
  Answer(context, event.request, std::move(reply));
}

void AdoptWhatIsComplete(Context& context) {
  if (!context.options.rebuild || !std::exchange(context.cluster.adoption_due, false)) return;
  OnAdoptRequested(context, AdoptRequested{});
}

}  // namespace holdfast::coord
