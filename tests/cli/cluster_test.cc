// Every online command against real processes: a coordinator, two agents, four ranks that save
// through the client library.

#define HOLDFAST_HPP_EXPLICIT_NAMESPACE
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <holdfast/holdfast.hpp>

#include "testing/cluster/cluster.h"
#include "tests/cli/cli_test_util.h"

namespace holdfast::cli {
namespace {

using std::chrono::milliseconds;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

constexpr uint32_t kWorld = 4;
constexpr uint64_t kElements = 500'000;
constexpr milliseconds kPatience(60'000);

/// The state of rank `rank` at `step`.
std::vector<float> StateOf(uint32_t rank, uint64_t step) {
  std::vector<float> state(kElements);
  for (uint64_t i = 0; i < kElements; ++i)
    state[i] = static_cast<float>(i % 977) + static_cast<float>(rank) * 1000 +
               static_cast<float>(step) / 8;
  return state;
}

class ClusterTest : public testing::Test {
 protected:
  void SetUp() override {
    local::ClusterOptions options;
    options.root = folder_.path();
    options.nodes = 2;
    options.arena_bytes = 128ULL << 20;
    if (!peers_) options.agent_settings = {"peers.enabled=false"};
    cluster_ = std::make_unique<local::Cluster>(options);
    Status started = cluster_->Start();
    ASSERT_TRUE(started.ok()) << started.ToString();
    for (uint32_t rank = 0; rank < kWorld; ++rank) Connect(rank);
  }

  void Connect(uint32_t rank) {
    states_[rank].resize(kElements);
    v1::Options options{.job = "lm", .rank = rank, .world = kWorld, .run_id = "first"};
    options.socket_path = cluster_->AgentSocket(static_cast<int>(rank % 2));
    std::vector<v1::Tensor> tensors = {
        v1::Slice("weights", states_[rank], {kElements}, {kElements * kWorld}, {kElements * rank})};
    auto client = v1::Client::Open(options, tensors);
    ASSERT_TRUE(client.ok()) << client.status().ToString();
    clients_.push_back(std::make_unique<v1::Client>(std::move(*client)));
  }

  /// Saves `step` on all ranks and waits until it is committed on disk.
  void SaveEverywhere(uint64_t step) {
    for (uint32_t rank = 0; rank < kWorld; ++rank) {
      clients_[rank]->Guard().Ignore();
      std::vector<float> state = StateOf(rank, step);
      std::copy(state.begin(), state.end(), states_[rank].begin());  // the client holds the address
      auto saved = clients_[rank]->Save(step, {{"rng", "seed " + std::to_string(rank)}});
      ASSERT_TRUE(saved.ok()) << saved.ToString();
    }
    for (auto& client : clients_) {
      auto waited = client->Wait(step, v1::Tier::kDisk, kPatience);
      ASSERT_TRUE(waited.ok()) << waited.ToString();
    }
  }

  /// Shards that are on disk.
  size_t Seals() const {
    size_t count = 0;
    for (int node = 0; node < 2; ++node) {
      for (const std::string& dir : cluster_->DataDirs(node)) {
        std::error_code error;
        for (const auto& entry : std::filesystem::recursive_directory_iterator(dir, error)) {
          if (entry.path().extension() == ".seal") ++count;
        }
      }
    }
    return count;
  }

  CliResult Cli(std::vector<std::string> args) {
    args.insert(args.begin(), {"--endpoint", cluster_->endpoint()});
    return RunCli(args);
  }

  void ExpectRestored(const std::string& dir, uint64_t step) {
    for (uint32_t rank = 0; rank < kWorld; ++rank) {
      std::string path = dir + "/rank-0000" + std::to_string(rank) + "-of-00004.safetensors";
      std::string bytes = ReadText(path);
      auto image = ParseImage(std::as_bytes(std::span(bytes)), bytes.size());
      ASSERT_TRUE(image.has_value()) << path << ": " << image.error().ToString();
      EXPECT_EQ(image->identity, Identity("lm", 1, step, rank, kWorld));
      ASSERT_EQ(image->tensors.size(), 1U);
      std::vector<float> expected = StateOf(rank, step);
      ASSERT_EQ(image->tensors[0].bytes(), expected.size() * sizeof(float));
      EXPECT_EQ(std::memcmp(bytes.data() + image->data_offset + image->tensors[0].begin,
                            expected.data(), image->tensors[0].bytes()),
                0)
          << path << " differs";
      ASSERT_EQ(image->extras.size(), 1U);
      EXPECT_EQ(bytes.substr(image->data_offset + image->extras[0].begin, 6),
                "seed " + std::to_string(rank));
    }
  }

  std::vector<std::string> WithDataDirs(std::vector<std::string> args, const std::string& option) {
    args.push_back(option);
    for (int node = 0; node < 2; ++node) {
      for (const std::string& dir : cluster_->DataDirs(node)) args.push_back(dir);
    }
    return args;
  }

  bool peers_ = true;
  TempFolder folder_;
  std::unique_ptr<local::Cluster> cluster_;
  std::vector<float> states_[kWorld];
  std::vector<std::unique_ptr<v1::Client>> clients_;
};

/// Without parity: a shard on one node is on no other.
class UnprotectedClusterTest : public ClusterTest {
 protected:
  UnprotectedClusterTest() { peers_ = false; }
};

TEST_F(UnprotectedClusterTest, SavePinVerifyAndRestoreAJob) {
  SaveEverywhere(1);
  SaveEverywhere(2);

  CliResult status = Cli({"status"});
  EXPECT_EQ(status.exit_code, 0) << status.Shown();
  EXPECT_THAT(status.out, AllOf(HasSubstr("HOLDFAST_OK  cluster local"),
                                HasSubstr("2 of 2 nodes up"), HasSubstr("4/4"), HasSubstr("1-2")));
  auto json = Cli({"status", "lm", "-o", "json"}).Json();
  EXPECT_EQ(json["jobs"][0]["phase"], "joined");
  EXPECT_EQ(json["jobs"][0]["memory_committed"], "1-2");
  EXPECT_EQ(json["jobs"][0]["disk_committed"], "1-2");
  EXPECT_TRUE(json["jobs"][0]["disk_committed_at"].is_string());
  EXPECT_EQ(json["jobs"][0]["restorable"], "1-2");

  auto versions = Cli({"versions", "lm", "-o", "json"}).Json();
  ASSERT_EQ(versions["versions"].size(), 2U);
  EXPECT_EQ(versions["versions"][0]["version"], "1-2");
  EXPECT_EQ(versions["versions"][0]["world"], kWorld);
  EXPECT_EQ(versions["versions"][0]["available"], nlohmann::json({"memory", "disk"}));
  EXPECT_GT(versions["versions"][0]["bytes"], kWorld * kElements * sizeof(float));

  EXPECT_EQ(Cli({"pin", "lm", "1-1"}).exit_code, 0);
  EXPECT_EQ(Cli({"versions", "lm", "-o", "json"}).Json()["versions"][1]["pinned"], true);
  EXPECT_EQ(Cli({"unpin", "lm", "1-1"}).exit_code, 0);
  EXPECT_EQ(Cli({"pin", "lm", "7-7"}).exit_code, 4);
  EXPECT_EQ(Cli({"status", "other"}).exit_code, 4);
  EXPECT_EQ(Cli({"versions", "other"}).exit_code, 4);

  auto dump = Cli({"dump", "n1"}).Json();
  EXPECT_EQ(dump["dump"]["ranks"].size(), 2U);

  CliResult verify = Cli({"verify", "--deep"});
  EXPECT_EQ(verify.exit_code, 0) << verify.Shown();
  EXPECT_THAT(verify.out, HasSubstr("every byte: 12 ok"));

  for (const char* tier : {"memory", "disk"}) {
    std::string to = folder_ / (std::string("out-") + tier);
    CliResult restore = Cli({"restore", "lm", "--to", to, "--tier", tier});
    EXPECT_EQ(restore.exit_code, 0) << restore.Shown();
    ExpectRestored(to, 2);
  }
  CliResult older = Cli({"restore", "lm", "--to", folder_ / "older", "--version", "1-1"});
  EXPECT_EQ(older.exit_code, 0) << older.Shown();
  ExpectRestored(folder_ / "older", 1);
}

TEST_F(UnprotectedClusterTest, DamageLostNodesAndALostCoordinatorAreReported) {
  SaveEverywhere(1);
  std::string shard = cluster_->DataDirs(1)[0] + "/lm/v1-1/rank-3.safetensors";
  ASSERT_TRUE(fs::exists(shard));
  FlipBit(shard, (1 << 20) + 11);
  CliResult verify = Cli({"verify", "lm", "--deep"});
  EXPECT_EQ(verify.exit_code, 2) << verify.Shown();
  EXPECT_THAT(verify.out, testing::ContainsRegex("DAMAGED lm/1-1/rank-3 .disk, n1.*chunk 1 "));

  // Instead of the damaged replica, that of another tier is read.
  fs::create_directory(folder_ / "out");
  CliResult disk = Cli({"restore", "lm", "--to", folder_ / "out", "--tier", "disk"});
  EXPECT_NE(disk.exit_code, 0) << disk.Shown();
  EXPECT_TRUE(fs::is_empty(folder_ / "out"));
  CliResult memory = Cli({"restore", "lm", "--to", folder_ / "out"});
  EXPECT_EQ(memory.exit_code, 0) << memory.Shown();
  ExpectRestored(folder_ / "out", 1);

  cluster_->agent(1).Kill();
  CliResult status;
  local::WaitUntil(
      [&] {
        status = Cli({"status", "-o", "json"});
        return status.out.find("NODE_DOWN") != std::string::npos;
      },
      kPatience);
  EXPECT_EQ(status.exit_code, 2) << status.Shown();
  EXPECT_THAT(status.out, AllOf(HasSubstr("NODE_DOWN"), HasSubstr("NOT_RESTORABLE")));
  EXPECT_EQ(status.Json()["health"], "HOLDFAST_ERR");
  EXPECT_EQ(Cli({"verify", "lm"}).exit_code, 2);
  CliResult none = Cli({"restore", "lm", "--to", folder_ / "none"});
  EXPECT_EQ(none.exit_code, 1) << none.Shown();
  EXPECT_THAT(none.err, HasSubstr("rank 3"));
  EXPECT_EQ(Cli({"dump", "n1"}).exit_code, 5);

  cluster_->coordinator().Signal(SIGSTOP);
  EXPECT_EQ(Cli({"status", "--timeout", "500ms"}).exit_code, 124);
  cluster_->coordinator().Kill();
  CliResult gone = Cli({"status"});
  EXPECT_EQ(gone.exit_code, 5) << gone.Shown();
}

TEST_F(ClusterTest, ParityGroupsAreShown) {
  SaveEverywhere(1);
  for (auto& client : clients_) {
    auto waited = client->Wait(1, v1::Tier::kPeer, kPatience);
    ASSERT_TRUE(waited.ok()) << waited.ToString();
  }
  auto nodes = Cli({"nodes", "-o", "json"}).Json()["nodes"];
  ASSERT_EQ(nodes.size(), 2U);
  for (const auto& node : nodes) {
    EXPECT_GT(node["parity_bytes"], kElements * sizeof(float))
        << "the parity of two ranks on one node";
    ASSERT_EQ(node["memberships"].size(), 1U);
    EXPECT_EQ(node["memberships"][0]["job"], "lm");
    EXPECT_EQ(node["memberships"][0]["members"], 2);
    EXPECT_EQ(node["memberships"][0]["parity"], 1);
    EXPECT_EQ(node["health"], "HOLDFAST_OK");
  }
  EXPECT_THAT(Cli({"nodes"}).out, HasSubstr("lm/0      0/2       1+1"));
  EXPECT_THAT(Cli({"versions", "lm"}).out, HasSubstr("any 1 node of each group"));
  EXPECT_EQ(Cli({"status", "lm", "-o", "json"}).Json()["jobs"][0]["peer_committed"], "1-1");
  CliResult one = Cli({"advise", "lm", "--without", "n1"});
  EXPECT_EQ(one.exit_code, 0) << one.Shown();
  CliResult both = Cli({"advise", "--without", "n0,n1"});
  EXPECT_EQ(both.exit_code, 2) << both.Shown();
  EXPECT_THAT(both.out, HasSubstr("version 1-1 has no replica of rank 0 (last on n0)"));
  EXPECT_EQ(Cli({"advise", "--without", "n7"}).exit_code, 4);
  cluster_->agent(1).Kill();
  cluster_->KillKeeper(1);
  CliResult without;
  local::WaitUntil(
      [&] {
        without = Cli({"nodes"});
        return without.out.find("DOWN") != std::string::npos;
      },
      kPatience);
  EXPECT_EQ(without.exit_code, 2) << without.Shown();
  EXPECT_THAT(without.out, HasSubstr("NODE_DOWN"));
}

TEST_F(ClusterTest, AnotherCoordinatorAnswersWhenTheFirstIsSilent) {
  const std::string path = folder_ / "silent.sock";
  const int listener = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, path.c_str(), sizeof(address.sun_path) - 1);
  ASSERT_EQ(::bind(listener, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  ASSERT_EQ(::listen(listener, 4), 0);
  for (const char* command : {"status", "certificates"}) {
    const CliResult result = RunCli(
        {command, "--timeout", "4s", "--endpoint", "unix:" + path + "," + cluster_->endpoint()});
    EXPECT_NE(result.exit_code, 124) << command << result.Shown();
    EXPECT_THAT(result.out + result.err, Not(HasSubstr("did not answer"))) << command;
  }
  ::close(listener);
}

TEST_F(ClusterTest, DisksOfAStoppedClusterCanBeRestored) {
  SaveEverywhere(1);
  SaveEverywhere(2);
  // The agents write parity to disk without a request.
  ASSERT_TRUE(local::WaitUntil([&] { return Seals() == 2 * (kWorld + 2); }, kPatience));
  cluster_->KillEverything();
  CliResult verify = RunCli(WithDataDirs({"verify", "lm", "--deep"}, "--data-dir"));
  EXPECT_EQ(verify.exit_code, 0) << verify.Shown();
  CliResult restore =
      RunCli(WithDataDirs({"restore", "lm", "--to", folder_ / "out"}, "--from-data-dir"));
  EXPECT_EQ(restore.exit_code, 0) << restore.Shown();
  ExpectRestored(folder_ / "out", 2);
}

}  // namespace
}  // namespace holdfast::cli
