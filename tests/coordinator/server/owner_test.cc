// Owners of jobs at a real coordinator: what its store keeps, what users see, and limits of users.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "coordinator/api/convert.h"
#include "coordinator/server/coordinator_server.h"
#include "coordinator/server/own_jobs.h"
#include "coordinator/server/owner_table.h"
#include "coordinator/server/run_user.h"
#include "coordinator/store/memory_store.h"
#include "tests/agent/peers/peers_test_util.h"
#include "tests/coordinator/server/fake_agent.h"

namespace holdfast::coord {
namespace {
namespace c = coordinator;
using ::testing::HasSubstr;

Caller UserOf(uid_t uid, const std::string& name, RoleSet roles = Only(Role::kUser)) {
  Caller caller;
  caller.uid = uid;
  caller.user = name;
  caller.name = "user " + name;
  caller.roles = roles;
  return caller;
}

TEST(RunUser, WorkersRunAsTheUserWhoAsks) {
  EXPECT_EQ(RunUserOf(UserOf(4711, "x"), "", {}).value(), 4711U);
  EXPECT_EQ(RunUserOf(UserOf(0, "root", kAllRoles), "", {}).value(), 0U);
  Caller certificate;
  certificate.name = "spiffe://c/runner/bin";
  certificate.user = "bin";
  certificate.roles = Only(Role::kRunner);
  EXPECT_EQ(RunUserOf(certificate, "", {}).value(), 2U);
  certificate.user = "root";
  EXPECT_EQ(RunUserOf(certificate, "", {}).error().code(), ErrorCode::kPermissionDenied)
      << "a name is no proof that its bearer is root";
  certificate.user = "no-such-user";
  EXPECT_EQ(RunUserOf(certificate, "", {}).error().code(), ErrorCode::kNotFound);
  certificate.user = "";
  EXPECT_THAT(RunUserOf(certificate, "", {}).error().message(), HasSubstr("names no user"));
}

TEST(RunUser, OperatorsNameConfiguredUsersOnly) {
  const Caller root = UserOf(0, "root", kAllRoles);
  EXPECT_EQ(RunUserOf(root, "bin", {"games", "bin"}).value(), 2U);
  EXPECT_THAT(RunUserOf(root, "bin", {"games"}).error().message(),
              HasSubstr("access.run_as_users"));
  EXPECT_EQ(RunUserOf(root, "root", {"root"}).value(), 0U) << "the configuration names root";
  EXPECT_THAT(RunUserOf(UserOf(5, "games"), "bin", {"bin"}).error().message(),
              HasSubstr("only an operator or a runner"));
}

Caller RunnerOf(const std::string& user) {
  Caller runner;
  runner.name = "spiffe://c/runner/" + user;
  runner.user = user;
  runner.roles = Only(Role::kRunner);
  return runner;
}

TEST(RunUser, ARunnerNamesItselfOrAConfiguredUser) {
  EXPECT_EQ(RunUserOf(RunnerOf("bin"), "bin", {}).value(), 2U);
  EXPECT_EQ(RunUserOf(RunnerOf("bin"), "games", {"games"}).value(), 5U);
  EXPECT_THAT(RunUserOf(RunnerOf("bin"), "games", {"bin"}).error().message(),
              HasSubstr("access.run_as_users"));
  EXPECT_EQ(RunUserOf(RunnerOf("root"), "root", {}).error().code(), ErrorCode::kPermissionDenied)
      << "a name is no proof that its bearer is root";
  EXPECT_EQ(RunUserOf(RunnerOf(""), "games", {"games"}).value(), 5U);
}

TEST(RunUser, ARunnerStopsJobsOfItsOwnUserOrAConfiguredOne) {
  const JobOwner of_bin{true, 2};
  const auto code = [](const Status& status) { return status.code(); };
  EXPECT_EQ(code(CheckMayStop(RunnerOf("bin"), "j", of_bin, {})), ErrorCode::kOk);
  EXPECT_EQ(code(CheckMayStop(RunnerOf("games"), "j", of_bin, {"bin"})), ErrorCode::kOk);
  const Status refused = CheckMayStop(RunnerOf("games"), "j", of_bin, {"man", "no-such-user"});
  EXPECT_EQ(refused.code(), ErrorCode::kPermissionDenied);
  EXPECT_THAT(refused.message(), HasSubstr("job 'j' belongs to uid 2; spiffe://c/runner/games"));
  EXPECT_EQ(code(CheckMayStop(RunnerOf(""), "j", of_bin, {})), ErrorCode::kPermissionDenied);
  EXPECT_EQ(code(CheckMayStop(RunnerOf("bin"), "j", JobOwner{true, {}}, {})),
            ErrorCode::kPermissionDenied)
      << "a job without an owner is for operators";
  EXPECT_EQ(code(CheckMayStop(RunnerOf("bin"), "j", JobOwner{}, {})), ErrorCode::kOk)
      << "the answer is that there is no such job";
  Caller all = RunnerOf("games");
  all.roles = kAllRoles;
  EXPECT_EQ(code(CheckMayStop(all, "j", of_bin, {})), ErrorCode::kOk);
  EXPECT_EQ(code(CheckMayStop(UserOf(0, "root", kAllRoles), "j", of_bin, {})), ErrorCode::kOk);
}

TEST(OwnerTable, FollowsRecordsAndEffects) {
  JobRecord job;
  job.job = "lm";
  job.uid = 7;
  job.incarnation = Incarnation{1};
  JobRecord adopted = job;
  adopted.job = "adopted";
  adopted.uid = ~0U;
  JobRecord forgotten = job;
  forgotten.job = "forgotten";
  forgotten.forgotten_upto = forgotten.incarnation;
  RunRecord run;
  run.spec.job = "run";
  run.spec.uid = 8;
  RunRecord old;
  old.spec.job = "old";
  Records records;
  records.jobs = {job, adopted, forgotten};
  records.runs = {run, old};
  OwnerTable table;
  table.Load(records);
  JobOwners owners;
  owners.Reset(table.All());
  const auto expect = [&](const std::string& name, bool exists, std::optional<uid_t> uid) {
    EXPECT_EQ(table.Find(name).exists, exists) << name;
    EXPECT_EQ(table.Find(name).uid, uid) << name;
    EXPECT_EQ(owners.Find(name).exists, exists) << name;
    EXPECT_EQ(owners.Find(name).uid, uid) << name;
  };
  expect("lm", true, 7);
  expect("adopted", true, {});
  expect("forgotten", false, {});
  expect("run", true, 8);
  expect("old", true, {});
  EXPECT_EQ(table.CountOf(7), 1U);
  const std::vector<Effect> effects = {EraseJob{"lm"}, EraseRun{"run"}, PutJob{forgotten}};
  table.Update(effects);
  table.Publish(owners);
  expect("lm", false, {});
  expect("run", false, {});
  expect("forgotten", false, {});
}

/// A coordinator with its store in memory.
class OwnerTest : public ::testing::Test {
 protected:
  void SetUp() override { Start(); }
  void Start() {
    server_.reset();
    CoordinatorConfig config;
    config.cluster = "test";
    config.listen = "unix:" + dir_.path() + "/c.sock";
    config.data_dir = dir_.path() + "/data";
    config.jobs_per_user = 2;
    auto opener = [this]() -> Result<std::unique_ptr<MetaStore>> {
      return std::unique_ptr<MetaStore>(std::make_unique<MemoryStore>(data_));
    };
    server_ = CoordinatorServer::Start(config, opener, Clock::Real()).value();
    stub_ = c::Coordinator::NewStub(MakeChannel(server_->endpoint(), {}).value());
  }
  Status StartRun(const std::string& job) {
    c::StartRunRequest request;
    c::RunSpec* spec = request.mutable_spec();
    spec->set_job(job);
    spec->add_command("/bin/true");
    spec->set_directory("/");
    spec->set_nodes(1);
    spec->set_ranks_per_node(1);
    c::StartRunReply reply;
    grpc::ClientContext context;
    const grpc::Status sent = stub_->StartRun(&context, request, &reply);
    return sent.ok() ? FromProto(reply.outcome()) : FromGrpc(sent, "coordinator");
  }

