#pragma once

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "cli/core/text.h"
#include "coordinator/api/convert.h"
#include "coordinator/api/coordinator.grpc.pb.h"
#include "tests/cli/cli_test_util.h"
#include "tests/cli/volume_agent.h"

// An agent that serves a real volume and can be made to fail, and a coordinator with scripted
// answers: gRPC servers in the process of the test.

namespace holdfast::cli {

/// "2h10m" for the next half minute.
inline constexpr int64_t kAgeNanos = 7'830'000'000'000;

/// Answers with the replies that the test has set.
class ScriptedCoordinator : public coordinator::Coordinator::Service {
 public:
  coordinator::GetStatusReply status;
  std::map<std::string, coordinator::ListVersionsReply> versions;
  std::map<uint32_t, coordinator::PlanRestoreReply> plans;  // by tier
  coordinator::GetRunsReply runs;
  std::optional<coordinator::GetRunsReply> after_self_test;
  coordinator::QuarantineRequest quarantined;
  coordinator::ListIncidentsReply incidents;
  coordinator::WhatIfLostReply without;
  coordinator::WhatIfLostRequest asked_without;
  coordinator::PinRequest pinned;
  Status pin_outcome;
  std::vector<coordinator::RecordVerificationRequest> verified;
  Status verified_outcome;
  bool records_verifications = true;  // false: an older coordinator

  grpc::Status GetStatus(grpc::ServerContext*, const coordinator::GetStatusRequest* request,
                         coordinator::GetStatusReply* reply) override {
    *reply = status;
    if (!request->job().empty() && versions.count(request->job()) == 0) {
      coord::ToProto(NotFoundError("no job '" + request->job() + "'"), reply->mutable_outcome());
    }
    return grpc::Status::OK;
  }
  grpc::Status ListVersions(grpc::ServerContext*, const coordinator::ListVersionsRequest* request,
                            coordinator::ListVersionsReply* reply) override {
    *reply = versions[request->job()];
    return grpc::Status::OK;
  }
  grpc::Status PlanRestore(grpc::ServerContext*, const coordinator::PlanRestoreRequest* request,
                           coordinator::PlanRestoreReply* reply) override {
    if (plans.count(request->tier()) == 0)
      coord::ToProto(NotFoundError("nothing to restore at that tier"), reply->mutable_outcome());
    for (const auto& [tier, plan] : plans) {
      if (tier == request->tier() || request->all_replicas()) reply->MergeFrom(plan);
    }
    return grpc::Status::OK;
  }
  grpc::Status GetRuns(grpc::ServerContext*, const coordinator::GetRunsRequest*,
                       coordinator::GetRunsReply* reply) override {
    *reply = runs;
    if (after_self_test && runs.quarantine_size() != 0 && runs.quarantine(0).testing()) {
      runs = *std::exchange(after_self_test, std::nullopt);
    }
    return grpc::Status::OK;
  }
  grpc::Status Quarantine(grpc::ServerContext*, const coordinator::QuarantineRequest* request,
                          coordinator::QuarantineReply*) override {
    quarantined = *request;
    for (auto& node : *runs.mutable_quarantine()) node.set_testing(!request->untested());
    if (request->untested()) runs.clear_quarantine();
    return grpc::Status::OK;
  }
  grpc::Status ListIncidents(grpc::ServerContext*, const coordinator::ListIncidentsRequest*,
                             coordinator::ListIncidentsReply* reply) override {
    *reply = incidents;
    return grpc::Status::OK;
  }
  grpc::Status WhatIfLost(grpc::ServerContext*, const coordinator::WhatIfLostRequest* request,
                          coordinator::WhatIfLostReply* reply) override {
    asked_without = *request;
    *reply = without;
    return grpc::Status::OK;
  }
  grpc::Status RecordVerification(grpc::ServerContext*,
                                  const coordinator::RecordVerificationRequest* request,
                                  coordinator::RecordVerificationReply* reply) override {
    if (!records_verifications) return {grpc::StatusCode::UNIMPLEMENTED, ""};
    verified.push_back(*request);
    coord::ToProto(verified_outcome, reply->mutable_outcome());
    return grpc::Status::OK;
  }
  grpc::Status Pin(grpc::ServerContext*, const coordinator::PinRequest* request,
                   coordinator::PinReply* reply) override {
    pinned = *request;
    coord::ToProto(pin_outcome, reply->mutable_outcome());
    *reply->mutable_version() = request->version();
    if (request->version().incarnation() != 0) return grpc::Status::OK;
    reply->mutable_version()->set_incarnation(1);
    reply->mutable_version()->set_step(20);
    return grpc::Status::OK;
  }
};

/// Two agents, each with both ranks of version 1-20 of "lm": the first stands for tier memory, the
/// second for tier disk.
class OnlineTest : public testing::Test {
 protected:
  void SetUp() override {
    for (int n = 0; n < 2; ++n) {
      std::string node = "n" + std::to_string(n);
      MakeDataDirs({folder_ / node}, {0, 1}, 2);
      volumes_[n] = OpenVolume({folder_ / node});
      agents_[n] = std::make_unique<VolumeAgent>(*volumes_[n]);
      agent_servers_[n] = Serve<agent::Agent>(*agents_[n], AgentSocket(n));
      auto* status = coordinator_.status.add_nodes();
      status->set_node(node);
      status->set_alive(true);
      status->set_data_address("unix:" + AgentSocket(n));
      status->set_disk_free_percent(50);
      status->set_held_disk_bytes(6 << 20);
      status->set_seen_wall_nanos(Clock::Real().WallNanos());
    }
    DescribeJob();
    served_ = Serve<coordinator::Coordinator>(coordinator_, folder_ / "c.sock");
  }

