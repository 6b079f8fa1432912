#include "coordinator/server/answers.h"

#include "coordinator/api/convert.h"

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

void Fill(const NodeView& view, pb::NodeStatus* node) {
  node->set_node(view.name);
  node->set_alive(view.alive);
  node->set_data_address(view.data_address);
  node->set_held_memory_bytes(view.held_memory_bytes);
  node->set_held_disk_bytes(view.held_disk_bytes);
  for (const std::string& warning : view.health.warnings) node->add_warnings(warning);
  node->set_disk_free_percent(view.health.disk_free_percent);
  node->set_seen_wall_nanos(view.seen_wall_nanos);
  for (const SeatView& seat : view.seats) {
    pb::PeerSeat* wire = node->add_seats();
    wire->set_job(seat.job);
    wire->set_group(seat.group);
    wire->set_number(seat.number);
    wire->set_position(seat.position);
    wire->set_members(seat.members);
    wire->set_parity(seat.parity);
  }
  node->set_held_parity_bytes(view.held_parity_bytes);
  node->mutable_labels()->insert(view.labels.begin(), view.labels.end());
  node->set_peer_address(view.peer_address);
  for (const OtherLifeView& other : view.other_lives) {
    pb::OtherLife* wire = node->add_other_lives();
    wire->set_life(other.life.value);
    wire->set_job(other.job);
    wire->set_shards(other.shards);
    ToProto(other.newest, wire->mutable_newest());
  }
}

void Fill(const JobView& view, pb::JobStatus* job) {
  job->set_job(view.name);
  job->set_uid(view.uid);
  job->set_incarnation(view.incarnation.value);
  job->set_world(view.world);
  job->set_ranks_joined(view.ranks_joined);
  ToProto(view.memory_committed, job->mutable_memory_committed());
  ToProto(view.disk_committed, job->mutable_disk_committed());
  ToProto(view.restorable, job->mutable_restorable());
  if (view.restorable.incarnation.value != 0) {
    job->set_restorable_tier(static_cast<uint32_t>(view.restorable_tier));
  }
  job->set_not_restorable_why(view.not_restorable_why);
  job->set_committed_wall_nanos(view.committed_wall_nanos);
  job->set_committed_total(view.committed_total);
  job->set_aborted_total(view.aborted_total);
  job->set_pending_versions(view.pending_versions);
  job->set_newest_seen_step(view.newest_seen.value);
  ToProto(view.peer_committed, job->mutable_peer_committed());
  ToProto(view.peer_target, job->mutable_peer_target());
  job->set_peer_target_held(view.peer_target_held);
  job->set_peer_members(view.peer_members);
  job->set_not_protected_why(view.not_protected_why);
  job->set_peer_target_step(view.peer_target_step.value);
  for (const UnderProtectedView& lacks : view.under_protected) {
    pb::UnderProtected* wire = job->add_under_protected();
    ToProto(lacks.version, wire->mutable_version());
    wire->set_shards(lacks.shards);
    wire->set_present(lacks.present);
    wire->set_ordered(lacks.ordered);
    wire->set_why(lacks.why);
  }
  job->set_state(NameOf(view.phase));
  job->set_not_durable_why(view.not_durable_why);
  job->set_ended_wall_nanos(view.ended_wall_nanos);
  job->set_keep_last(view.keep_last);
  job->set_keep_every(view.keep_every);
}

void Fill(const VersionView& view, pb::VersionInfo* info) {
  ToProto(view.version, info->mutable_version());
  info->set_state(NameOf(view.phase));
  info->set_committed_tiers(view.committed_tiers);
  info->set_available_tiers(view.available_tiers);
  info->set_world(view.world);
  info->set_bytes(view.bytes);
  info->set_wall_nanos(view.wall_nanos);
  info->set_pinned(view.pinned);
  info->set_restorable(view.restorable);
  info->set_why_not(view.why_not);
  info->set_abandoned(view.abandoned);
  info->set_survives(view.survives);
  for (const std::string& text : view.disputed) info->add_disputed(text);
}
}  // namespace

