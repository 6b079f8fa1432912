#include "coordinator/server/run_answers.h"

#include <fmt/format.h>

#include <algorithm>

#include "coordinator/api/convert.h"
#include "coordinator/api/run_convert.h"

namespace holdfast::coord {
namespace {
void Fill(const RunStatus& status, pb::RunStatus* run) {
  const RunRecord& record = status.record;
  ToProto(record.spec, run->mutable_spec());
  // Remove the values: they may be keys or tokens, and another user may read them.
  for (std::string& variable : *run->mutable_spec()->mutable_environment()) {
    variable.resize(std::min(variable.find('='), variable.size()));
  }
  run->set_serial(record.serial);
  run->set_phase(std::string(ToString(record.phase)));
  run->set_why(record.why);
  run->set_restarts(record.restarts());
  if (record.launches != 0) run->set_run_id(record.run_id());
  run->mutable_nodes()->Assign(record.nodes.begin(), record.nodes.end());
  run->mutable_spares()->Assign(status.spares.begin(), status.spares.end());
  run->set_started_wall_nanos(record.started_wall_nanos);
  run->set_incarnation(status.incarnation.value_or(Incarnation{}).value);
  for (const auto& [node, state] : status.workers) {
    pb::RunWorker* worker = run->add_workers();
    worker->set_rank(state.rank.value);
    worker->set_node(node);
    ToProto(state, worker->mutable_state());
  }
}

void Fill(const IncidentRecord& record, pb::Incident* incident) {
  incident->set_id(record.id);
  incident->set_job(record.job);
  incident->set_wall_nanos(record.wall_nanos);
  incident->set_kind(record.kind);
  incident->set_what(record.what);
  incident->mutable_evidence()->Assign(record.evidence.begin(), record.evidence.end());
  for (const Rank rank : record.ranks) incident->add_ranks(rank.value);
  incident->mutable_nodes()->Assign(record.nodes.begin(), record.nodes.end());
  incident->set_plan(record.plan);
  incident->set_detect_ms(record.detect_ms.value_or(kNoNumber));
  incident->set_decide_ms(record.decide_ms.value_or(kNoNumber));
  incident->set_stop_ms(record.stop_ms.value_or(kNoNumber));
  incident->set_place_ms(record.place_ms.value_or(kNoNumber));
  incident->set_restore_ms(record.restore_ms.value_or(kNoNumber));
  incident->set_first_step_ms(record.first_step_ms.value_or(kNoNumber));
  incident->set_lost_steps(record.lost_steps.value_or(kNoNumber));
  ToProto(record.restored, incident->mutable_restored());
  incident->set_state(std::string(ToString(record.state)));
}
}  // namespace

void FillRuns(const Supervisor& supervisor, const std::string& job, pb::GetRunsReply* reply) {
  const std::vector<RunStatus> runs = supervisor.Runs(job);
  const bool unknown = runs.empty() && !job.empty();
  ToProto(unknown ? NotFoundError(fmt::format("no job '{}' was started with `holdfast run`", job))
                  : Status::Ok(),
          reply->mutable_outcome());
  for (const RunStatus& status : runs) Fill(status, reply->add_runs());
  for (const QuarantineRecord& record : supervisor.Quarantined()) {
    pb::QuarantinedNode* node = reply->add_quarantine();
    node->set_node(record.node);
    node->set_why(record.why);
    node->set_wall_nanos(record.wall_nanos);
    node->set_testing(supervisor.SelfTests().contains(record.node));
  }
  for (const auto& [node, jobs] : supervisor.Blamed()) {
    pb::BlamedNode* one = reply->add_blamed();
    one->set_node(node);
    one->set_jobs(jobs);
  }
}

void FillIncidents(const Supervisor& supervisor, const pb::ListIncidentsRequest& request,
                   pb::ListIncidentsReply* reply) {
  const auto incidents = supervisor.Incidents(request.job(), request.id());
  const bool unknown = incidents.empty() && request.id() != 0;
  ToProto(unknown ? NotFoundError(fmt::format("no incident {}; `holdfast incidents` lists them",
                                              request.id()))
                  : Status::Ok(),
          reply->mutable_outcome());
  for (const IncidentRecord& record : incidents) Fill(record, reply->add_incidents());
}

}  // namespace holdfast::coord
