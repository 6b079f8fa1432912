#include "coordinator/server/answers.h"

#include "coordinator/api/convert.h"
#include "coordinator/api/tier_fields.h"

namespace holdfast::coord {
namespace {
const char* NameOf(Phase phase) {
  switch (phase) {
    case Phase::kPending:
      return "pending";
    case Phase::kCommitted:
      return "committed";
    case Phase::kAborted:
      return "aborted";
    case Phase::kRemoving:
      return "removing";
  }
  return "unknown";
}

const char* NameOf(JobPhase phase) {
  switch (phase) {
    case JobPhase::kRunning:
      return "running";
    case JobPhase::kEnded:
      return "ended";
    case JobPhase::kFinished:
      return "finished";
  }
  return "unknown";
}

void Fill(const NodeStatus& status, pb::NodeStatus* node) {
  node->set_node(status.name);
  node->set_alive(status.alive);
  node->set_data_address(status.data_address);
  node->set_held_memory_bytes(status.held_memory_bytes);
  node->set_held_disk_bytes(status.held_disk_bytes);
  for (const std::string& warning : status.health.warnings) node->add_warnings(warning);
  node->set_disk_free_percent(status.health.disk_free_percent);
  if (status.health.arena) ToProto(*status.health.arena, node->mutable_arena());
  node->set_seen_wall_nanos(status.seen_wall_nanos);
  for (const GroupMembershipStatus& membership : status.memberships) {
    pb::GroupMembership* wire = node->add_memberships();
    wire->set_job(membership.job);
    wire->set_group(membership.group);
    wire->set_number(membership.number);
    wire->set_position(membership.position);
    wire->set_members(membership.members);
    wire->set_parity(membership.parity);
  }
  node->set_held_parity_bytes(status.held_parity_bytes);
  node->mutable_labels()->insert(status.labels.begin(), status.labels.end());
  node->set_peer_address(status.peer_address);
  node->set_departing(status.alive && status.health.departing);
  if (status.drain) {
    node->set_draining(true);
    node->set_drain_why(status.drain->why);
  }
  for (const OtherLifeStatus& other : status.other_lives) {
    pb::OtherLife* wire = node->add_other_lives();
    wire->set_life(other.life.value);
    wire->set_job(other.job);
    wire->set_shards(other.shards);
    ToProto(other.newest, wire->mutable_newest());
  }
}

void Fill(const JobStatus& status, pb::JobStatus* job) {
  job->set_job(status.name);
  job->set_uid(status.uid);
  job->set_incarnation(status.incarnation.value);
  job->set_world(status.world);
  job->set_ranks_joined(status.ranks_joined);
  for (const TierTraits& traits : kTierTable) {
    ToProto(status.committed[traits.tier], MutableCommittedAt(job, traits.tier));
  }
  ToProto(status.copying[Tier::kRemote], job->mutable_remote_copying());
  ToProto(status.restorable, job->mutable_restorable());
  if (status.restorable) {
    job->set_restorable_tier(static_cast<uint32_t>(status.restorable_tier));
  }
  job->set_not_restorable_why(status.not_restorable_why);
  job->set_committed_wall_nanos(status.committed_wall_nanos);
  job->set_committed_total(status.committed_total);
  job->set_aborted_total(status.aborted_total);
  job->set_pending_versions(status.pending_versions);
  job->set_newest_seen_step(status.newest_seen.value);
  ToProto(status.peer_target, job->mutable_peer_target());
  job->set_peer_target_held(status.peer_target_held);
  job->set_peer_members(status.peer_members);
  job->set_not_protected_why(status.not_protected_why);
  job->set_peer_target_step(status.peer_target_step.value);
  for (const UnderProtectedStatus& lacks : status.under_protected) {
    pb::UnderProtected* wire = job->add_under_protected();
    ToProto(lacks.version, wire->mutable_version());
    wire->set_shards(lacks.shards);
    wire->set_present(lacks.present);
    wire->set_ordered(lacks.ordered);
    wire->set_why(lacks.why);
  }
  job->set_state(NameOf(status.phase));
  job->set_not_durable_why(status.not_durable_why);
  job->set_ended_wall_nanos(status.ended_wall_nanos);
  job->set_keep_last(status.keep_last);
  job->set_keep_every(status.keep_every);
}

void Fill(const VersionStatus& status, pb::VersionInfo* info) {
  ToProto(status.version, info->mutable_version());
  info->set_state(NameOf(status.phase));
  info->set_committed_tiers(status.committed_tiers);
  info->set_available_tiers(status.available_tiers);
  info->set_world(status.world);
  info->set_bytes(status.bytes);
  info->set_wall_nanos(status.wall_nanos);
  info->set_pinned(status.pinned);
  info->set_restorable(status.restorable);
  info->set_why_not(status.why_not);
  info->set_abandoned(status.abandoned);
  info->set_survives(status.survives);
  for (const std::string& text : status.disputed) info->add_disputed(text);
  info->set_commit_digest(status.commit_digest);
  if (!status.verification) return;
  pb::Verification* verification = info->mutable_verification();
  verification->set_wall_nanos(status.verification->wall_nanos);
  verification->set_deep(status.verification->deep);
  verification->set_ok(status.verification->ok);
  verification->set_damaged(status.verification->damaged);
  verification->set_missing(status.verification->missing);
  verification->set_unchecked(status.verification->unchecked);
  verification->set_left_out(status.verification->left_out);
}
}  // namespace

void FillStatus(const State& state, const std::string& cluster, Epoch epoch, const std::string& job,
                pb::GetStatusReply* reply) {
  reply->set_cluster(cluster);
  reply->set_epoch(epoch.value);
  reply->set_life(state.life().value);
  reply->set_keep_last(state.keep_last());
  reply->set_attaching(state.attaching());
  for (const RefusedNode& status : state.Refused()) {
    pb::RefusedNode* refused = reply->add_refused();
    refused->set_node(status.node);
    refused->set_why(status.why);
    refused->set_wall_nanos(status.wall_nanos);
  }
  for (const NodeStatus& status : state.Nodes()) Fill(status, reply->add_nodes());
  auto jobs = state.Jobs(job);
  ToProto(jobs ? Status::Ok() : jobs.error(), reply->mutable_outcome());
  if (!jobs) return;
  for (const JobStatus& status : *jobs) Fill(status, reply->add_jobs());
}

void FillAdopted(const std::vector<AdoptedVersion>& adopted, pb::AdoptReply* reply) {
  for (const AdoptedVersion& one : adopted) {
    pb::AdoptedVersion* wire = reply->add_versions();
    wire->set_decoded(one.decoded);
    wire->set_job(one.job);
    wire->set_life(one.life.value);
    ToProto(one.version, wire->mutable_version());
    wire->set_world(one.world);
    wire->set_ranks(one.ranks);
    wire->set_bytes(one.bytes);
    wire->set_tiers(one.tiers);
    wire->set_why_not(one.why_not);
    wire->set_commit(static_cast<uint32_t>(one.commit));
  }
}

void FillVersions(const State& state, const pb::ListVersionsRequest& request,
                  pb::ListVersionsReply* reply) {
  auto versions = state.Versions(request.job());
  ToProto(versions ? Status::Ok() : versions.error(), reply->mutable_outcome());
  if (!versions) return;
  for (const VersionStatus& status : *versions) {
    if (request.restorable_only() && !status.restorable) continue;
    Fill(status, reply->add_versions());
  }
}

void FillRestorePlan(const State& state, const pb::PlanRestoreRequest& request,
                     pb::PlanRestoreReply* reply) {
  auto fill = [&]() -> Status {
    std::optional<Tier> tier;
    if (request.tier() != 0) {
      HOLDFAST_ASSIGN_OR_RETURN(tier, TierFromNumber(request.tier()));
    }
    const std::optional<VersionId> wanted = AnyVersion(request.version());
    HOLDFAST_ASSIGN_OR_RETURN(const RestorePlanStatus status,
                              request.all_replicas()
                                  ? state.PlanAllReplicas(request.job(), wanted, request.as_is())
                                  : state.PlanRestore(request.job(), wanted, tier));
    ToProto(status.version, reply->mutable_version());
    reply->set_world(status.world);
    const auto fill_source = [](const ReplicaLocation& source, pb::ShardSource* wire) {
      wire->set_rank(source.rank.value);
      wire->set_node(source.node);
      wire->set_address(source.address);
      wire->set_peer_address(source.peer_address);
      wire->set_tier(static_cast<uint32_t>(source.tier));
      wire->set_image_bytes(source.image_bytes);
      wire->set_digest(source.digest);
    };
    for (const ReplicaLocation& source : status.sources) fill_source(source, reply->add_sources());
    for (const ReplicaLocation& source : status.parity) fill_source(source, reply->add_parity());
    for (const GroupPlan& group : status.groups) ToProto(group, reply->add_groups());
    return Status::Ok();
  };
  ToProto(fill(), reply->mutable_outcome());
}

void FillDrain(const State& state, const std::string& node, pb::GetDrainReply* reply) {
  const auto drain = state.Drain(node);
  ToProto(drain ? Status::Ok() : drain.error(), reply->mutable_outcome());
  if (!drain) return;
  reply->set_alive(drain->alive);
  if (drain->drain) {
    reply->set_draining(true);
    reply->set_why(drain->drain->why);
    reply->set_wall_nanos(drain->drain->wall_nanos);
    reply->set_move_runs(drain->drain->move_runs);
    reply->set_removed(drain->drain->removed);
  }
  reply->mutable_others()->Assign(drain->others.begin(), drain->others.end());
  for (const DrainedJob& status : drain->jobs) {
    pb::DrainedJob* job = reply->add_jobs();
    job->set_job(status.job);
    ToProto(status.newest, job->mutable_newest());
    ToProto(status.safe, job->mutable_safe());
    job->set_state(static_cast<uint32_t>(status.state));
    job->set_runs_here(status.runs_here);
    job->set_writing(status.writing);
    job->set_why(status.why);
    job->set_to_do(status.to_do);
  }
}

void FillImpact(const State& state, const pb::WhatIfLostRequest& request,
                pb::WhatIfLostReply* reply) {
  const std::vector<std::string> nodes(request.nodes().begin(), request.nodes().end());
  auto impacts = state.ImpactOfLosing(request.job(), nodes);
  ToProto(impacts ? Status::Ok() : impacts.error(), reply->mutable_outcome());
  if (!impacts) return;
  for (const NodeLossImpact& status : *impacts) {
    pb::JobImpact* job = reply->add_jobs();
    job->set_job(status.job);
    ToProto(status.newest, job->mutable_newest());
    job->set_keeps(status.keeps);
    job->set_why_not(status.why_not);
    ToProto(status.fallback, job->mutable_fallback());
    job->set_stops(status.stops);
  }
}

}  // namespace holdfast::coord