void FillStatus(const State& state, const std::string& cluster, Epoch epoch, const std::string& job,
                pb::GetStatusReply* reply) {
  reply->set_cluster(cluster);
  reply->set_epoch(epoch.value);
  reply->set_life(state.life().value);
  for (const RefusedView& view : state.Refused()) {
    pb::RefusedNode* refused = reply->add_refused();
    refused->set_node(view.node);
    refused->set_why(view.why);
    refused->set_wall_nanos(view.wall_nanos);
  }
  for (const NodeView& view : state.Nodes()) Fill(view, reply->add_nodes());
  auto jobs = state.Jobs(job);
  ToProto(jobs ? Status::Ok() : jobs.error(), reply->mutable_outcome());
  if (!jobs) return;
  for (const JobView& view : *jobs) Fill(view, reply->add_jobs());
}

void FillAdopted(const std::vector<AdoptedVersion>& adopted, pb::AdoptReply* reply) {
  for (const AdoptedVersion& one : adopted) {
    pb::AdoptedVersion* wire = reply->add_versions();
    wire->set_job(one.job);
    wire->set_life(one.life.value);
    ToProto(one.version, wire->mutable_version());
    wire->set_world(one.world);
    wire->set_ranks(one.ranks);
    wire->set_bytes(one.bytes);
    wire->set_tiers(one.tiers);
    wire->set_why_not(one.why_not);
  }
}

void FillVersions(const State& state, const pb::ListVersionsRequest& request,
                  pb::ListVersionsReply* reply) {
  auto versions = state.Versions(request.job());
  ToProto(versions ? Status::Ok() : versions.error(), reply->mutable_outcome());
  if (!versions) return;
  for (const VersionView& view : *versions) {
    if (request.restorable_only() && !view.restorable) continue;
    Fill(view, reply->add_versions());
  }
}

void FillRestorePlan(const State& state, const pb::PlanRestoreRequest& request,
                     pb::PlanRestoreReply* reply) {
  auto fill = [&]() -> Status {
    std::optional<Tier> tier;
    if (request.tier() != 0) {
      HOLDFAST_ASSIGN_OR_RETURN(tier, TierFromNumber(request.tier()));
    }
    const VersionId wanted = FromProto(request.version());
    HOLDFAST_ASSIGN_OR_RETURN(const RestoreView view,
                              request.whole()
                                  ? state.PlanView(request.job(), wanted, request.as_is())
                                  : state.PlanRestore(request.job(), wanted, tier));
    ToProto(view.version, reply->mutable_version());
    reply->set_world(view.world);
    const auto fill_source = [](const SourceView& source, pb::ShardSource* wire) {
      wire->set_rank(source.rank.value);
      wire->set_node(source.node);
      wire->set_address(source.address);
      wire->set_tier(static_cast<uint32_t>(source.tier));
      wire->set_image_bytes(source.image_bytes);
      wire->set_digest(source.digest);
    };
    for (const SourceView& source : view.sources) fill_source(source, reply->add_sources());
    for (const SourceView& source : view.parity) fill_source(source, reply->add_parity());
    for (const PeerGroup& group : view.groups) ToProto(group, reply->add_groups());
    return Status::Ok();
  };
  ToProto(fill(), reply->mutable_outcome());
}

void FillWithout(const State& state, const pb::WhatIfLostRequest& request,
                 pb::WhatIfLostReply* reply) {
  const std::vector<std::string> nodes(request.nodes().begin(), request.nodes().end());
  auto views = state.Without(request.job(), nodes);
  ToProto(views ? Status::Ok() : views.error(), reply->mutable_outcome());
  if (!views) return;
  for (const WithoutView& view : *views) {
    pb::JobWithout* job = reply->add_jobs();
    job->set_job(view.job);
    ToProto(view.newest, job->mutable_newest());
    job->set_keeps(view.keeps);
    job->set_why_not(view.why_not);
    ToProto(view.fallback, job->mutable_fallback());
    job->set_stops(view.stops);
  }
}

}  // namespace holdfast::coord
