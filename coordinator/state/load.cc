#include "coordinator/state/load.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "coordinator/state/invariants.h"
#include "coordinator/state/parity_plan.h"
#include "coordinator/state/targets.h"
#include "coordinator/state/versions.h"

namespace holdfast::coord {
namespace {
Status BadRecords(std::string text) {
  return DataLossError("the metadata store contradicts itself: " + std::move(text));
}

void LoadJob(Context& context, const JobRecord& record) {
  if (record.forgotten_upto == record.incarnation && record.incarnation.value != 0) {
    ForgottenJob& forgotten = context.cluster.forgotten[record.job];
    forgotten.upto = record.forgotten_upto;
    for (const std::string& node : record.nodes_before) {
      forgotten.left[InternNode(context, node)] = std::nullopt;
    }
    return;
  }
  Job& job = context.cluster.jobs[record.job];
  job.name = record.job;
  job.uid = record.uid;
  job.incarnation = record.incarnation;
  job.abort_floor = record.abort_floor;
  for (const std::string& node : record.nodes_now) job.nodes_now.insert(InternNode(context, node));
  for (const std::string& node : record.nodes_before) {
    job.nodes_before.insert(InternNode(context, node));
  }
  job.subscribers = job.nodes_now;
  job.joined_at = context.at.now;
  job.finished = record.finished;
  job.keep_last = record.keep_last;
  job.keep_every = record.keep_every;
  job.forgotten_upto = record.forgotten_upto;
  job.ended_wall_nanos = record.ended_wall_nanos;
  job.alive_at = job.newest_at = job.ended_at = context.at.now;
}

Status LoadLineage(Context& context, const LineageRecord& record) {
  auto job = context.cluster.jobs.find(record.job);
  if (job == context.cluster.jobs.end() || record.incarnation > job->second.incarnation ||
      !IsValidPlan(record)) {
    return BadRecords(
        fmt::format("incarnation {} of job {}", record.incarnation.value, record.job));
  }
  job->second.lineages[record.incarnation] = record;
  return Status::Ok();
}

Status LoadVersion(Context& context, const VersionRecord& record) {
  const auto bad = [&record] {
    return BadRecords(fmt::format("version {} of job {}", ToString(record.version), record.job));
  };
  auto found = context.cluster.jobs.find(record.job);
  if (found == context.cluster.jobs.end() || record.world == 0 || record.world > kWorldMax ||
      (!record.digests.empty() && record.digests.size() != record.world)) {
    return bad();
  }
  Job& job = found->second;
  auto lineage = job.lineages.find(record.version.incarnation);
  if (lineage != job.lineages.end() && !lineage->second.peers.empty()) {
    if (record.world != lineage->second.world) return bad();
    if (job.groups_of(lineage->first) == nullptr) IndexGroups(context, job, lineage->first);
  }
  VersionState& version = CreateVersion(job, record.version, record.world, record.phase);
  if (version.parity.size() < record.parity_digests.size()) return bad();
  version.tiers = record.tiers;
  version.failed_tiers = record.failed_tiers;
  version.pinned = record.pinned;
  version.recorded = true;
  version.wall_nanos = record.wall_nanos;
  version.bytes = record.bytes;
  version.disputes = record.disputes;
  version.verification = record.verification;
  if (record.version.incarnation == job.incarnation && version.committed()) {
    // Records come in version order: the newest version has the current disputes.
    job.disputes = record.disputes;
  }
  version.adopted_from = record.adopted_from;
  if (record.adopted_from.value != 0) job.adopted_lives.insert(record.adopted_from);
  if (!record.digests.empty()) version.commit_digest = CommitDigest(record.digests);
  if (record.commit_digest != 0 && record.commit_digest != version.commit_digest) return bad();
  const auto know = [](RankShard& shard, uint64_t digest) {
    shard.known = true;
    shard.digest = digest;
  };
  for (size_t i = 0; i < record.digests.size(); ++i) know(version.ranks[i], record.digests[i]);
  for (size_t i = 0; i < record.parity_digests.size(); ++i) {
    if (record.parity_digests[i] != 0) know(version.parity[i], record.parity_digests[i]);
  }
  // No node reports the replicas of a shared tier when it attaches: by the record, each rank
  // has one. A reader that does not find it reports that. The replicas of an earlier life of the
  // store are in the directory of that life, which agents do not read.
  const LifeId opened_in = lineage == job.lineages.end() ? LifeId{} : lineage->second.life;
  const bool other_life =
      opened_in.value != 0 && context.options.life.value != 0 && opened_in != context.options.life;
  for (const TierTraits& traits : kTierTable) {
    if (other_life || !IsShared(traits.tier) || !version.committed_at(traits.tier)) continue;
    for (uint32_t rank = 0; rank < version.world; ++rank) {
      version.AddReplica(Rank{rank}, ReplicaAt(kNoNode, traits.tier));
    }
  }
  if (record.version.incarnation == job.incarnation) {
    job.newest_seen = std::max(job.newest_seen, record.version.step);
  }
  return Status::Ok();
}
}  // namespace

Status LoadRecords(Context& context, const Records& records) {
  // Request numbers of different epochs never collide.
  context.cluster.next_prepare = context.options.epoch.value << 32;
  context.cluster.loaded_at = context.at.now;
  for (const DrainRecord& record : records.drains) {
    const NodeIndex index = InternNode(context, record.node);
    context.cluster.nodes[index].drain = record;
    context.cluster.leaving.insert(index);
  }
  for (const JobRecord& record : records.jobs) LoadJob(context, record);
  for (const RunRecord& record : records.runs) {
    auto& runs = HasEnded(record.phase) ? context.cluster.ended_runs : context.cluster.active_runs;
    runs.insert(record.spec.job);
  }
  for (const TokenRecord& record : records.tokens) context.cluster.tokens[record.id] = record;
  for (const IdentityRecord& record : records.identities) {
    context.cluster.identities[{record.role, record.name}] = record;
  }
  for (const LineageRecord& record : records.lineages) {
    HOLDFAST_RETURN_IF_ERROR(LoadLineage(context, record));
  }
  for (const VersionRecord& record : records.versions) {
    HOLDFAST_RETURN_IF_ERROR(LoadVersion(context, record));
  }
  for (auto& [name, job] : context.cluster.jobs) {
    if (job.lineages.count(job.incarnation) == 0) {
      return BadRecords(fmt::format("job {} has no incarnation {}", name, job.incarnation.value));
    }
    job.rank_nodes.assign(job.lineage().world, kNoNode);
    job.slot_bytes.assign(job.lineage().world, 0);
    if (!job.lineage().peers.empty() && job.groups_of(job.incarnation) == nullptr) {
      IndexGroups(context, job, job.incarnation);
    }
    job.plan.open = job.lineage().decision != Decision::kFresh;
    if (job.newest_seen.value == 0) continue;
    RestartTargets(job, Step{job.newest_seen.value + 1});
    ContinueAtPeer(job);
  }
  return Status::Ok();
}

}  // namespace holdfast::coord
