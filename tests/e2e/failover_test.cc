// Several coordinators share an etcd of three members. The one that leads is killed or stopped at
// each point of a commit, and training goes on without any of them.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <grpc/support/time.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <set>

#include "coordinator/api/leader_channel.h"
#include "coordinator/etcd/client.h"
#include "testing/etcd/members.h"
#include "tests/e2e/protected_cluster.h"

namespace holdfast::local {
namespace {
using std::chrono::milliseconds;
using std::chrono::steady_clock;
using ::testing::HasSubstr;

constexpr int kCoordinators = 3;
constexpr int kRanks = 2;
constexpr milliseconds kLease(3'000);
constexpr milliseconds kLimit = kLease + milliseconds(2'000);
constexpr std::string_view kVersions = "/holdfast/local/data/version/";

std::optional<int> NumberOf(const char* variable) {
  const char* text = std::getenv(variable);
  return text == nullptr ? std::nullopt : std::optional(std::atoi(text));
}

class FailoverTest : public ProtectedCluster {
 protected:
  void SetUp() override {
    if (!HasEtcd()) GTEST_SKIP() << kNoEtcd;
    ProtectedCluster::SetUp();
    etcd_.emplace(options_.root + "/etcd", EtcdArguments());
    const Status started = etcd_->Start();
    ASSERT_TRUE(started.ok()) << started.ToString();
    options_.coordinators = kCoordinators;
    options_.coordinator_settings = {"store=" + etcd_->url(), "peers.enabled=false",
                                     fmt::format("etcd.lease_s={}", kLease.count() / 1000)};
    words_ = 4 << 10;
  }
  void TearDown() override {
    ProtectedCluster::TearDown();
    etcd_.reset();
  }
  virtual std::vector<std::string> EtcdArguments() const { return {}; }

  void StartAll(int ranks = kRanks) {
    options_.nodes = ranks;
    ASSERT_NO_FATAL_FAILURE(StartServers());
    channel_ = *coord::LeaderChannel::Make(cluster_->endpoint(), {});
    job_.emplace(*cluster_, ranks, words_);
    const Status opened = job_->Open();
    ASSERT_TRUE(opened.ok()) << opened.ToString() << Evidence();
    SaveUntilNewer(VersionId{});
  }

  /// Returns the coordinator that leads; -1: none.
  int Leader() {
    for (int i = 0; i < kCoordinators; ++i) {
      grpc::ClientContext context;
      context.set_deadline(
          gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC), gpr_time_from_millis(300, GPR_TIMESPAN)));
      coordinator::GetStatusRequest request;
      request.set_job("-");
      coordinator::GetStatusReply reply;
      const auto member = static_cast<size_t>(i);
      if (channel_->stub(member).GetStatus(&context, request, &reply).ok()) return i;
    }
    return -1;
  }
  int AwaitLeader() {
    int leader = -1;
    WaitUntil([&] { return (leader = Leader()) >= 0; }, kTimeout);
    return leader;
  }

  /// Runs the CLI as another user of this machine, where this process may, else as its own user.
  /// Returns both outputs.
  std::string OutputAsStranger(std::vector<std::string> arguments) {
    ProcessOptions options;
    if (::geteuid() == 0) {
      EXPECT_EQ(::chmod(options_.root.c_str(), 0711), 0);
      options.argv = {"/usr/bin/setpriv", "--reuid=65534", "--clear-groups", "--regid=65534"};
    }
    options.argv.push_back(BinaryDir() + "/holdfast");
    options.argv.insert(options.argv.end(), arguments.begin(), arguments.end());
    options.log_path = options_.root + "/stranger.log";
    std::filesystem::remove(options.log_path);
    auto process = Process::Start(options);
    if (!process) return process.error().ToString();
    process->WaitFor(kTimeout);
    return ReadAll(options.log_path);
  }

  VersionId Newest() { return job_->Newest(v1::Tier::kMemory).value_or(VersionId{}); }
  /// Saves every 15 ms until a version newer than `than` is committed. Checks each record on the
  /// way.
  bool SaveUntilNewer(VersionId than) {
    const bool newer = job_->SaveUntil([&] { return Newest() > than; }, kTimeout);
    EXPECT_TRUE(newer) << "nothing newer than " << ToString(than) << Evidence();
    return newer;
  }

  /// Reads all records of versions from etcd. A version whose record is made a second time was
  /// decided twice.
  void CheckRecords() {
    std::vector<Endpoint> members;
    for (const std::string& client : etcd_->clients()) {
      members.push_back(ParseEndpoint(client).value());
    }
    auto client = coord::EtcdClient::Make(members, {}).value();
    coord::etcd::RangeRequest request;
    request.set_key(std::string(kVersions));
    request.set_range_end(std::string(kVersions.substr(0, kVersions.size() - 1)) + "0");
    for (int tries = 0; tries < kCoordinators; ++tries) {
      auto response = client->Range(request, milliseconds(2'000));
      if (!response) continue;
      for (const auto& kv : response->kvs()) {
        const auto [found, first] = made_.try_emplace(kv.key(), kv.create_revision());
        EXPECT_EQ(found->second, kv.create_revision()) << kv.key() << " was decided twice";
      }
      return;
    }
    ADD_FAILURE() << "etcd does not answer";
  }

  struct Pace {
    double p50_ms = 0;
    size_t steps = 0;
  };
  /// Trains: each step computes for a while, and then saves. The median leaves out what other
  /// processes of the machine take.
  Pace Train(std::chrono::nanoseconds time) {
    std::vector<double> steps;
    for (const auto until = steady_clock::now() + time; steady_clock::now() < until;) {
      const auto begin = steady_clock::now();
      std::this_thread::sleep_for(milliseconds(20));
      job_->Save();
      steps.push_back(
          std::chrono::duration<double, std::milli>(steady_clock::now() - begin).count());
    }
    std::sort(steps.begin(), steps.end());
    return {steps[steps.size() / 2], steps.size()};
  }
  /// Returns the private memory of agent 0, in bytes.
  uint64_t AgentMemory() {
    const std::string status = ReadAll(fmt::format("/proc/{}/status", cluster_->agent(0).pid()));
    const size_t at = status.find("RssAnon:");
    return at == std::string::npos ? 0 : std::strtoull(status.c_str() + at + 8, nullptr, 10) << 10;
  }

  std::string Evidence() {
    std::string text;
    for (int i = 0; i < kCoordinators; ++i) {
      const std::string log = ReadAll(cluster_->CoordinatorLog(i));
      text += fmt::format("\n--- coordinator {}\n{}", i,
                          log.substr(log.size() - std::min<size_t>(log.size(), 3'000)));
    }
    const std::string log = ReadAll(cluster_->AgentLog(0));
    return text + "\n--- agent\n" + log.substr(log.size() - std::min<size_t>(log.size(), 3'000));
  }

  std::optional<EtcdMembers> etcd_;
  std::unique_ptr<coord::LeaderChannel> channel_;
  std::map<std::string, int64_t> made_;  // key of a version → revision that made its record
};

// HOLDFAST_TRIES=200 measures: the new leader must commit within the lease and two seconds. Without
// it each crash point is tried once, and the time is only printed.
TEST_F(FailoverTest, ANewLeaderCommitsAtEveryCrashPoint) {
  ASSERT_NO_FATAL_FAILURE(StartAll());
  const uint64_t incarnation = Newest().incarnation.value;
  const std::vector<std::string> points = {"coordinator.before_commit:5",
                                           "coordinator.before_commit:9,stop",
                                           "coordinator.after_commit_before_reply:5",
                                           "coordinator.after_commit_before_reply:9,stop",
                                           "coordinator.after_publish:5",
                                           "coordinator.after_publish:9,stop"};
  const std::optional<int> measured = NumberOf("HOLDFAST_TRIES");
  const int tries = measured.value_or(static_cast<int>(points.size()));
  std::vector<double> took;
  for (int one = 0; one < tries && !HasFailure(); ++one) {
    const std::string& point = points[static_cast<size_t>(one) % points.size()];
    SCOPED_TRACE(fmt::format("try {}: {}", one, point));
    // The armed coordinator leads next: it starts while the others are down.
    int armed = AwaitLeader();
    ASSERT_GE(armed, 0) << Evidence();
    for (int i = 0; i < kCoordinators; ++i) cluster_->coordinator(i).Kill();
    ASSERT_TRUE(cluster_->StartCoordinator(point, armed).ok());
    const bool stops = point.ends_with(",stop");
    ASSERT_TRUE(WaitUntil([&] { return Leader() == armed; }, kTimeout)) << Evidence();
    for (int i = 0; i < kCoordinators; ++i) {
      if (i == armed) continue;
      ASSERT_TRUE(cluster_->StartCoordinator("", i).ok());
    }
    const auto is_down = [&] {
      if (!stops) return !cluster_->coordinator(armed).running();
      const std::string stat =
          ReadAll(fmt::format("/proc/{}/stat", cluster_->coordinator(armed).pid()));
      const size_t name = stat.rfind(") ");
      return name != std::string::npos && stat[name + 2] == 'T';
    };
    ASSERT_TRUE(job_->SaveUntil(is_down, kTimeout)) << Evidence();
    const VersionId before = Newest();
    const auto down = steady_clock::now();
    if (!SaveUntilNewer(before)) break;
    took.push_back(std::chrono::duration<double>(steady_clock::now() - down).count());
    const int leader = AwaitLeader();
    EXPECT_NE(leader, armed);
    CheckRecords();
    if (stops) {
      // The old leader resumes: its write must fail, and it must direct no agent.
      cluster_->coordinator(armed).Signal(SIGCONT);
      const VersionId resumed = Newest();
      SaveUntilNewer(resumed);
      EXPECT_TRUE(WaitUntil([&] { return Leader() == leader; }, kTimeout));
      CheckRecords();
      EXPECT_THAT(ReadAll(cluster_->CoordinatorLog(armed)), HasSubstr("StateDropped"));
    }
    EXPECT_EQ(Newest().incarnation.value, incarnation) << "the job was restarted";
  }
  if (took.empty()) return;
  std::sort(took.begin(), took.end());
  const double p99 = took[(took.size() * 99 - 1) / 100];
  fmt::print("failover: {} tries, p50 {:.2f} s, p99 {:.2f} s, max {:.2f} s\n", took.size(),
             took[took.size() / 2], p99, took.back());
  const std::chrono::duration<double> limit = measured ? kLimit : kTimeout;
  EXPECT_LE(p99, limit.count());
}

// The lease is longer than a slow machine needs for a commit: only a new leader that waited for the
// lease to expire takes as long.
TEST_F(FailoverTest, TheLeaderStoppedInOrderIsReplacedBeforeItsLeaseExpires) {
  constexpr milliseconds kLongLease(40'000);
  options_.coordinator_settings.back() = "etcd.lease_s=40";
  ASSERT_NO_FATAL_FAILURE(StartAll());
  const int leader = AwaitLeader();
  const VersionId before = Newest();
  const auto down = steady_clock::now();
  cluster_->coordinator(leader).Signal(SIGTERM);
  ASSERT_TRUE(SaveUntilNewer(before));
  EXPECT_LT(steady_clock::now() - down, kLongLease * 3 / 4) << Evidence();
  EXPECT_NE(AwaitLeader(), leader);
}

// The agents stay with their relays, which follow the leader for them.
TEST_F(FailoverTest, RelaysFollowTheLeader) {
  options_.relays = 2;
  ASSERT_NO_FATAL_FAILURE(StartAll());
  const uint64_t incarnation = Newest().incarnation.value;
  for (const int signal : {SIGKILL, SIGSTOP}) {
    const int leader = AwaitLeader();
    ASSERT_GE(leader, 0) << Evidence();
    const VersionId before = Newest();
    cluster_->coordinator(leader).Signal(signal);
    SaveUntilNewer(before);
    EXPECT_NE(AwaitLeader(), leader);
    CheckRecords();
    if (signal == SIGKILL) {
      ASSERT_TRUE(cluster_->StartCoordinator("", leader).ok());
      continue;
    }
    cluster_->coordinator(leader).Signal(SIGCONT);
    SaveUntilNewer(Newest());
    CheckRecords();
  }
  EXPECT_EQ(Newest().incarnation.value, incarnation) << "the job was restarted";
}

TEST_F(FailoverTest, TheCliFollowsTheLeader) {
  ASSERT_NO_FATAL_FAILURE(StartAll());
  const int leader = AwaitLeader();
  for (int i = 0; i < kCoordinators; ++i) {
    const auto result = cluster_->Cli({"--endpoint", cluster_->EndpointOf(i), "status"});
    EXPECT_EQ(result->exit_code == 0, i == leader) << result->out << result->errors;
    if (i == leader) continue;
    EXPECT_THAT(result->errors,
                HasSubstr("stands by; the leader is " + cluster_->EndpointOf(leader)));
    EXPECT_THAT(OutputAsStranger({"--endpoint", cluster_->EndpointOf(i), "versions", "saved"}),
                HasSubstr("stands by; the leader is " + cluster_->EndpointOf(leader)));
  }
  if (::geteuid() == 0) {
    EXPECT_THAT(OutputAsStranger({"--endpoint", cluster_->EndpointOf(leader), "versions", "saved"}),
                HasSubstr("may use only its own jobs"));
  }
  EXPECT_EQ(cluster_->Cli({"status"})->exit_code, 0);
  cluster_->coordinator(leader).Kill();
  // The command waits for the new leader. Until the agents have attached, its status is an error.
  EXPECT_THAT(cluster_->Cli({"status"})->out, HasSubstr("cluster local, coordinator epoch 2"));
  EXPECT_TRUE(WaitUntil([&] { return cluster_->Cli({"status"})->exit_code == 0; }, kTimeout));
}

class FullEtcdTest : public FailoverTest {
 protected:
  std::vector<std::string> EtcdArguments() const override {
    return {"--quota-backend-bytes=4194304"};
  }

  /// Puts values until etcd's quota is used up.
  Status Fill() {
    std::vector<Endpoint> members;
    for (const std::string& client : etcd_->clients()) {
      members.push_back(ParseEndpoint(client).value());
    }
    const auto client = coord::EtcdClient::Make(members, {}).value();
    coord::etcd::TxnRequest request;
    auto* put = request.add_success()->mutable_request_put();
    put->set_key("/other");
    put->set_value(std::string(256 << 10, 'x'));
    for (int i = 0; i < 64; ++i) {
      const auto done = client->Txn(request, milliseconds(5'000));
      if (!done && done.error().code() == ErrorCode::kOutOfSpace) return Status::Ok();
    }
    return InternalError("etcd accepts more than its quota");
  }
};

// The coordinators that stand by only name the leader, and only the leader knows the reason.
TEST_F(FullEtcdTest, TheCliShowsWhyTheLeaderCannotServe) {
  ASSERT_NO_FATAL_FAILURE(StartAll());
  const int leader = AwaitLeader();
  const Status filled = Fill();
  ASSERT_TRUE(filled.ok()) << filled.ToString();
  const auto dropped = [&] {
    return ReadAll(cluster_->CoordinatorLog(leader)).find("StoreUnusable") != std::string::npos;
  };
  ASSERT_TRUE(job_->SaveUntil(dropped, kTimeout)) << Evidence();
  for (const char* command : {"status", "runs"}) {
    const auto result = cluster_->Cli({"--timeout", "3s", command});
    EXPECT_EQ(result->exit_code, 5) << result->out;
    EXPECT_THAT(result->errors, HasSubstr("the leader " + cluster_->EndpointOf(leader) + ": "));
    EXPECT_THAT(result->errors, HasSubstr("cannot load its store"));
    EXPECT_THAT(result->errors, HasSubstr("etcd's quota is used up"));
  }
}

TEST_F(FailoverTest, LosingTheNodeOfTheLeaderWithItsRanksIsRecovered) {
  constexpr int kProtected = 3;
  options_.coordinator_settings.insert(options_.coordinator_settings.end(),
                                       {"peers.enabled=true", "peers.group_nodes=3"});
  ASSERT_NO_FATAL_FAILURE(StartAll(kProtected));
  const VersionId promised = SaveUntilProtected();
  const int leader = AwaitLeader();
  cluster_->coordinator(leader).Kill();
  cluster_->DestroyNode(0);
  ASSERT_TRUE(cluster_->StartAgent(0).ok());
  AwaitAgent(0);
  const SavingJob::Restored restored = ExpectBack(promised, {0});
  SaveUntilNewer(restored.version);
  EXPECT_NE(AwaitLeader(), leader);
}

// HOLDFAST_ABSENT_S=600 measures for ten minutes: the pace stays within 1 % and the noise, the
// agent's memory within 16 MiB. Without it the coordinators are absent for two minutes, and the
// bounds are those that only a training job that waits, or a queue without a limit, exceeds.
TEST_F(FailoverTest, TrainingNeverWaitsForTheCoordinators) {
  options_.coordinator_settings.insert(options_.coordinator_settings.end(),
                                       {"peers.enabled=true", "peers.group_nodes=3"});
  ASSERT_NO_FATAL_FAILURE(StartAll(3));
  const VersionId before = SaveUntilProtected();
  const std::optional<int> measured = NumberOf("HOLDFAST_ABSENT_S");
  const std::chrono::seconds absent(measured.value_or(120));
  const Pace earlier = Train(absent / 8);
  const Pace later = Train(absent / 8);
  for (int i = 0; i < kCoordinators; ++i) cluster_->coordinator(i).Signal(SIGSTOP);
  etcd_->Signal(SIGSTOP);
  Train(std::chrono::seconds(5));  // past the lease, and past the first retries
  const uint64_t memory = AgentMemory();
  const uint64_t step = job_->step();
  const Pace without = Train(absent);
  EXPECT_GT(job_->step(), step);
  const uint64_t grown = AgentMemory() - std::min(AgentMemory(), memory);
  etcd_->Signal(SIGCONT);
  for (int i = 0; i < kCoordinators; ++i) cluster_->coordinator(i).Signal(SIGCONT);
  const double ratio = without.p50_ms / ((earlier.p50_ms + later.p50_ms) / 2);
  const double noise = std::abs(earlier.p50_ms / later.p50_ms - 1);
  fmt::print(
      "absent_coordinator: {} s, {} steps, p50 {:.3f} ms; with coordinators {:.3f} and {:.3f} ms: "
      "ratio {:.3f}, noise {:.3f}; agent memory grew by {} KiB\n",
      absent.count(), without.steps, without.p50_ms, earlier.p50_ms, later.p50_ms, ratio, noise,
      grown >> 10);
  EXPECT_LE(ratio, measured ? 1.01 + noise : 3);
  EXPECT_LT(grown, measured ? 16U << 20 : 64U << 20);
  EXPECT_GE(AwaitLeader(), 0) << Evidence();
  SaveUntilNewer(Newest());
  CheckRecords();
  EXPECT_EQ(Newest().incarnation, before.incarnation) << "the job was restarted";
}

}  // namespace
}  // namespace holdfast::local
