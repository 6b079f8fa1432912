#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "coordinator/api/coordinator.grpc.pb.h"
#include "coordinator/server/agent_requests.h"
#include "coordinator/server/applier.h"
#include "coordinator/server/backups.h"
#include "coordinator/server/recorded_calls.h"
#include "coordinator/server/relay_service.h"
#include "coordinator/server/watcher.h"

namespace holdfast::coord {

/// The service of coordinator.proto on gRPC's callback threads. It checks each request, passes it
/// to the applier, and answers when the applier does. It keeps no state.
class CoordinatorService : public coordinator::Coordinator::CallbackService {
 public:
  /// `applier`, `watcher` and `clock` outlive the service.
  CoordinatorService(std::string cluster, Applier& applier, Watcher& watcher, const Clock& clock)
      : cluster_(std::move(cluster)),
        applier_(applier),
        watcher_(watcher),
        clock_(clock),
        agents_(cluster_, applier, watcher, clock),
        recorded_(applier) {}

  /// Records the calls that change the cluster in `auditor`, which outlives the service. Before the
  /// first call.
  void RecordIn(Auditor& auditor) { recorded_.RecordIn(auditor); }

  /// Identifies callers by `callers`, which outlives the service. Operators may start runs as a
  /// user of `run_as_users`. Before the first call.
  void Identify(const CallerRegistry& callers, std::vector<std::string> run_as_users) {
    callers_ = &callers;
    run_as_users_ = std::move(run_as_users);
  }

  /// Sends backups through `backups`, which outlives the service. Before the first call.
  void BackUpThrough(Backups& backups) { backups_ = &backups; }

  /// Accepts what relays of `relays`, which outlives the service, pass on. Before the first call.
  void TakeFrom(RelayService& relays) { relays_ = &relays; }

  /// Sets the URL that operators get. Before the first call.
  void ReportPage(std::string url) { page_url_ = std::move(url); }

  grpc::ServerWriteReactor<coordinator::Directive>* Attach(
      grpc::CallbackServerContext* context, const coordinator::AttachRequest* request) override;
  grpc::ServerUnaryReactor* Report(grpc::CallbackServerContext* context,
                                   const coordinator::ReportRequest* request,
                                   coordinator::ReportReply* reply) override;
  grpc::ServerUnaryReactor* Join(grpc::CallbackServerContext* context,
                                 const coordinator::JoinRequest* request,
                                 coordinator::JoinReply* reply) override;
  grpc::ServerUnaryReactor* DecideRestore(grpc::CallbackServerContext* context,
                                          const coordinator::DecideRestoreRequest* request,
                                          coordinator::DecideRestoreReply* reply) override;
  grpc::ServerUnaryReactor* GetStatus(grpc::CallbackServerContext* context,
                                      const coordinator::GetStatusRequest* request,
                                      coordinator::GetStatusReply* reply) override;
  grpc::ServerUnaryReactor* ListVersions(grpc::CallbackServerContext* context,
                                         const coordinator::ListVersionsRequest* request,
                                         coordinator::ListVersionsReply* reply) override;
  grpc::ServerUnaryReactor* PlanRestore(grpc::CallbackServerContext* context,
                                        const coordinator::PlanRestoreRequest* request,
                                        coordinator::PlanRestoreReply* reply) override;
  grpc::ServerUnaryReactor* WhatIfLost(grpc::CallbackServerContext* context,
                                       const coordinator::WhatIfLostRequest* request,
                                       coordinator::WhatIfLostReply* reply) override;
  grpc::ServerUnaryReactor* Adopt(grpc::CallbackServerContext* context,
                                  const coordinator::AdoptRequest* request,
                                  coordinator::AdoptReply* reply) override;
  grpc::ServerUnaryReactor* Pin(grpc::CallbackServerContext* context,
                                const coordinator::PinRequest* request,
                                coordinator::PinReply* reply) override;
  grpc::ServerUnaryReactor* RecordVerification(
      grpc::CallbackServerContext* context, const coordinator::RecordVerificationRequest* request,
      coordinator::RecordVerificationReply* reply) override;
  grpc::ServerUnaryReactor* Retain(grpc::CallbackServerContext* context,
                                   const coordinator::RetainRequest* request,
                                   coordinator::RetainReply* reply) override;
  grpc::ServerUnaryReactor* ForgetJob(grpc::CallbackServerContext* context,
                                      const coordinator::ForgetJobRequest* request,
                                      coordinator::ForgetJobReply* reply) override;

  // audit_service.cc
  grpc::ServerUnaryReactor* GetAudit(grpc::CallbackServerContext* context,
                                     const coordinator::GetAuditRequest* request,
                                     coordinator::GetAuditReply* reply) override;
  grpc::ServerWriteReactor<coordinator::BackupPart>* Backup(
      grpc::CallbackServerContext* context, const coordinator::BackupRequest* request) override;

  // run_service.cc
  grpc::ServerUnaryReactor* Observe(grpc::CallbackServerContext* context,
                                    const coordinator::ObserveRequest* request,
                                    coordinator::ObserveReply* reply) override;
  grpc::ServerUnaryReactor* StartRun(grpc::CallbackServerContext* context,
                                     const coordinator::StartRunRequest* request,
                                     coordinator::StartRunReply* reply) override;
  grpc::ServerUnaryReactor* StopRun(grpc::CallbackServerContext* context,
                                    const coordinator::StopRunRequest* request,
                                    coordinator::StopRunReply* reply) override;
  grpc::ServerUnaryReactor* GetRuns(grpc::CallbackServerContext* context,
                                    const coordinator::GetRunsRequest* request,
                                    coordinator::GetRunsReply* reply) override;
  grpc::ServerUnaryReactor* ListIncidents(grpc::CallbackServerContext* context,
                                          const coordinator::ListIncidentsRequest* request,
                                          coordinator::ListIncidentsReply* reply) override;
  grpc::ServerUnaryReactor* AcknowledgeIncident(
      grpc::CallbackServerContext* context, const coordinator::AcknowledgeIncidentRequest* request,
      coordinator::AcknowledgeIncidentReply* reply) override;
  grpc::ServerUnaryReactor* Quarantine(grpc::CallbackServerContext* context,
                                       const coordinator::QuarantineRequest* request,
                                       coordinator::QuarantineReply* reply) override;
  grpc::ServerUnaryReactor* Drain(grpc::CallbackServerContext* context,
                                  const coordinator::DrainRequest* request,
                                  coordinator::DrainReply* reply) override;
  grpc::ServerUnaryReactor* GetDrain(grpc::CallbackServerContext* context,
                                     const coordinator::GetDrainRequest* request,
                                     coordinator::GetDrainReply* reply) override;

  AgentRequests& agents() { return agents_; }

 private:
  /// Returns OK if the caller may act for the node.
  Status CheckNode(const grpc::CallbackServerContext& context, const std::string& node);
  /// Returns the user whose jobs the caller may see; nothing: the caller may see all jobs.
  std::optional<uid_t> OnlyJobsOf(grpc::CallbackServerContext& context) const;

  const std::string cluster_;
  Applier& applier_;
  Watcher& watcher_;
  const Clock& clock_;
  AgentRequests agents_;
  RecordedCalls recorded_;
  Backups* backups_ = nullptr;
  RelayService* relays_ = nullptr;
  const CallerRegistry* callers_ = nullptr;  // null: every caller may see all jobs
  std::vector<std::string> run_as_users_;
  std::string page_url_;  // empty: no page
};

}  // namespace holdfast::coord