  void TearDown() override {
    auto now = std::chrono::system_clock::time_point::min();
    served_.server->Shutdown(now);
    for (auto& agent : agent_servers_) {
      if (agent.server) agent.server->Shutdown(now);
    }
  }

  void DescribeJob() {
    coordinator_.status.set_cluster("test");
    coordinator_.status.set_epoch(3);
    auto* job = coordinator_.status.add_jobs();
    job->set_job("lm");
    job->set_incarnation(1);
    job->set_world(2);
    job->set_ranks_joined(2);
    job->set_committed_total(20);
    Set(20, job->mutable_memory_committed());
    Set(10, job->mutable_disk_committed());
    Set(20, job->mutable_restorable());
    job->set_restorable_tier(1);
    auto& versions = coordinator_.versions["lm"];
    AddVersion(20, TierBit(Tier::kMemory) | TierBit(Tier::kDisk), versions);
    AddVersion(10, 0, versions)->set_why_not("rank 1: n1 is down");
    for (Tier tier : {Tier::kMemory, Tier::kDisk}) MakePlan(tier);
    coordinator_.plans[0] = coordinator_.plans[1];
  }

  static void Set(uint64_t step, coordinator::Version* version) {
    version->set_incarnation(1);
    version->set_step(step);
  }

  coordinator::VersionInfo* AddVersion(uint64_t step, uint32_t available,
                                       coordinator::ListVersionsReply& versions) {
    auto* info = versions.add_versions();
    Set(step, info->mutable_version());
    info->set_state("committed");
    info->set_committed_tiers(TierBit(Tier::kMemory) | TierBit(Tier::kDisk));
    info->set_available_tiers(available);
    info->set_world(2);
    info->set_bytes(step << 20);
    info->set_wall_nanos(Clock::Real().WallNanos() - kAgeNanos);
    info->set_restorable(available != 0);
    if (available != 0) info->set_survives("any 1 node of each group; full power cut");
    return info;
  }

  void MakePlan(Tier tier) {
    int n = tier == Tier::kMemory ? 0 : 1;
    auto& plan = coordinator_.plans[static_cast<uint32_t>(tier)];
    Set(20, plan.mutable_version());
    plan.set_world(2);
    for (uint32_t rank = 0; rank < 2; ++rank) {
      TestImage image(Identity("lm", 1, 20, rank, 2), kRows);
      auto* source = plan.add_sources();
      source->set_rank(rank);
      source->set_node("n" + std::to_string(n));
      source->set_address("unix:" + AgentSocket(n));
      source->set_tier(static_cast<uint32_t>(tier));
      source->set_image_bytes(image.image.size());
      source->set_digest(image.Seal().digest());
    }
  }

  std::string AgentSocket(int n) const { return folder_ / ("a" + std::to_string(n) + ".sock"); }

  CliResult Cli(std::vector<std::string> args, const CliOptions& options = {}) {
    args.insert(args.begin(), {"--endpoint", "unix:" + (folder_ / "c.sock")});
    return RunCli(args, options);
  }
  /// Allows old commits, which the test has on purpose.
  CliResult AskStatus(std::vector<std::string> more = {}) {
    more.insert(more.begin(), {"status", "--stale-after", "24h"});
    return Cli(more);
  }
  CliResult Restore(std::vector<std::string> more = {}, const CliOptions& options = {}) {
    more.insert(more.begin(), {"restore", "lm", "--to", folder_ / "out"});
    return Cli(more, options);
  }

  void ExpectRestored() {
    for (uint32_t rank = 0; rank < 2; ++rank) {
      std::string name = "rank-0000" + std::to_string(rank) + "-of-00002.safetensors";
      TestImage image(Identity("lm", 1, 20, rank, 2), kRows);
      EXPECT_TRUE(ReadText(folder_ / ("out/" + name)) == image.bytes()) << name << " differs";
    }
  }
  void ExpectNothingRestored() {
    if (!fs::exists(folder_ / "out")) return;
    for (const auto& entry : fs::directory_iterator(folder_ / "out")) ADD_FAILURE() << entry.path();
  }

  TempFolder folder_;
  std::unique_ptr<Volume> volumes_[2];
  std::unique_ptr<VolumeAgent> agents_[2];
  Served agent_servers_[2];
  ScriptedCoordinator coordinator_;
  Served served_;
};

}  // namespace holdfast::cli
