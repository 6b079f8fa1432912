#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <atomic>
#include <fstream>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <set>
#include <thread>

#include "tests/agent/pipeline/harness.h"
#include "tests/agent/server/cluster.h"

// Tests the agent as its users see it: the real binaries with a trainer at the socket.

namespace holdfast::agent {
namespace {

using ::testing::HasSubstr;

constexpr uint64_t kTensorBytes = 2'500'000;

#define ASSERT_OK(expr)                                  \
  do {                                                   \
    const auto& ok_status = (expr);                      \
    ASSERT_TRUE(ok_status.ok()) << ok_status.ToString(); \
  } while (false)

ShardIdentity Shard(uint64_t incarnation, uint64_t step) {
  return {"job", {Incarnation{incarnation}, Step{step}}, Rank{0}, 1};
}

class AgentTest : public ::testing::Test {
 protected:
  void Start(int agents = 1) {
    ASSERT_OK(cluster_.StartCoordinator());
    for (int node = 0; node < agents; ++node) ASSERT_OK(cluster_.StartAgent(node));
  }
  // Retries while the coordinator or the agent is not ready, as the client library does.
  Result<TestTrainer> Connect(const TestTrainer::Options& options = {}, int node = 0) {
    Result<TestTrainer> trainer = Fail(UnavailableError("not tried"));
    Eventually([&] {
      trainer = TestTrainer::Connect(cluster_.Socket(node), options);
      return trainer || trainer.error().code() != ErrorCode::kUnavailable;
    });
    return trainer;
  }
  void SaveDurably(TestTrainer& trainer, uint64_t step) {
    auto saved = trainer.Save(step, kTensorBytes);
    ASSERT_TRUE(saved) << saved.error().ToString();
    ASSERT_TRUE(trainer.AwaitNotice(NoticeKind::kCommitted, step, Tier::kDisk))
        << cluster_.AgentLog(0);
  }
  /// Returns how many bytes the node has sent to its peers.
  uint64_t PeerBytes(int node) {
    DumpReply reply;
    grpc::ClientContext context;
    EXPECT_TRUE(cluster_.Data(node)->Dump(&context, {}, &reply).ok());
    return nlohmann::json::parse(reply.json()).at("peers").at("data_bytes");
  }
  void ExpectRestored(TestTrainer& trainer, VersionId version, Tier tier) {
    auto found = trainer.FindRestore();
    ASSERT_TRUE(found) << found.error().ToString();
    ASSERT_EQ(found->code, 0U) << GetText(found->text);
    ASSERT_EQ((VersionId{Incarnation{found->incarnation}, Step{found->step}}), version);
    EXPECT_EQ(found->tier, static_cast<uint32_t>(tier));
    const auto image =
        MakeImage(Shard(version.incarnation.value, version.step.value), kTensorBytes);
    ASSERT_EQ(found->image_bytes, image.size());
    EXPECT_TRUE(std::equal(image.begin(), image.end(), trainer.slot(found->slot).begin()));
  }

