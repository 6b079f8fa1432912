// Compares calls of holdfast.h, and the example trainer, with what the agent's reader returns.

#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include <cstdlib>
#include <fstream>
#include <optional>

#include "agent/telemetry/table_reader.h"
#include "client/core/collectives.h"
#include "tests/client/core/client_fixture.h"

namespace holdfast::agent {
namespace {
using ::testing::IsEmpty;
using ::testing::SizeIs;

class TrainerTest : public client::ClientFixture {
 protected:
  void TearDown() override {
    for (pid_t pid : trainers_) {
      ::kill(pid, SIGKILL);
      ::waitpid(pid, nullptr, 0);
    }
    ClientFixture::TearDown();
  }

  RankTelemetry Read() {
    if (!reader_) reader_.emplace(agent_->segment()->control());
    auto read = reader_->Read(client::MonotonicNs());
    EXPECT_TRUE(read.has_value()) << read.error().ToString();
    return read ? *std::move(read) : RankTelemetry{};
  }
  static holdfast_collective AllReduce(uint64_t bytes) {
    holdfast_collective collective{};
    collective.struct_size = sizeof collective;
    collective.bytes = bytes;
    collective.kind = HOLDFAST_ALL_REDUCE;
    collective.peer = HOLDFAST_NO_PEER;
    return collective;
  }

  /// Starts two ranks of the example trainer: the first one with the scripted agent, the second one
  /// with `faults`.
  void Train(const std::vector<std::string>& faults) {
    agent_->Edit([](client::Script& script) {
      script.find_restore = NotFoundError("nothing to restore");
      script.commit_memory = true;
    });
    agent_->Start();
    std::ofstream(dir_ + "/text") << std::string(200, 'a') + " quick brown fox jumps over it. ";
    StartTrainer("0", {"--socket", agent_->path()});
    std::vector<std::string> second = faults;
    second.emplace_back("--no-checkpoint");
    StartTrainer("1", second);
  }
  void StartTrainer(const std::string& rank, const std::vector<std::string>& more) {
    const char* folder = std::getenv("HOLDFAST_BIN_DIR");
    std::vector<std::string> args = {
        std::string(folder == nullptr ? "." : folder) + "/holdfast-charlm",
        "--rank",
        rank,
        "--world",
        "2",
        "--rendezvous",
        dir_,
        "--run-id",
        "run",
        "--text",
        dir_ + "/text",
        "--params",
        "6000",
        "--log-every",
        "0",
        "--steps",
        "1000000",
        "--events",
        dir_ + "/events-" + rank};
    args.insert(args.end(), more.begin(), more.end());
    std::vector<char*> argv;
    for (std::string& arg : args) argv.push_back(arg.data());
    argv.push_back(nullptr);
    const pid_t pid = ::fork();
    if (pid == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      ::execv(argv[0], argv.data());
      ::_exit(127);
    }
    trainers_.push_back(pid);
  }
  bool Attached() {
    return Eventually([&] { return agent_->segment() != nullptr && Read().present; });
  }

