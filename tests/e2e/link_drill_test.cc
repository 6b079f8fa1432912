// `holdfast drill partition` and `slow-link`: nodes with separate addresses lose each other's
// packets, in virtual networks that do not affect the machine's network.

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdio>
#include <thread>

#include "tests/e2e/drilled_job.h"
#include "tests/e2e/lan_certificates.h"

namespace holdfast::local {
namespace {
using nlohmann::json;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;
constexpr int kNodes = 4;
constexpr int kOperator = kNodes;  // the place of the coordinator and of the drill command

class LinkDrillTest : public DrilledJob {
 protected:
  void SetUp() override {
    DrilledJob::SetUp();
    if (std::system("command -v nft >/dev/null") != 0) GTEST_SKIP() << "the nft command is missing";
    if (!lan_.Make()) GTEST_SKIP() << "no permission to create network namespaces";
    if (!certificates_.made()) GTEST_SKIP() << "the openssl command is missing";
    const std::string secret = root_ + "/secret";
    std::ofstream(secret) << "sixteen bytes or more of it";
    std::filesystem::permissions(secret, std::filesystem::perms::owner_read);
    options_.agent_settings = certificates_.Settings();
    options_.agent_settings.push_back("peers.secret_file=" + secret);
    for (int node = 0; node < kNodes; ++node) {
      options_.agent_command_of[node] = lan_.CommandAt(node);
      options_.agent_settings_of[node] = {"peers.listen=" + Lan::Address(node) + ":7100",
                                          "workers.address=" + Lan::Address(node)};
    }
  }
  /// Connects the coordinator and the agents' data ports over TLS instead of Unix sockets.
  void UseTls() {
    const agent::PeerTlsFiles files = certificates_.files();
    for (const std::string& setting : certificates_.Settings()) {
      options_.coordinator_settings.push_back(setting);
      options_.injector_settings.push_back(setting);
    }
    options_.cli_options = {"--tls-ca", files.ca, "--tls-cert", files.cert, "--tls-key", files.key};
    // These certificates name no user.
    options_.coordinator_settings.push_back("access.run_as_users=[\"root\"]");
    run_options_ = {"--user", "root"};
    options_.endpoint = Lan::Address(kOperator) + ":7070";
    options_.coordinator_command = lan_.CommandAt(kOperator);
    options_.cli_command = lan_.CommandAt(kOperator);
    for (int node = 0; node < kNodes; ++node) {
      options_.agent_settings_of[node].push_back("data_listen=" + Lan::Address(node) + ":7200");
      options_.injector_settings_of[node] = {"listen=" + Lan::Address(node) + ":7079"};
    }
    options_.coordinator_injector_settings = {"listen=" + Lan::Address(kOperator) + ":7079"};
  }
  /// Slows the links of `target` down for a while. The job must end with the same parameters.
  void SlowDown(const std::string& target);
  /// The number of nodes whose network has packet filters of Holdfast.
  int Tables() {
    int tables = 0;
    for (int node = 0; node < kNodes; ++node) {
      const std::string command =
          "ip netns exec " + lan_.Namespace(node) + " nft list tables | grep -q holdfast";
      tables += std::system(command.c_str()) == 0 ? 1 : 0;
    }
    return tables;
  }
  /// HOLDFAST_QUIET_MACHINE=1: the slow links must also be named. On a busy machine other links may
  /// be equally slow at times.
  const bool quiet_ = std::getenv("HOLDFAST_QUIET_MACHINE") != nullptr;
  Lan lan_{kNodes + 1};
  const LanCertificates certificates_{kNodes + 1};
};

/// Polls the coordinator for the committed versions of the job's first launch.
class CommitWatch {
 public:
  CommitWatch(const Cluster& cluster, const std::string& node)
      : thread_([this, &cluster, node] {
          while (!stop_) Poll(cluster, node);
        }) {}
  ~CommitWatch() { Stop(); }
  CommitWatch(const CommitWatch&) = delete;
  CommitWatch& operator=(const CommitWatch&) = delete;
  void Stop() {
    stop_ = true;
    if (thread_.joinable()) thread_.join();
  }
  /// After Stop(): the newest committed step when the node was first and last seen lost (0: never
  /// seen lost). After the node's return, versions that all had sealed before may be committed.
  uint64_t at_loss() const { return at_loss_; }
  uint64_t while_lost() const { return while_lost_; }

