// `holdfast doctor` while agents run, on nodes in separate network namespaces.

#include <nlohmann/json.hpp>

#include "tests/e2e/lan_certificates.h"
#include "tests/e2e/protected_cluster.h"

namespace holdfast::local {
namespace {
using ::testing::AllOf;
using ::testing::HasSubstr;
constexpr int kNodes = 3;
constexpr int kOperator = kNodes;

class DoctorClusterTest : public ProtectedCluster {
 protected:
  void SetUp() override {
    ProtectedCluster::SetUp();
    std::filesystem::create_directories(options_.root);
    WriteSecret("secret", 's');
    WriteSecret("other", 'o');
    if (!lan_.Make()) GTEST_SKIP() << "no permission to create network namespaces";
    if (!certificates_.made()) GTEST_SKIP() << "the openssl command is missing";
    for (int node = 0; node < kNodes; ++node) {
      options_.agent_settings_of[node] = {"peers.listen=" + Lan::Address(node) + ":7100"};
      options_.agent_command_of[node] = lan_.CommandAt(node);
    }
    options_.agent_settings = certificates_.Settings();
    options_.agent_settings.push_back("peers.secret_file=" + options_.root + "/secret");
  }
  void WriteSecret(const std::string& name, char what) const {
    const std::string path = options_.root + "/" + name;
    std::ofstream(path) << std::string(32, what);
    std::filesystem::permissions(path, std::filesystem::perms::owner_read);
  }
  /// Runs doctor as `node`, at a place of the network, and returns its findings by check.
  std::map<std::string, nlohmann::json> Doctor(int place, const std::string& node,
                                               const std::string& run_dir,
                                               const std::string& secret = "secret",
                                               int skew_s = 0) {
    ClusterOptions at = options_;
    at.cli_command = lan_.CommandAt(place);
    if (skew_s != 0) {
      at.cli_command.insert(at.cli_command.end(), {"env", "LD_PRELOAD=" HOLDFAST_SKEWED_CLOCK,
                                                   "SKEW_S=" + std::to_string(skew_s)});
    }
    const Cluster asked(at);
    const std::vector<std::string> data = cluster_->DataDirs(0);
    std::vector<std::string> settings = certificates_.Settings();
    settings.insert(settings.end(),
                    {"cluster=local", "node=" + node, "coordinator=" + cluster_->endpoint(),
                     "run_dir=" + run_dir, "data_dirs=[\"" + data[0] + "\"]", "arena.bytes=64MiB",
                     "peers.listen=" + Lan::Address(place) + ":7100",
                     "peers.secret_file=" + options_.root + "/" + secret});
    std::vector<std::string> command = {"doctor", "-o", "json", "--disk", "8MiB"};
    for (const std::string& setting : settings) {
      command.insert(command.end(), {"--set", setting});
    }
    const auto result = asked.Cli(command);
    std::map<std::string, nlohmann::json> findings;
    if (!result) return findings;
    shown_ = result->out + result->errors;
    const auto json = nlohmann::json::parse(result->out, nullptr, false);
    if (!json.is_object()) return findings;
    for (const auto& finding : json["findings"]) findings[finding["check"]] = finding;
    return findings;
  }