  /// Joins as a process of `uid`, once the agent is attached.
  static Status Join(FakeAgent& agent, const std::string& job, const std::string& run,
                     uint32_t rank, uint32_t world, uint32_t uid) {
    for (int attempt = 0;; ++attempt) {
      const auto joined = agent.Join(job, run, rank, world, uid);
      if (joined) return Status::Ok();
      if (joined.error().code() != ErrorCode::kUnavailable || attempt == 500) {
        return joined.error();
      }
      Clock::Real().SleepFor(std::chrono::milliseconds(10));
    }
  }

  agent::TempDir dir_;
  MemoryStoreData data_;
  std::unique_ptr<CoordinatorServer> server_;
  std::unique_ptr<c::Coordinator::Stub> stub_;
};

TEST_F(OwnerTest, ARunBelongsToItsUserAlsoAfterARestart) {
  ASSERT_TRUE(StartRun("lm").ok());
  for (const bool restarted : {false, true}) {
    if (restarted) Start();
    FakeAgent agent(server_->endpoint(), "n0");
    agent.Attach();
    const Status other = Join(agent, "lm", "run", 0, 1, 4711);
    EXPECT_EQ(other.code(), ErrorCode::kPermissionDenied) << restarted;
    EXPECT_THAT(other.message(), HasSubstr(fmt::format("belongs to uid {}", ::geteuid())));
    c::GetRunsReply runs;
    grpc::ClientContext context;
    ASSERT_TRUE(stub_->GetRuns(&context, {}, &runs).ok());
    ASSERT_EQ(runs.runs_size(), 1);
    EXPECT_EQ(runs.runs(0).spec().uid(), ::geteuid());
  }
}

TEST_F(OwnerTest, TheJobOfATrainerTakesNoRunOfAnotherUser) {
  FakeAgent agent(server_->endpoint(), "n0");
  agent.Attach();
  ASSERT_TRUE(Join(agent, "lm", "run", 0, 1, 4711).ok());
  EXPECT_EQ(StartRun("lm").code(), ErrorCode::kPermissionDenied);
}

TEST_F(OwnerTest, AUserHasALimitOfJobsAndRootHasNone) {
  FakeAgent agent(server_->endpoint(), "n0");
  agent.Attach();
  for (const char* job : {"a", "b"}) {
    ASSERT_TRUE(Join(agent, job, "run", 0, 1, 4711).ok());
  }
  const Status third = Join(agent, "c", "run", 0, 1, 4711);
  EXPECT_EQ(third.code(), ErrorCode::kResourceExhausted);
  EXPECT_THAT(third.message(), HasSubstr("uid 4711 has 2 jobs, and access.jobs_per_user"));
  EXPECT_TRUE(Join(agent, "a", "run2", 0, 1, 4711).ok()) << "a job that exists";
  EXPECT_TRUE(Join(agent, "d", "run", 0, 1, 4712).ok()) << "another user";
  for (const char* job : {"e", "f", "g"}) {
    EXPECT_TRUE(Join(agent, job, "run", 0, 1, 0).ok()) << "root";
  }
}

TEST(OwnJobs, OthersAreLeftOutAndOnlyTheirNamesRemain) {
  c::GetStatusReply status;
  for (const auto& [job, uid] : {std::pair<const char*, uint32_t>{"mine", 8}, {"other", 9}}) {
    c::JobStatus* one = status.add_jobs();
    one->set_job(job);
    one->set_uid(uid);
    one->set_not_restorable_why("secret of " + std::string(job));
  }
  c::NodeStatus* node = status.add_nodes();
  node->add_memberships()->set_job("other");
  node->add_memberships()->set_job("mine");
  node->add_other_lives()->set_job("other");
  LeaveOwnJobs(8, &status);
  ASSERT_EQ(status.jobs_size(), 1);
  EXPECT_EQ(status.jobs(0).job(), "mine");
  ASSERT_EQ(status.other_jobs_size(), 1);
  EXPECT_EQ(status.other_jobs(0), "other");
  EXPECT_EQ(status.nodes(0).memberships_size(), 1);
  EXPECT_EQ(status.nodes(0).other_lives_size(), 0);
  JobOwners owners;
  owners.Set("mine", 8);
  owners.Set("old", std::nullopt);
  c::GetRunsReply runs;
  c::ListIncidentsReply incidents;
  c::WhatIfLostReply impact;
  for (const char* job : {"mine", "other", "old"}) {
    runs.add_runs()->mutable_spec()->set_job(job);
    incidents.add_incidents()->set_job(job);
    impact.add_jobs()->set_job(job);
  }
  LeaveOwnJobs(8, owners, &runs);
  LeaveOwnJobs(8, owners, &incidents);
  LeaveOwnJobs(8, owners, &impact);
  ASSERT_EQ(runs.runs_size(), 1);
  EXPECT_EQ(runs.runs(0).spec().job(), "mine");
  EXPECT_EQ(incidents.incidents_size(), 1);
  EXPECT_EQ(impact.jobs_size(), 1);
}

}  // namespace
}  // namespace holdfast::coord