 private:
  void Poll(const Cluster& cluster, const std::string& node) {
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
  params_ = quiet_ ? 300'000 : 80'000;  // blocks must exceed the socket buffers
  ASSERT_NO_FATAL_FAILURE(StartJob(kNodes, 0, 1, quiet_ ? 500 : 100));
  // The detector compares with the past, so the job needs some steps first. After so few of them,
  // it names a slow link after about 80 s.
  const uint64_t past = quiet_ ? 30 : 0;
  ASSERT_TRUE(WaitUntil([&] { return NewestStep() >= past; }, kDrillTimeout));
  ASSERT_NO_FATAL_FAILURE(Drill({"slow-link", "--target", target, "--duration",
                                 quiet_ ? "150s" : "3s", "--rate", quiet_ ? "4MB" : "1MB"}));
  EXPECT_THAT(report_["what"].get<std::string>(), HasSubstr("per second pass in each direction"));
  if (quiet_) {
    EXPECT_EQ(report_["incident_kind"], "communication slow") << report_.dump(1);
  }
  EXPECT_EQ(report_["lost_steps"], 0);
  EXPECT_EQ(Tables(), 0);
  ASSERT_NO_FATAL_FAILURE(ExpectSameEnd());
}

TEST_F(LinkDrillTest, SlowLinksOfANodeOnlyDelayTheJob) {
  ASSERT_NO_FATAL_FAILURE(SlowDown("n2"));
  if (quiet_) {
    EXPECT_THAT(report_["blamed_nodes"], Contains("n2"));
  }
}

TEST_F(LinkDrillTest, ASlowLinkOfTwoNodesOnlyDelaysTheJob) {
  ASSERT_NO_FATAL_FAILURE(SlowDown("n1,n2"));
  EXPECT_THAT(report_["what"].get<std::string>(), HasSubstr("1 address of n2"));
  if (quiet_) {
    EXPECT_THAT(report_["blamed_nodes"], UnorderedElementsAre("n1", "n2"));
  }
}

TEST_F(LinkDrillTest, APartitionedNodeCommitsNothingAndComesBack) {
  UseTls();
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

TEST_F(LinkDrillTest, ASpareReplacesAPartitionedNode) {
  UseTls();
  ASSERT_NO_FATAL_FAILURE(StartJob(kNodes - 1, 1, 1, 150));
  ASSERT_NO_FATAL_FAILURE(Drill({"partition", "--target", "n1", "--duration", "15s"}));
  EXPECT_LT(report_["recover_ms"], 15'000) << "the job waited for the node";
  // The node's kernel acknowledged nothing, so the coordinator does not wait 10 s, as it does for
  // an agent that is only stopped.
  EXPECT_LT(report_["detect_ms"], 8'000) << report_.dump(1);
  EXPECT_THAT(report_["blamed_nodes"], Contains("n1")) << report_.dump(1);
  EXPECT_EQ(report_["bytes_equal"], true);
  ASSERT_NO_FATAL_FAILURE(ExpectSameEnd());
}

/// The coordinator always reaches the node, over Unix sockets that stand for a separate network.
TEST_F(LinkDrillTest, AnIsolatedNodeThatTheCoordinatorReachesIsReplaced) {
  ASSERT_NO_FATAL_FAILURE(StartJob(kNodes - 1, 1, 1, 70));
  ASSERT_NO_FATAL_FAILURE(Drill({"partition", "--target", "n1", "--duration", "60s"}));
  EXPECT_EQ(report_["blamed_nodes"], json({"n1"})) << report_.dump(1);
  EXPECT_EQ(report_["incident_kind"], "communication hang");
  EXPECT_LT(report_["recover_ms"], 60'000) << "the job waited for the node";
  EXPECT_EQ(report_["bytes_equal"], true);
  ASSERT_NO_FATAL_FAILURE(ExpectSameEnd());
}

TEST_F(LinkDrillTest, ALinkBetweenTwoNodesIsCut) {
  ASSERT_NO_FATAL_FAILURE(StartJob(kNodes - 1, 1, 1, 70));
  ASSERT_NO_FATAL_FAILURE(Drill({"partition", "--target", "n0,n1", "--duration", "60s"}));
  EXPECT_THAT(report_["what"].get<std::string>(), HasSubstr("1 address of n1"));
  EXPECT_THAT(report_["blamed_nodes"], UnorderedElementsAre("n0", "n1"));
  EXPECT_LT(report_["recover_ms"], 60'000) << "the job waited for the link";
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