  Lan lan_{kNodes + 1};
  const LanCertificates certificates_{kNodes + 1};
  std::string shown_;
};

TEST_F(DoctorClusterTest, PeersCapacityAndNamesAreCheckedWhileAJobRuns) {
  ASSERT_NO_FATAL_FAILURE(Start(kNodes, 1));
  SaveUntilProtected();
  auto found = Doctor(0, "n0", cluster_->RunDir(0));
  EXPECT_EQ(found["coordinator"]["result"], "ok") << shown_;
  EXPECT_EQ(found["clock"]["result"], "ok") << shown_;
  EXPECT_EQ(found["peers"]["what"], "2 of 2 other nodes answer") << shown_;
  EXPECT_THAT(found["peers' rate"]["what"].get<std::string>(),
              AllOf(HasSubstr("2 nodes read from"), HasSubstr(" GB/s")));
  EXPECT_EQ(found.count("node name"), 0U) << "the agent of this node is n0 itself";
  EXPECT_THAT(found["locked memory"]["what"].get<std::string>(), HasSubstr("of the agent"));
  EXPECT_EQ(found["arena"]["result"], "ok") << shown_;
  EXPECT_EQ(found["retention"]["result"], "ok") << shown_;

#ifndef HOLDFAST_SANITIZED
  // The clock of this node is wrong. The round trip to the coordinator takes less than a second.
  found = Doctor(0, "n0", cluster_->RunDir(0), "secret", -90);
  EXPECT_EQ(found["clock"]["result"], "fail") << shown_;
  using ::testing::MatchesRegex;
  EXPECT_THAT(found["clock"]["what"].get<std::string>(),
              MatchesRegex("(89\\.[5-9]|90\\.[0-4])[0-9]+ s behind the coordinator's .*"));
  EXPECT_THAT(found["clock"]["remedy"].get<std::string>(), HasSubstr("chrony"));
  found = Doctor(0, "n0", cluster_->RunDir(0), "secret", 30);
  EXPECT_EQ(found["clock"]["result"], "warn") << shown_;
  EXPECT_THAT(found["clock"]["what"].get<std::string>(), HasSubstr(" s ahead of "));
#endif

  // A second machine with the same name, and a node with the wrong secret.
  found = Doctor(kOperator, "n0", options_.root + "/elsewhere", "other");
  EXPECT_EQ(found["node name"]["result"], "fail") << shown_;
  EXPECT_EQ(found["peers"]["what"], "0 of 2 other nodes answer") << shown_;
  EXPECT_THAT(found["peer n1"]["remedy"].get<std::string>(), HasSubstr("peers.secret_file"));

  // The coordinator's socket is a file, so the node stays attached.
  ASSERT_NO_FATAL_FAILURE(lan_.SetCable(2, false));
  found = Doctor(0, "n0", cluster_->RunDir(0));
  EXPECT_EQ(found["peers"]["what"], "1 of 2 other nodes answer") << shown_;
  EXPECT_EQ(found["peer n2"]["result"], "fail") << shown_;
  EXPECT_THAT(found["peer n2"]["remedy"].get<std::string>(), HasSubstr("firewall"));
}

/// An agent whose clock differs from the coordinator's.
class ClockSkewTest : public ProtectedCluster {
 protected:
  static constexpr std::chrono::milliseconds kSeen{15'000};

  /// Returns whether `status` names the node with a skewed clock. Expects no other finding of this
  /// kind.
  bool IsSkewed(const std::string& node) const {
    const auto shown = cluster_->Cli({"status", "-o", "json"});
    if (!shown) return false;
    const auto document = nlohmann::json::parse(shown->out, nullptr, false);
    if (!document.is_object()) return false;
    bool named = false;
    for (const auto& finding : document["findings"]) {
      if (finding["code"] != "CLOCK_SKEWED") continue;
      EXPECT_EQ(finding["subject"], "node " + node) << finding.dump();
      EXPECT_THAT(finding["message"].get<std::string>(), HasSubstr("3.0 s behind")) << finding;
      named = true;
    }
    return named;
  }
};

TEST_F(ClockSkewTest, StatusNamesTheNodeUntilItsClockIsRight) {
#ifdef HOLDFAST_SANITIZED
  GTEST_SKIP() << "the sanitizer's library must be the first that is loaded";
#endif
  options_.agent_command_of[1] = {"/usr/bin/env", "LD_PRELOAD=" HOLDFAST_SKEWED_CLOCK, "SKEW_S=-3"};
  ASSERT_NO_FATAL_FAILURE(Start(2, 1));
  ASSERT_TRUE(WaitUntil([&] { return IsSkewed("n1"); }, kSeen)) << Evidence();
  const auto shown = cluster_->Cli({"status"});
  ASSERT_TRUE(shown.has_value());
  EXPECT_THAT(shown->out, HasSubstr("CLOCK_SKEWED"));
  options_.agent_command_of.clear();
  cluster_->agent(1).Kill();
  cluster_->Reconfigure(options_);
  ASSERT_TRUE(cluster_->StartAgent(1).ok());
  AwaitAgent(1);
  EXPECT_TRUE(WaitUntil([&] { return !IsSkewed("n1"); }, kSeen)) << Evidence();
}

}  // namespace
}  // namespace holdfast::local
