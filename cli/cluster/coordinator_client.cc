#include "cli/cluster/coordinator_client.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "cli/cluster/rpc.h"
#include "cli/core/interrupt.h"

namespace holdfast::cli {

namespace {
const std::string kCoordinatorHint =
    std::string("is holdfast-coordinator running? (--endpoint or ") + kEndpointVariable +
    " gives its address)";
using coordinator::Coordinator;
}  // namespace

Result<CoordinatorClient> CoordinatorClient::Open(const GlobalOptions& options,
                                                  const Clock& clock) {
  HOLDFAST_ASSIGN_OR_RETURN(LeaderCalls calls, LeaderCalls::Open(options, kCoordinatorHint, clock));
  return CoordinatorClient(std::move(calls));
}

Result<coordinator::GetStatusReply> CoordinatorClient::GetStatus(const std::string& job) {
  coordinator::GetStatusRequest request;
  request.set_job(job);
  HOLDFAST_ASSIGN_OR_RETURN(auto reply, calls_.Call(&Coordinator::Stub::GetStatus, request));
  if (!job.empty() && reply.jobs_size() == 0)
    return Fail(NotFoundError("the coordinator has no job '" + job + "'"));
  return reply;
}

Result<coordinator::ListVersionsReply> CoordinatorClient::ListVersions(const std::string& job,
                                                                       bool restorable_only) {
  coordinator::ListVersionsRequest request;
  request.set_job(job);
  request.set_restorable_only(restorable_only);
  return calls_.Call(&Coordinator::Stub::ListVersions, request);
}

Result<coordinator::PlanRestoreReply> CoordinatorClient::PlanRestore(
    const std::string& job, std::optional<VersionId> version, uint32_t tier) {
  coordinator::PlanRestoreRequest request;
  request.set_job(job);
  if (version) ToProto(*version, request.mutable_version());
  request.set_tier(tier);
  HOLDFAST_ASSIGN_OR_RETURN(auto reply, calls_.Call(&Coordinator::Stub::PlanRestore, request));
  bool complete = reply.world() > 0 && reply.world() <= kWorldMax &&
                  static_cast<uint32_t>(reply.sources_size()) == reply.world();
  for (uint32_t rank = 0; complete && rank < reply.world(); ++rank) {
    const auto& source = reply.sources(static_cast<int>(rank));
    complete = source.rank() == rank && coord::TierFromNumber(source.tier()).has_value();
  }
  if (!complete)
    return Fail(
        InternalError(calls_.peer() + " sent a plan without exactly one source for each rank"));
  return reply;
}

Result<coordinator::PlanRestoreReply> CoordinatorClient::PlanAllReplicas(
    const std::string& job, std::optional<VersionId> version, bool as_is) {
  coordinator::PlanRestoreRequest request;
  request.set_job(job);
  if (version) ToProto(*version, request.mutable_version());
  request.set_all_replicas(true);
  request.set_as_is(as_is);
  HOLDFAST_ASSIGN_OR_RETURN(auto reply, calls_.Call(&Coordinator::Stub::PlanRestore, request));
  const auto good = [&](const coordinator::ShardSource& source, bool parity) {
    const Rank rank{source.rank()};
    return IsParity(rank) == parity && (parity || rank.value < reply.world()) &&
           coord::TierFromNumber(source.tier()).has_value();
  };
  bool fits = reply.world() > 0 && reply.world() <= kWorldMax &&
              (!version || FromProto(reply.version()) == *version);
  for (const auto& source : reply.sources()) fits = fits && good(source, false);
  for (const auto& source : reply.parity()) fits = fits && good(source, true);
  if (!fits)
    return Fail(InternalError(calls_.peer() + " sent a plan that does not fit the version"));
  return reply;
}

Result<coordinator::AdoptReply> CoordinatorClient::Adopt(const std::string& job, LifeId life,
                                                         bool dry_run,
                                                         std::optional<uint32_t> owner) {
  coordinator::AdoptRequest request;
  request.set_job(job);
  request.set_life(life.value);
  request.set_dry_run(dry_run);
  if (owner) request.set_owner(*owner);
  return calls_.Call(&Coordinator::Stub::Adopt, request);
}

Status CoordinatorClient::Pin(const std::string& job, VersionId version, bool pinned) {
  coordinator::PinRequest request;
  request.set_job(job);
  ToProto(version, request.mutable_version());
  request.set_pinned(pinned);
  auto reply = calls_.Call(&Coordinator::Stub::Pin, request);
  return reply ? Status::Ok() : reply.error();
}

Result<VersionId> CoordinatorClient::PinNewest(const std::string& job) {
  coordinator::PinRequest request;
  request.set_job(job);
  request.set_pinned(true);
  HOLDFAST_ASSIGN_OR_RETURN(auto reply, calls_.Call(&Coordinator::Stub::Pin, request));
  return FromProto(reply.version());
}

Status CoordinatorClient::RecordVerification(const std::string& job, VersionId version,
                                             const coordinator::Verification& verification) {
  coordinator::RecordVerificationRequest request;
  request.set_job(job);
  ToProto(version, request.mutable_version());
  *request.mutable_verification() = verification;
  auto reply = calls_.Call(&Coordinator::Stub::RecordVerification, request);
  return reply ? Status::Ok() : reply.error();
}

Status CoordinatorClient::Retain(const std::string& job, uint64_t keep_last, uint64_t keep_every) {
  coordinator::RetainRequest request;
  request.set_job(job);
  request.set_keep_last(keep_last);
  request.set_keep_every(keep_every);
  auto reply = calls_.Call(&Coordinator::Stub::Retain, request);
  return reply ? Status::Ok() : reply.error();
}

Result<coordinator::ForgetJobReply> CoordinatorClient::ForgetJob(const std::string& job) {
  coordinator::ForgetJobRequest request;
  request.set_job(job);
  return calls_.Call(&Coordinator::Stub::ForgetJob, request);
}

Status CoordinatorClient::StartRun(const coordinator::RunSpec& spec) {
  coordinator::StartRunRequest request;
  *request.mutable_spec() = spec;
  auto reply = calls_.Call(&Coordinator::Stub::StartRun, request);
  return reply ? Status::Ok() : reply.error();
}

Status CoordinatorClient::StopRun(const std::string& job, int64_t deadline_ms) {
  coordinator::StopRunRequest request;
  request.set_job(job);
  request.set_deadline_ms(deadline_ms);
  auto reply = calls_.Call(&Coordinator::Stub::StopRun, request);
  return reply ? Status::Ok() : reply.error();
}

Result<coordinator::GetRunsReply> CoordinatorClient::GetRuns(const std::string& job) {
  coordinator::GetRunsRequest request;
  request.set_job(job);
  return calls_.Call(&Coordinator::Stub::GetRuns, request);
}

Result<std::vector<std::string>> CoordinatorClient::GetAudit(int64_t since_wall_nanos) {
  std::vector<std::string> lines;
  coordinator::GetAuditRequest request;
  request.set_since_wall_nanos(since_wall_nanos);
  for (bool more = true; more;) {
    HOLDFAST_ASSIGN_OR_RETURN(const auto reply, calls_.Call(&Coordinator::Stub::GetAudit, request));
    lines.insert(lines.end(), reply.lines().begin(), reply.lines().end());
    more = reply.more() && reply.last() > request.after();
    request.set_after(reply.last());
  }
  return lines;
}

Status CoordinatorClient::Backup(BackupSink& sink) {
  // This call finds the coordinator that leads.
  HOLDFAST_ASSIGN_OR_RETURN([[maybe_unused]] const auto status, GetStatus(""));
  Coordinator::Stub stub(calls_.channel());
  HOLDFAST_ASSIGN_OR_RETURN(const StreamEnd end,
                            ReadStream<coordinator::BackupPart>(
                                calls_.timeout_ms(), calls_.clock(),
                                [&](grpc::ClientContext* call) { return stub.Backup(call, {}); },
                                [&](coordinator::BackupPart& part) { return sink.Take(part); }));
  return calls_.StatusOf(end.finished);
}

Result<coordinator::ListIncidentsReply> CoordinatorClient::ListIncidents(const std::string& job,
                                                                         uint64_t id) {
  coordinator::ListIncidentsRequest request;
  request.set_job(job);
  request.set_id(id);
  return calls_.Call(&Coordinator::Stub::ListIncidents, request);
}

Status CoordinatorClient::AcknowledgeIncident(uint64_t id, const std::string& why) {
  coordinator::AcknowledgeIncidentRequest request;
  request.set_id(id);
  request.set_why(why);
  auto reply = calls_.Call(&Coordinator::Stub::AcknowledgeIncident, request);
  return reply ? Status::Ok() : reply.error();
}

Result<coordinator::WhatIfLostReply> CoordinatorClient::WhatIfLost(
    const std::string& job, const std::vector<std::string>& nodes) {
  coordinator::WhatIfLostRequest request;
  request.set_job(job);
  request.mutable_nodes()->Assign(nodes.begin(), nodes.end());
  return calls_.Call(&Coordinator::Stub::WhatIfLost, request);
}

Status CoordinatorClient::Drain(const std::string& node, bool set, const std::string& why,
                                bool move_runs) {
  coordinator::DrainRequest request;
  request.set_node(node);
  request.set_set(set);
  request.set_why(why);
  request.set_move_runs(move_runs);
  auto reply = calls_.Call(&Coordinator::Stub::Drain, request);
  return reply ? Status::Ok() : reply.error();
}

Status CoordinatorClient::RemoveNode(const std::string& node, const std::string& why) {
  coordinator::DrainRequest request;
  request.set_node(node);
  request.set_set(true);
  request.set_why(why);
  request.set_remove(true);
  auto reply = calls_.Call(&Coordinator::Stub::Drain, request);
  return reply ? Status::Ok() : reply.error();
}

Result<coordinator::GetDrainReply> CoordinatorClient::GetDrain(const std::string& node) {
  coordinator::GetDrainRequest request;
  request.set_node(node);
  return calls_.Call(&Coordinator::Stub::GetDrain, request);
}

Status CoordinatorClient::Quarantine(const std::string& node, bool set, const std::string& why,
                                     bool untested) {
  coordinator::QuarantineRequest request;
  request.set_node(node);
  request.set_set(set);
  request.set_why(why);
  request.set_untested(untested);
  auto reply = calls_.Call(&Coordinator::Stub::Quarantine, request);
  return reply ? Status::Ok() : reply.error();
}

Result<std::vector<std::string>> CoordinatorClient::Jobs(const std::string& job) {
  HOLDFAST_ASSIGN_OR_RETURN(auto reply, GetStatus(job));
  std::vector<std::string> jobs;
  for (const auto& one : reply.jobs()) jobs.push_back(one.job());
  return jobs;
}

}  // namespace holdfast::cli
