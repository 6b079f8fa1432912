// `holdfast drill partition` and `slow-link`: nodes with addresses of their own lose each other's
// packets, in networks that touch nothing of the machine's.

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdio>
#include <thread>

#include "tests/agent/peers/peers_test_util.h"
#include "tests/e2e/drilled_job.h"
#include "tests/e2e/lan.h"

namespace holdfast::local {
namespace {
using nlohmann::json;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;
constexpr int kNodes = 4;
constexpr int kOperator = kNodes;  // the place of the coordinator and of who runs the drill

class LinkDrillTest : public DrilledJob {
 protected:
  void SetUp() override {
    DrilledJob::SetUp();
    if (std::system("command -v nft >/dev/null") != 0) GTEST_SKIP() << "there is no nft command";
    if (!lan_.Make()) GTEST_SKIP() << "this process may make no network namespaces";
    const std::string secret = root_ + "/secret";
    std::ofstream(secret) << "sixteen bytes or more of it";
    std::filesystem::permissions(secret, std::filesystem::perms::owner_read);
    options_.agent_settings = {"peers.secret_file=" + secret};
    for (int node = 0; node < kNodes; ++node) {
      options_.agent_command_of[node] = lan_.CommandAt(node);
      options_.agent_settings_of[node] = {"peers.listen=" + Lan::Address(node) + ":7100",
                                          "workers.address=" + Lan::Address(node)};
    }
  }
  /// The coordinator, and the data side of the agents, over TLS instead of sockets. False where no
  /// certificates can be made.
  bool UseTls() {
    std::string names = "IP:" + Lan::Address(0);
    for (int place = 1; place <= kNodes; ++place) names += ",IP:" + Lan::Address(place);
    certificates_.emplace(names);
    if (!certificates_->made()) return false;
    const agent::PeerTlsFiles files = certificates_->Node();
    for (const std::string& setting :
         {"tls.ca=" + files.ca, "tls.cert=" + files.cert, "tls.key=" + files.key}) {
      options_.agent_settings.push_back(setting);
      options_.coordinator_settings.push_back(setting);
    }
    options_.cli_options = {"--tls-ca", files.ca, "--tls-cert", files.cert, "--tls-key", files.key};
    options_.endpoint = Lan::Address(kOperator) + ":7070";
    options_.coordinator_command = lan_.CommandAt(kOperator);
    options_.cli_command = lan_.CommandAt(kOperator);
    for (int node = 0; node < kNodes; ++node) {
      options_.agent_settings_of[node].push_back("data_listen=" + Lan::Address(node) + ":7200");
    }
    return true;
  }
  /// The link to all nodes, or to one, becomes slow and fast again; the job ends as it would have.
  void SlowDown(const std::string& target);
  /// Of filters in any node's network.
  int Tables() {
    int tables = 0;
    for (int node = 0; node < kNodes; ++node) {
      const std::string command =
          "ip netns exec " + lan_.Namespace(node) + " nft list tables | grep -q holdfast";
      tables += std::system(command.c_str()) == 0 ? 1 : 0;
    }
    return tables;
  }
  /// HOLDFAST_QUIET_MACHINE=1: what is slow has to be named, too. On a busy machine other links are
  /// as slow now and then.
  const bool quiet_ = std::getenv("HOLDFAST_QUIET_MACHINE") != nullptr;
  Lan lan_{kNodes + 1};
  std::optional<agent::TestCertificates> certificates_;
};

/// Asks the coordinator all the time what of the job's first launch is committed.
class CommitWatch {
 public:
  CommitWatch(const Cluster& cluster, const std::string& node)
      : thread_([this, &cluster, node] {
          while (!stop_) Look(cluster, node);
        }) {}
  ~CommitWatch() { Stop(); }
  CommitWatch(const CommitWatch&) = delete;
  CommitWatch& operator=(const CommitWatch&) = delete;
  void Stop() {
    stop_ = true;
    if (thread_.joinable()) thread_.join();
  }
  /// After Stop(): the newest when the node was first seen lost (0: it never was), and last. Once
  /// it is back, what all had sealed before may be committed.
  uint64_t at_loss() const { return at_loss_; }
  uint64_t while_lost() const { return while_lost_; }

 private:
  void Look(const Cluster& cluster, const std::string& node) {
    const auto result = cluster.Cli({"status", "lm", "-o", "json"});
    const json status = json::parse(result ? result->out : "", nullptr, false);
    if (!status.is_object() || status["jobs"].empty()) return;
    for (const char* tier : {"memory_committed", "peer_committed", "disk_committed"}) {
      const json& version = status["jobs"][0][tier];
      unsigned long incarnation = 0;
      unsigned long step = 0;
      if (!version.is_string() ||
          std::sscanf(version.get<std::string>().c_str(), "%lu-%lu", &incarnation, &step) != 2) {
        continue;
      }
      if (incarnation == 1) newest_ = std::max<uint64_t>(newest_, step);
    }
    for (const json& one : status["nodes"]) {
      if (one["node"] != node || one["alive"] != false) continue;
      while_lost_ = newest_;
      if (at_loss_ == 0) at_loss_ = newest_;
    }
  }