  TestCluster cluster_;
};

TEST_F(AgentTest, SavesCommitAndCanBeReadFromBothTiers) {
  Start();
  auto trainer = Connect();
  ASSERT_TRUE(trainer) << trainer.error().ToString();
  for (uint64_t step = 1; step <= 3; ++step) SaveDurably(*trainer, step);
  const auto image = MakeImage(Shard(1, 3), kTensorBytes);
  auto data = cluster_.Data(0);
  for (Tier tier : {Tier::kMemory, Tier::kDisk}) {
    ShardSeal seal;
    auto read = ReadShardFrom(*data, Shard(1, 3).key(), tier, &seal);
    ASSERT_TRUE(read) << read.error().ToString();
    EXPECT_EQ(*read, image);
    EXPECT_EQ(seal.identity, Shard(1, 3));

    VerifyShardRequest request;
    request.set_job("job");
    request.set_incarnation(1);
    request.set_step(3);
    request.set_tier(static_cast<uint32_t>(tier));
    request.set_deep(true);
    VerifyShardReply reply;
    grpc::ClientContext context;
    ASSERT_TRUE(data->VerifyShard(&context, request, &reply).ok());
    EXPECT_EQ(reply.code(), 0U) << reply.message();
    EXPECT_EQ(reply.digest(), seal.digest());
    EXPECT_EQ(reply.image_bytes(), image.size());
  }
  DumpReply dump;
  grpc::ClientContext context;
  ASSERT_TRUE(data->Dump(&context, DumpRequest(), &dump).ok());
  const auto json = nlohmann::json::parse(dump.json());
  EXPECT_EQ(json.at("node"), "n0");
  EXPECT_EQ(json.at("ranks").at(0).at("job"), "job");
  EXPECT_EQ(json.at("ranks").at(0).at("slots").size(), 3U);
}

TEST_F(AgentTest, InvalidReadsAreRefused) {
  Start();
  auto data = cluster_.Data(0);
  ShardSeal seal;
  ShardKey key = Shard(1, 1).key();
  EXPECT_EQ(ReadShardFrom(*data, key, Tier::kMemory, &seal).error().code(), ErrorCode::kNotFound);
  EXPECT_EQ(ReadShardFrom(*data, key, Tier::kDisk, &seal).error().code(), ErrorCode::kNotFound);
  EXPECT_EQ(ReadShardFrom(*data, key, Tier::kPeer, &seal).error().code(),
            ErrorCode::kInvalidArgument);
  EXPECT_EQ(ReadShardFrom(*data, key, static_cast<Tier>(99), &seal).error().code(),
            ErrorCode::kInvalidArgument);
  for (const char* job : {"../../etc", "", "a/b", ".."}) {
    key.job = job;
    EXPECT_EQ(ReadShardFrom(*data, key, Tier::kDisk, &seal).error().code(),
              ErrorCode::kInvalidArgument)
        << job;
  }
  key = Shard(0, 1).key();
  EXPECT_EQ(ReadShardFrom(*data, key, Tier::kDisk, &seal).error().code(),
            ErrorCode::kInvalidArgument);
}

TEST_F(AgentTest, PartsOfAShardAreReadFromBothTiersWithinItsImage) {
  Start();
  auto trainer = Connect();
  ASSERT_TRUE(trainer) << trainer.error().ToString();
  SaveDurably(*trainer, 1);
  const ShardKey key = Shard(1, 1).key();
  const auto image = MakeImage(Shard(1, 1), kTensorBytes);
  const auto data = cluster_.Data(0);
  for (Tier tier : {Tier::kMemory, Tier::kDisk}) {
    SCOPED_TRACE(ToString(tier));
    ShardSeal seal;
    auto none = ReadShardFrom(*data, key, tier, &seal, ShardPart{0, 0});
    ASSERT_TRUE(none) << none.error().ToString();
    EXPECT_EQ(seal.image_bytes, image.size());
    // The second chunk, and the range from it to the end.
    for (uint64_t bytes : {kChunkBytes, image.size() - kChunkBytes}) {
      auto part = ReadShardFrom(*data, key, tier, &seal, ShardPart{kChunkBytes, bytes});
      ASSERT_TRUE(part) << part.error().ToString();
      ASSERT_EQ(part->size(), bytes);
      EXPECT_TRUE(std::equal(part->begin(), part->end(), image.begin() + kChunkBytes));
    }
    const auto refused = [&](uint64_t offset) {
      auto read = ReadShardFrom(*data, key, tier, &seal, ShardPart{offset, kChunkBytes});
      return read ? ErrorCode::kOk : read.error().code();
    };
    EXPECT_EQ(refused(1), ErrorCode::kInvalidArgument);
    EXPECT_EQ(refused(image.size() / kChunkBytes * kChunkBytes), ErrorCode::kInvalidArgument);
    EXPECT_EQ(refused(1ULL << 62), ErrorCode::kInvalidArgument);
    EXPECT_EQ(refused(0 - kChunkBytes), ErrorCode::kInvalidArgument);
    EXPECT_EQ(ReadShardFrom(*data, Shard(1, 9).key(), tier, &seal).error().code(),
              ErrorCode::kNotFound);
  }
}

TEST_F(AgentTest, TooManyReadersAreRefusedImmediately) {
  Start();
  auto trainer = Connect();
  ASSERT_TRUE(trainer) << trainer.error().ToString();
  SaveDurably(*trainer, 1);
  auto data = cluster_.Data(0);
  // Readers that receive nothing keep their calls open.
  constexpr int kReaders = 200;
  std::vector<std::unique_ptr<grpc::ClientContext>> contexts;
  std::vector<std::unique_ptr<grpc::ClientReader<ShardPiece>>> readers;
  std::vector<std::thread> threads;
  std::atomic<int> refused{0};
  std::mutex mutex;
  std::set<std::string> texts;
  ReadShardRequest request;
  request.set_job("job");
  request.set_incarnation(1);
  request.set_step(1);
  request.set_tier(static_cast<uint32_t>(Tier::kMemory));
  request.set_part(true);
  request.set_bytes(MakeImage(Shard(1, 1), kTensorBytes).size() / kChunkBytes * kChunkBytes);
  for (int i = 0; i < kReaders; ++i) {
    contexts.push_back(std::make_unique<grpc::ClientContext>());
    readers.push_back(data->ReadShard(contexts.back().get(), request));
    threads.emplace_back([&, reader = readers.back().get()] {
      ShardPiece piece;
      if (reader->Read(&piece)) return;
      const grpc::Status status = reader->Finish();
      if (status.error_code() == grpc::StatusCode::CANCELLED) return;
      const std::scoped_lock lock(mutex);
      texts.insert(status.error_message());
      ++refused;
    });
  }
  EXPECT_TRUE(Eventually([&] { return refused >= kReaders / 2; }, 5'000)) << refused.load();
  std::ifstream status("/proc/" + std::to_string(cluster_.agent(0).pid()) + "/status");
  int agent_threads = 0;
  for (std::string line; std::getline(status, line);) {
    if (line.rfind("Threads:", 0) == 0) agent_threads = std::stoi(line.substr(8));
  }
  EXPECT_GT(agent_threads, 0);
  EXPECT_LT(agent_threads, kReaders);
  for (const auto& context : contexts) context->TryCancel();
  for (std::thread& thread : threads) thread.join();
  readers.clear();
  EXPECT_THAT(texts, ::testing::Contains(HasSubstr("again")));
  // Afterwards the agent serves as before.
  ShardSeal seal;
  EXPECT_TRUE(Eventually(
      [&] { return ReadShardFrom(*data, Shard(1, 1).key(), Tier::kMemory, &seal).has_value(); }));
}

TEST_F(AgentTest, ARestartedAgentHasTheMemory) {
  Start();
  auto trainer = Connect();
  ASSERT_TRUE(trainer) << trainer.error().ToString();
  SaveDurably(*trainer, 1);
  const auto image = MakeImage(Shard(1, 2), kTensorBytes);
  auto open = trainer->BeginSave(2, image.size());
  ASSERT_TRUE(open);
  trainer->Copy(open->slot, image, 1'200'000);
  cluster_.agent(0).Kill();
  EXPECT_TRUE(trainer->AwaitClosed());
  trainer->HangUp();
  ASSERT_OK(cluster_.StartAgent(0));
  // The same start of the job continues in the same memory.
  auto again = Connect();
  ASSERT_TRUE(again) << again.error().ToString();
  EXPECT_EQ(again->incarnation(), Incarnation{1});
  EXPECT_EQ(again->welcome().segment_id, trainer->welcome().segment_id);
  SaveDurably(*again, 2);
  again->HangUp();
  auto next = Connect({.run_id = "run-2"});
  ASSERT_TRUE(next) << next.error().ToString();
  ExpectRestored(*next, Shard(1, 2).version, Tier::kMemory);
}

TEST_F(AgentTest, AfterLosingTheMemoryItRestoresFromDisk) {
  Start();
  {
    auto trainer = Connect();
    ASSERT_TRUE(trainer) << trainer.error().ToString();
    for (uint64_t step = 1; step <= 2; ++step) SaveDurably(*trainer, step);
  }
  cluster_.agent(0).Kill();
  cluster_.KillKeeper(0);
  cluster_.coordinator().Kill();
  ASSERT_OK(cluster_.StartCoordinator());
  ASSERT_OK(cluster_.StartAgent(0));
  auto next = Connect({.run_id = "run-2"});
  ASSERT_TRUE(next) << next.error().ToString();
  ExpectRestored(*next, Shard(1, 2).version, Tier::kDisk);
  SaveDurably(*next, 3);
}

TEST_F(AgentTest, ADeadCoordinatorBlocksNoTrainer) {
  Start();
  auto trainer = Connect();
  ASSERT_TRUE(trainer) << trainer.error().ToString();
  SaveDurably(*trainer, 1);
  cluster_.coordinator().Kill();
  // Sealing continues until the slots are full; then saves are refused, not blocked.
  uint64_t step = 2;
  for (; step <= 3; ++step) {
    ASSERT_TRUE(trainer->Save(step, kTensorBytes));
    ASSERT_TRUE(trainer->AwaitNotice(NoticeKind::kSealed, step, Tier::kMemory));
  }
  auto refused = trainer->BeginSave(step, 5000);
  ASSERT_TRUE(refused);
  EXPECT_EQ(ErrorFromNumber(refused->code), ErrorCode::kResourceExhausted);
  ASSERT_OK(cluster_.StartCoordinator());
  EXPECT_TRUE(trainer->AwaitNotice(NoticeKind::kCommitted, 3, Tier::kMemory));
  SaveDurably(*trainer, 5);
}

TEST_F(AgentTest, RestoresFromAnotherNodesMemory) {
  Start(2);
  {
    auto trainer = Connect();
    ASSERT_TRUE(trainer) << trainer.error().ToString();
    SaveDurably(*trainer, 1);
  }
  auto next = Connect({.run_id = "run-2"}, 1);
  ASSERT_TRUE(next) << next.error().ToString();
  ExpectRestored(*next, Shard(1, 1).version, Tier::kMemory);
  EXPECT_GE(PeerBytes(0), MakeImage(Shard(1, 1), kTensorBytes).size()) << "read as by any peer";
  SaveDurably(*next, 2);
}

TEST_F(AgentTest, RestoresFromANodeWithoutParityAtThePaceOfItsPeers) {
  ASSERT_OK(cluster_.StartCoordinator());
  for (int node = 0; node < 2; ++node) {
    ASSERT_OK(
        cluster_.StartAgent(node, "", {"peers.enabled=false", "peers.rate_bytes_per_s=1000000"}));
  }
  {
    auto trainer = Connect();
    ASSERT_TRUE(trainer) << trainer.error().ToString();
    SaveDurably(*trainer, 1);
  }
  const auto begin = Clock::Real().Now();
  for (const char* run : {"run-2", "run-3", "run-4", "run-5"}) {
    auto next = Connect({.run_id = run}, 1);
    ASSERT_TRUE(next) << next.error().ToString();
    ExpectRestored(*next, Shard(1, 1).version, Tier::kMemory);
    next->HangUp();
    cluster_.agent(1).Kill();
    cluster_.KillKeeper(1);
    ASSERT_OK(
        cluster_.StartAgent(1, "", {"peers.enabled=false", "peers.rate_bytes_per_s=1000000"}));
  }
  const uint64_t sent = PeerBytes(0);
  EXPECT_GE(sent, 4 * MakeImage(Shard(1, 1), kTensorBytes).size());
  constexpr uint64_t kUnpaced = 5 << 20;  // the burst and a unit
  ASSERT_GT(sent, kUnpaced + 1'000'000) << "restore more often";
  EXPECT_GE(Clock::Real().Now() - begin, std::chrono::microseconds(sent - kUnpaced));
}

TEST_F(AgentTest, AReaderDetectsDamageAtTheSender) {
  Start();
  auto trainer = Connect();
  ASSERT_TRUE(trainer) << trainer.error().ToString();
  auto slot = trainer->Save(1, kTensorBytes);
  ASSERT_TRUE(slot);
  ASSERT_TRUE(trainer->AwaitNotice(NoticeKind::kCommitted, 1, Tier::kDisk));
  trainer->slot(*slot)[1'500'000] ^= std::byte{2};
  ShardSeal seal;
  const auto read = ReadShardFrom(*cluster_.Data(0), Shard(1, 1).key(), Tier::kMemory, &seal);
  ASSERT_FALSE(read);
  EXPECT_EQ(read.error().code(), ErrorCode::kDataLoss) << read.error().ToString();
  EXPECT_THAT(read.error().message(), HasSubstr("chunk 1"));
}

TEST_F(AgentTest, TheCoordinatorMayStartLater) {
  ASSERT_OK(cluster_.StartAgent(0));
  auto early = TestTrainer::Connect(cluster_.Socket(0), {});
  ASSERT_FALSE(early);
  EXPECT_EQ(early.error().code(), ErrorCode::kUnavailable);
  ASSERT_OK(cluster_.StartCoordinator());
  auto trainer = Connect();
  ASSERT_TRUE(trainer) << trainer.error().ToString();
  SaveDurably(*trainer, 1);
}

TEST_F(AgentTest, AnIdleAgentStaysAttached) {
  Start();
  auto stub = cluster_.Control();
  const auto alive = [&] {
    coordinator::GetStatusRequest request;
    coordinator::GetStatusReply reply;
    grpc::ClientContext context;
    return stub->GetStatus(&context, request, &reply).ok() && reply.nodes_size() == 1 &&
           reply.nodes(0).alive();
  };
  EXPECT_TRUE(Eventually(alive));
  // Longer than its lease.
  EXPECT_FALSE(Eventually([&] { return !alive(); }, 4'500)) << cluster_.AgentLog(0);
}

TEST_F(AgentTest, ASecondAgentOfTheRunDirectoryIsRefused) {
  Start();
  const std::string listen = "data_listen=unix:" + cluster_.root() + "/d2.sock";
  auto second =
      Program::Start(cluster_.AgentArgs(0, {listen}), {}, cluster_.root() + "/second.log");
  ASSERT_TRUE(second);
  const int status = second->Wait(20'000);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 1) << status;
  EXPECT_THAT(ReadText(cluster_.root() + "/second.log"), HasSubstr("another agent (process "));
  EXPECT_TRUE(cluster_.agent(0).running());
}

TEST_F(AgentTest, AForeignClustersDirectoryIsRefused) {
  Start();
  cluster_.agent(0).Kill();
  EXPECT_FALSE(cluster_.StartAgent(0, "", {"cluster=other"}).ok());
  EXPECT_THAT(cluster_.AgentLog(0), HasSubstr("cluster"));
}

TEST_F(AgentTest, OpenAddressesNeedTls) {
  EXPECT_FALSE(cluster_.StartAgent(0, "", {"data_listen=0.0.0.0:0"}).ok());
  EXPECT_THAT(cluster_.AgentLog(0), HasSubstr("no TLS is configured"));
}

TEST_F(AgentTest, SigtermEndsTheAgentInOrderAndKeepsTheMemory) {
  Start();
  auto trainer = Connect();
  ASSERT_TRUE(trainer) << trainer.error().ToString();
  SaveDurably(*trainer, 1);
  cluster_.agent(0).Signal(SIGTERM);
  const int status = cluster_.agent(0).Wait(20'000);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  trainer->HangUp();
  ASSERT_OK(cluster_.StartAgent(0));
  auto next = Connect({.run_id = "run-2"});
  ASSERT_TRUE(next) << next.error().ToString();
  ExpectRestored(*next, Shard(1, 1).version, Tier::kMemory);
}

TEST_F(AgentTest, TheSocketIsOpenToTrainersAndTheDirectoryIsNot) {
  Start();
  struct stat info {};
  ASSERT_EQ(::stat(cluster_.Socket(0).c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777U, 0666U);
  ASSERT_EQ(::stat((cluster_.NodeDir(0) + "/run").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777U, 0755U);
}

}  // namespace
}  // namespace holdfast::agent
