#pragma once

#include <grpcpp/grpcpp.h>

#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "coordinator/api/channel.h"
#include "coordinator/api/convert.h"
#include "coordinator/api/coordinator.grpc.pb.h"

namespace holdfast::coord {

/// A test client that acts as an agent: it attaches, and collects the directives that it receives.
class FakeAgent {
 public:
  FakeAgent(const Endpoint& endpoint, std::string node, uint64_t agent_start = 1,
            std::string cluster = "test")
      : node_(std::move(node)), agent_start_(agent_start), cluster_(std::move(cluster)) {
    stub_ = coordinator::Coordinator::NewStub(*MakeChannel(endpoint, {}));
  }
  ~FakeAgent() { Detach(); }

  /// Attaches with everything in `inventory`. A thread collects the directives.
  void Attach() {
    Detach();
    context_ = std::make_unique<grpc::ClientContext>();
    context_->set_wait_for_ready(true);
    pb::AttachRequest request;
    request.set_cluster(cluster_);
    request.set_node(node_);
    request.set_agent_start(agent_start_);
    request.set_data_address("unix:/tmp/" + node_ + ".sock");
    request.set_epoch_seen(epoch_seen);
    request.set_peer_address(peer_address);
    request.set_worker_address(worker_address);
    request.set_worker_users(true);
    if (arena) *request.mutable_arena() = *arena;
    request.mutable_labels()->insert(labels.begin(), labels.end());
    for (const StoredReplica& report : inventory) ToProto(report, request.add_replicas());
    reader_thread_ = std::thread([this, request] {
      auto reader = stub_->Attach(context_.get(), request);
      pb::Directive directive;
      while (reader->Read(&directive)) {
        std::lock_guard lock(mutex_);
        epoch_ = directive.epoch();
        directives_.push_back(directive);
      }
      grpc::Status status = reader->Finish();
      std::lock_guard lock(mutex_);
      end_ = FromGrpc(status, "coordinator");
      ended_ = true;
    });
  }

  void Detach() {
    if (!reader_thread_.joinable()) return;
    context_->TryCancel();
    reader_thread_.join();
    std::lock_guard lock(mutex_);
    ended_ = false;
  }

  pb::ReportRequest NewReport(uint64_t epoch) const {
    pb::ReportRequest request;
    request.set_node(node_);
    request.set_agent_start(agent_start_);
    request.set_epoch(epoch);
    return request;
  }

  Status Report(const pb::ReportRequest& request) {
    grpc::ClientContext context;
    SetDeadline(context);
    pb::ReportReply reply;
    grpc::Status status = stub_->Report(&context, request, &reply);
    return status.ok() ? FromProto(reply.outcome()) : FromGrpc(status, "coordinator");
  }

  /// Reports these replicas, and lists them in later attaches.
  Status Hold(uint64_t epoch, const std::vector<StoredReplica>& replicas) {
    pb::ReportRequest request = NewReport(epoch);
    for (const StoredReplica& report : replicas) {
      inventory.push_back(report);
      ToProto(report, request.add_replicas());
    }
    return Report(request);
  }

  Result<uint64_t> Join(const std::string& job, const std::string& run, uint32_t rank,
                        uint32_t world, uint32_t uid = 7) {
    grpc::ClientContext context;
    SetDeadline(context);
    pb::JoinRequest request;
    request.set_node(node_);
    request.set_agent_start(agent_start_);
    request.set_job(job);
    request.set_run_id(run);
    request.set_rank(rank);
    request.set_world(world);
    request.set_uid(uid);
    request.set_slot_bytes(slot_bytes);
    pb::JoinReply reply;
    grpc::Status status = stub_->Join(&context, request, &reply);
    if (!status.ok()) return Fail(FromGrpc(status, "coordinator"));
    Status outcome = FromProto(reply.outcome());
    if (!outcome.ok()) return Fail(outcome);
    return reply.incarnation();
  }

  Result<pb::DecideRestoreReply> Decide(const std::string& job, uint64_t incarnation, uint32_t rank,
                                        int timeout_ms = 10'000, VersionId wanted = {}) {
    grpc::ClientContext context;
    SetDeadline(context, timeout_ms);
    pb::DecideRestoreRequest request;
    request.set_node(node_);
    request.set_job(job);
    request.set_incarnation(incarnation);
    request.set_rank(rank);
    ToProto(wanted, request.mutable_wanted());
    pb::DecideRestoreReply reply;
    grpc::Status status = stub_->DecideRestore(&context, request, &reply);
    if (!status.ok()) return Fail(FromGrpc(status, "coordinator"));
    Status outcome = FromProto(reply.outcome());
    if (!outcome.ok()) return Fail(outcome);
    return reply;
  }