  std::atomic<bool> stop_{false};
  uint64_t at_loss_ = 0;
  uint64_t while_lost_ = 0;
  uint64_t newest_ = 0;
  std::thread thread_;
};

void LinkDrillTest::SlowDown(const std::string& target) {
  params_ = quiet_ ? 300'000 : 80'000;  // so large that blocks do not fit the sockets' buffers
  ASSERT_NO_FATAL_FAILURE(StartJob(kNodes, 0, 1, quiet_ ? 250 : 100));
  // What is slow is so beside its own past.
  const uint64_t past = quiet_ ? 30 : 0;
  ASSERT_TRUE(WaitUntil([&] { return NewestStep() >= past; }, kDrillTimeout));
  ASSERT_NO_FATAL_FAILURE(Drill({"slow-link", "--target", target, "--duration",
                                 quiet_ ? "20s" : "3s", "--rate", quiet_ ? "4MB" : "1MB"}));
  EXPECT_THAT(report_["what"].get<std::string>(), HasSubstr("a second pass in each direction"));
  if (quiet_) {
    EXPECT_EQ(report_["incident_kind"], "communication slow") << report_.dump(1);
  }
  EXPECT_EQ(report_["lost_steps"], 0);
  EXPECT_EQ(Tables(), 0);
  ASSERT_NO_FATAL_FAILURE(ExpectSameEnd());
}

TEST_F(LinkDrillTest, ASlowNodesLinksChangeNothingButTheTime) {
  ASSERT_NO_FATAL_FAILURE(SlowDown("n2"));
  if (quiet_) {
    EXPECT_THAT(report_["blamed_nodes"], Contains("n2"));
  }
}

TEST_F(LinkDrillTest, ASlowLinkOfTwoNodesChangesNothingButTheTime) {
  ASSERT_NO_FATAL_FAILURE(SlowDown("n1,n2"));
  EXPECT_THAT(report_["what"].get<std::string>(), HasSubstr("1 address of n2"));
  if (quiet_) {
    EXPECT_THAT(report_["blamed_nodes"], UnorderedElementsAre("n1", "n2"));
  }
}

TEST_F(LinkDrillTest, APartitionedNodeCommitsNothingAndComesBack) {
  if (!UseTls()) GTEST_SKIP() << "there is no openssl command";
  ASSERT_NO_FATAL_FAILURE(StartJob(kNodes, 0, 1, 100));
  CommitWatch watch(*cluster_, "n2");
  ASSERT_NO_FATAL_FAILURE(Drill({"partition", "--target", "n2", "--duration", "7s"}));
  watch.Stop();
  EXPECT_GT(watch.at_loss(), 0U) << "the node was never seen lost";
  EXPECT_EQ(watch.while_lost(), watch.at_loss());
  EXPECT_THAT(report_["what"].get<std::string>(), HasSubstr("and the coordinator"));
  EXPECT_THAT(report_["blamed_nodes"], Contains("n2")) << report_.dump(1);
  EXPECT_EQ(report_["bytes_equal"], true);
  EXPECT_EQ(Tables(), 0);
  ASSERT_NO_FATAL_FAILURE(ExpectSameEnd());
}

TEST_F(LinkDrillTest, ASpareTakesThePlaceOfAPartitionedNode) {
  if (!UseTls()) GTEST_SKIP() << "there is no openssl command";
  ASSERT_NO_FATAL_FAILURE(StartJob(kNodes - 1, 1, 1, 150));
  ASSERT_NO_FATAL_FAILURE(Drill({"partition", "--target", "n1", "--duration", "15s"}));
  EXPECT_LT(report_["recover_ms"], 15'000) << "the job waited for the node";
  // Its kernel acknowledged nothing: it is not waited for as an agent that is only stopped is (10
  // s).
  EXPECT_LT(report_["detect_ms"], 8'000) << report_.dump(1);
  EXPECT_THAT(report_["blamed_nodes"], Contains("n1")) << report_.dump(1);
  EXPECT_EQ(report_["bytes_equal"], true);
  ASSERT_NO_FATAL_FAILURE(ExpectSameEnd());
}

/// The coordinator sees the node all the time: it is at the sockets of the machine, as by a network
/// of its own.
TEST_F(LinkDrillTest, ACutNodeThatTheCoordinatorReachesIsTheOneReplaced) {
  ASSERT_NO_FATAL_FAILURE(StartJob(kNodes - 1, 1, 1, 70));
  ASSERT_NO_FATAL_FAILURE(Drill({"partition", "--target", "n1", "--duration", "25s"}));
  EXPECT_EQ(report_["blamed_nodes"], json({"n1"})) << report_.dump(1);
  EXPECT_EQ(report_["incident_kind"], "communication hang");
  EXPECT_LT(report_["recover_ms"], 25'000) << "the job waited for the node";
  EXPECT_EQ(report_["bytes_equal"], true);
  ASSERT_NO_FATAL_FAILURE(ExpectSameEnd());
}

TEST_F(LinkDrillTest, ALinkBetweenTwoNodesIsCut) {
  ASSERT_NO_FATAL_FAILURE(StartJob(kNodes - 1, 1, 1, 70));
  ASSERT_NO_FATAL_FAILURE(Drill({"partition", "--target", "n0,n1", "--duration", "25s"}));
  EXPECT_THAT(report_["what"].get<std::string>(), HasSubstr("1 address of n1"));
  EXPECT_THAT(report_["blamed_nodes"], UnorderedElementsAre("n0", "n1"));
  EXPECT_LT(report_["recover_ms"], 25'000) << "the job waited for the link";
  EXPECT_EQ(report_["bytes_equal"], true);
  ASSERT_NO_FATAL_FAILURE(ExpectSameEnd());
}

TEST_F(LinkDrillTest, AnInterruptedPartitionHealsAtOnce) {
  ASSERT_NO_FATAL_FAILURE(StartJob(kNodes, 0, 1, 100));
  ASSERT_NO_FATAL_FAILURE(InterruptDrill({"partition", "--target", "n1", "--duration", "10m"},
                                         [&] { return Tables() == 1; }));
  EXPECT_EQ(Tables(), 0);
  ASSERT_NO_FATAL_FAILURE(ExpectSameEnd());
}

}  // namespace
}  // namespace holdfast::local