  std::optional<TableReader> reader_;
  std::vector<pid_t> trainers_;
};

TEST_F(TrainerTest, RecordedOperationsReachTheReader) {
  agent_->Start();
  options_.world = 3;
  options_.rank = 1;
  ASSERT_EQ(Open(), HOLDFAST_OK) << Message();
  holdfast_phase_begin(client_, HOLDFAST_PHASE_EVALUATION);
  holdfast_step(client_, 12);
  const holdfast_collective collective = AllReduce(99);
  const holdfast_operation operation = holdfast_collective_begin(client_, &collective);
  holdfast_peer_state(client_, 0, 2, HOLDFAST_DIRECTION_SEND, HOLDFAST_EDGE_SEND_WAIT);
  RankTelemetry seen = Read();
  EXPECT_EQ(seen.phases, 1U << HOLDFAST_PHASE_EVALUATION);
  EXPECT_EQ(seen.progress.step, 12U);
  ASSERT_THAT(seen.communicators, SizeIs(1));
  EXPECT_EQ(seen.communicators[0].id, CommunicatorId{0});
  EXPECT_EQ(seen.communicators[0].index, 1U);
  EXPECT_THAT(seen.communicators[0].members, ::testing::ElementsAre(Rank{0}, Rank{1}, Rank{2}));
  ASSERT_THAT(seen.in_flight, SizeIs(1));
  EXPECT_EQ(seen.in_flight[0].record.bytes, 99U);
  ASSERT_TRUE(seen.in_flight[0].edge.has_value());
  EXPECT_EQ(seen.in_flight[0].edge->peer, 2U);
  holdfast_collective_end(client_, operation);

  holdfast_transfer transfer{};
  transfer.struct_size = sizeof transfer;
  transfer.peer = 2;
  transfer.bytes = 7;
  holdfast_peer_transfer(client_, &transfer);
  const uint32_t members[] = {4, 5};
  holdfast_communicator group{sizeof group, 77, 2, 1, members, HOLDFAST_ROLE_DATA, 0};
  EXPECT_EQ(holdfast_communicator_describe(client_, &group, &error_), HOLDFAST_OK) << Message();
  group.index = 2;
  EXPECT_EQ(holdfast_communicator_describe(client_, &group, &error_), HOLDFAST_INVALID_ARGUMENT);
  seen = Read();
  EXPECT_EQ(seen.ended.at(0).kind, CollectiveKind::kAllReduce);
  EXPECT_EQ(seen.peers.at(0).bytes, 7U);
  EXPECT_THAT(seen.communicators, SizeIs(2));
  holdfast_communicator_forget(client_, 77);
  EXPECT_THAT(Read().communicators, SizeIs(1));

  holdfast_collective_abandon(client_, holdfast_collective_begin(client_, &collective));
  EXPECT_EQ(Read().ended.at(0).flags, kEndInferred);
  holdfast_collective_end(client_, operation);
  EXPECT_EQ(Stats().records_dropped, 1U) << "an end without a begin";
  EXPECT_EQ(holdfast_sampling(client_), 0U);
  RequestSampling(agent_->segment()->control().collectives, 5);
  holdfast_collective_end(client_, holdfast_collective_begin(client_, &collective));
  EXPECT_EQ(holdfast_sampling(client_), 1U);
}

TEST_F(TrainerTest, ASaveReportsAStep) {
  agent_->Start();
  ASSERT_EQ(Open(), HOLDFAST_OK) << Message();
  ASSERT_EQ(Save(3), HOLDFAST_OK) << Message();
  EXPECT_EQ(Read().progress.step, 3U);
  ASSERT_EQ(Guard(), HOLDFAST_OK);
  holdfast_step(client_, 4);
  ASSERT_EQ(Save(4), HOLDFAST_OK) << Message();
  EXPECT_EQ(Read().progress.step, 4U);
  ASSERT_EQ(Guard(), HOLDFAST_OK);
  EXPECT_NE(Save(2), HOLDFAST_OK);
  EXPECT_EQ(Read().progress.step, 4U) << "also a refused save";
}

TEST_F(TrainerTest, NullIsTheFirstClientAndASecondClientIsSeparate) {
  const holdfast_collective early = AllReduce(1);
  const holdfast_operation before = holdfast_collective_begin(nullptr, &early);
  EXPECT_NE(before, 0U) << "operations before the first client";
  agent_->Start();
  ASSERT_EQ(Open(), HOLDFAST_OK) << Message();
  EXPECT_THAT(Read().in_flight, SizeIs(1)) << "a later client reports the operation";
  holdfast_client* second = nullptr;
  options_.start_offline = 1;
  options_.connect_timeout_ms = 1;
  options_.socket_path = "/nonexistent/agent.sock";
  ASSERT_EQ(holdfast_open(&options_, tensors_.data(), tensors_.size(), &second, &error_),
            HOLDFAST_OK);
  const holdfast_collective collective = AllReduce(5);
  holdfast_collective_begin(second, &collective);
  EXPECT_THAT(Read().in_flight, SizeIs(1)) << "operations of another client belong to another rank";
  holdfast_collective_end(nullptr, before);
  EXPECT_THAT(Read().in_flight, IsEmpty());
  holdfast_close(second, 0, nullptr);
  Close();
  // The next client is the first one again.
  options_.socket_path = socket_.c_str();
  options_.connect_timeout_ms = 60'000;
  ASSERT_EQ(Open(), HOLDFAST_OK) << Message();
  holdfast_step(nullptr, 31);
  EXPECT_EQ(Read().progress.step, 31U);
}

TEST_F(TrainerTest, OlderProgramsAndInvalidCalls) {
  agent_->Start();
  ASSERT_EQ(Open(), HOLDFAST_OK) << Message();
  holdfast_collective collective = AllReduce(5);
  collective.struct_size = offsetof(holdfast_collective, dtype);
  holdfast_collective_end(client_, holdfast_collective_begin(client_, &collective));
  collective.struct_size = sizeof collective;
  collective.kind = collective.algorithm = collective.protocol = collective.channels = ~0U;
  collective.dtype = ~0U;
  holdfast_collective_end(client_, holdfast_collective_begin(client_, &collective));
  EXPECT_EQ(holdfast_collective_begin(client_, nullptr), 0U);
  holdfast_peer_transfer(client_, nullptr);
  holdfast_peer_state(client_, 0, ~0U, ~0U, ~0U);
  EXPECT_EQ(holdfast_communicator_describe(client_, nullptr, &error_), HOLDFAST_INVALID_ARGUMENT);
  const RankTelemetry seen = Read();
  ASSERT_THAT(seen.ended, SizeIs(2));
  EXPECT_EQ(seen.ended[0].bytes, 5U);
  EXPECT_EQ(seen.ended[1].kind, CollectiveKind::kOther);
  EXPECT_EQ(seen.ended[1].dtype, HOLDFAST_NO_DTYPE);
}

TEST_F(TrainerTest, AForkedChildRecordsNothing) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "ThreadSanitizer allows no threads in a forked child";
#endif
  agent_->Start();
  ASSERT_EQ(Open(), HOLDFAST_OK) << Message();
  const holdfast_collective collective = AllReduce(5);
  const holdfast_operation operation = holdfast_collective_begin(client_, &collective);
  holdfast_step(client_, 1);
  const pid_t child = ::fork();
  if (child == 0) {
    holdfast_collective_end(client_, operation);
    holdfast_step(client_, 99);
    holdfast_collective_begin(client_, &collective);
    ::_exit(0);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  const RankTelemetry seen = Read();
  holdfast_collective_end(client_, operation);
  EXPECT_EQ(seen.progress.step, 1U);
  EXPECT_THAT(seen.in_flight, SizeIs(1));
  EXPECT_THAT(seen.ended, IsEmpty());
}

TEST_F(TrainerTest, ARestartedAgentReadsTheOperationsInFlight) {
  agent_->Start();
  ASSERT_EQ(Open(), HOLDFAST_OK) << Message();
  const holdfast_collective collective = AllReduce(5);
  const holdfast_operation operation = holdfast_collective_begin(client_, &collective);
  agent_->Stop();
  ASSERT_TRUE(Eventually([&] { return !Connected(); }));
  ForgetWriter(agent_->segment()->control().collectives);  // as the agent does before a Welcome
  EXPECT_FALSE(Read().present);
  agent_->Start();
  EXPECT_TRUE(Eventually([&] { return Connected() && Read().in_flight.size() == 1; }));
  holdfast_collective_end(client_, operation);
}

TEST_F(TrainerTest, TheExampleTrainersCollectivesAreRead) {
  Train({});
  ASSERT_TRUE(Attached());
  std::map<CollectiveKind, uint64_t> kinds;
  std::map<Direction, uint64_t> bytes;
  size_t steps = 0;
  const auto take = [&] {
    const RankTelemetry seen = Read();
    for (const CollectiveRecord& record : seen.ended) ++kinds[record.kind];
    for (const PeerTransfers& sums : seen.peers) {
      EXPECT_EQ(sums.peer, 1U);
      bytes[sums.direction] += sums.bytes;
    }
    EXPECT_EQ(seen.gaps.nonsense, 0U);
    EXPECT_EQ(seen.gaps.dropped, 0U);
    steps += seen.steps.size();
    return steps >= 20;
  };
  ASSERT_TRUE(Eventually(take));
  take();  // steps are read after collectives, so some of the last step may be missing
  // The wait for the attachment may have read a part of the first step.
  EXPECT_GE(kinds[CollectiveKind::kReduceScatter], 19U * 5);
  EXPECT_GE(kinds[CollectiveKind::kAllGather], 19U * 6);
  EXPECT_GT(bytes[Direction::kSend], 0U);
  EXPECT_GT(bytes[Direction::kReceive], 0U);
}

TEST_F(TrainerTest, ARankWaitsForARankThatHangs) {
  Train({"--hang-at-step", "5"});
  ASSERT_TRUE(Attached());
  ASSERT_TRUE(Eventually([&] {
    const RankTelemetry seen = Read();
    return seen.in_flight.size() == 1 && seen.in_flight[0].age_ns > 300'000'000;
  }));
  const RankTelemetry seen = Read();
  EXPECT_EQ(seen.progress.step, 5U);
  ASSERT_THAT(seen.in_flight, SizeIs(1));
  const InFlight& stuck = seen.in_flight[0];
  EXPECT_EQ(stuck.record.kind, CollectiveKind::kReduceScatter);
  EXPECT_EQ(stuck.record.step, 5U);
  ASSERT_TRUE(stuck.edge.has_value());
  EXPECT_EQ(stuck.edge->peer, 1U);
  EXPECT_EQ(stuck.edge->state, EdgeState::kReceiveWait);
  EXPECT_GT(seen.silent_ns, 300'000'000U);
}

TEST_F(TrainerTest, ARankWaitsForASlowRank) {
  Train({"--slow-ms", "30", "--slow-from-step", "3"});
  ASSERT_TRUE(Attached());
  uint64_t longest_wait_ns = 0;
  ASSERT_TRUE(Eventually([&] {
    const RankTelemetry seen = Read();
    for (const PeerTransfers& sums : seen.peers) {
      if (sums.direction == Direction::kReceive) {
        longest_wait_ns = std::max(longest_wait_ns, sums.peer_wait_ns);
      }
    }
    return seen.progress.step > 6;
  }));
  EXPECT_GT(longest_wait_ns, 20'000'000U);
}

}  // namespace
}  // namespace holdfast::agent