  pb::GetStatusReply GetStatus(const std::string& job = "") {
    grpc::ClientContext context;
    SetDeadline(context);
    pb::GetStatusRequest request;
    request.set_job(job);
    pb::GetStatusReply reply;
    stub_->GetStatus(&context, request, &reply);
    return reply;
  }

  pb::ListVersionsReply ListVersions(const std::string& job) {
    grpc::ClientContext context;
    SetDeadline(context);
    pb::ListVersionsRequest request;
    request.set_job(job);
    pb::ListVersionsReply reply;
    stub_->ListVersions(&context, request, &reply);
    return reply;
  }

  Status RecordVerification(const std::string& job, VersionId version,
                            const pb::Verification& verification) {
    grpc::ClientContext context;
    SetDeadline(context);
    pb::RecordVerificationRequest request;
    request.set_job(job);
    ToProto(version, request.mutable_version());
    *request.mutable_verification() = verification;
    pb::RecordVerificationReply reply;
    grpc::Status status = stub_->RecordVerification(&context, request, &reply);
    if (!status.ok()) return FromGrpc(status, "coordinator");
    return FromProto(reply.outcome());
  }

  Status Pin(const std::string& job, VersionId version, bool pinned) {
    grpc::ClientContext context;
    SetDeadline(context);
    pb::PinRequest request;
    request.set_job(job);
    ToProto(version, request.mutable_version());
    request.set_pinned(pinned);
    pb::PinReply reply;
    grpc::Status status = stub_->Pin(&context, request, &reply);
    return status.ok() ? FromProto(reply.outcome()) : FromGrpc(status, "coordinator");
  }

  pb::PlanRestoreReply PlanRestore(const std::string& job) {
    grpc::ClientContext context;
    SetDeadline(context);
    pb::PlanRestoreRequest request;
    request.set_job(job);
    pb::PlanRestoreReply reply;
    stub_->PlanRestore(&context, request, &reply);
    return reply;
  }

  std::vector<pb::Directive> Directives() {
    std::lock_guard lock(mutex_);
    return directives_;
  }
  /// Returns the newest state of `job` that the coordinator sent.
  JobState StateOf(const std::string& job) {
    JobState state;
    for (const pb::Directive& directive : Directives()) {
      if (directive.has_job() && directive.job().job() == job) state = *FromProto(directive.job());
    }
    return state;
  }
  std::vector<PrepareShard> PrepareDirectives() {
    std::vector<PrepareShard> directives;
    for (const pb::Directive& directive : Directives()) {
      if (directive.has_prepare()) directives.push_back(*FromProto(directive.prepare()));
    }
    return directives;
  }
  std::optional<Status> End() {
    std::lock_guard lock(mutex_);
    return ended_ ? std::optional(end_) : std::nullopt;
  }

  /// Whether Attach() was called and Detach() was not.
  bool attaching() const { return reader_thread_.joinable(); }
  const std::string& node() const { return node_; }
  std::vector<StoredReplica> inventory;
  uint64_t epoch_seen = 0;
  // An older agent sends none of these.
  std::string peer_address;
  std::string worker_address;
  Labels labels;
  uint64_t slot_bytes = 0;
  std::optional<pb::ArenaUse> arena;

 private:
  static void SetDeadline(grpc::ClientContext& context, int timeout_ms = 20'000) {
    context.set_wait_for_ready(true);
    context.set_deadline(
        gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC), gpr_time_from_millis(timeout_ms, GPR_TIMESPAN)));
  }

  const std::string node_;
  const uint64_t agent_start_;
  const std::string cluster_;
  std::unique_ptr<coordinator::Coordinator::Stub> stub_;
  std::unique_ptr<grpc::ClientContext> context_;
  std::thread reader_thread_;
  std::mutex mutex_;
  std::vector<pb::Directive> directives_;
  uint64_t epoch_ = 0;
  bool ended_ = false;
  Status end_;
};

/// Waits until `done` returns true, at most half a minute.
inline bool Eventually(const std::function<bool()>& done) {
  for (int i = 0; i < 3000; ++i) {
    if (done()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return false;
}

inline VersionId V(uint64_t incarnation, uint64_t step) {
  return {Incarnation{incarnation}, Step{step}};
}

inline StoredReplica MakeReplica(const std::string& job, VersionId version, uint32_t rank,
                                 uint32_t world, Tier tier) {
  return {job,        version,
          Rank{rank}, world,
          tier,       version.incarnation.value * 1'000'003 + version.step.value * 101 + rank,
          1000 + rank};
}

}  // namespace holdfast::coord
