// Nodes with separate addresses, as on real machines: every agent runs in a network namespace, with
// one switch between them. The tests do not affect the machine's network.

#include "tests/e2e/lan_certificates.h"
#include "tests/e2e/protected_cluster.h"

namespace holdfast::local {
namespace {

class NetworkTest : public ProtectedCluster {
 protected:
  void SetUp() override {
    ProtectedCluster::SetUp();
    std::filesystem::create_directories(options_.root);
    const std::string secret = options_.root + "/secret";
    std::ofstream(secret) << "sixteen bytes or more of it";
    std::filesystem::permissions(secret, std::filesystem::perms::owner_read);
    options_.agent_settings.push_back("peers.secret_file=" + secret);
    options_.agent_settings.push_back("peers.encrypt=false");
    options_.agent_settings.push_back("peers.build_timeout_ms=1500");
    if (!lan_.Make()) GTEST_SKIP() << "no permission to create network namespaces";
    if (!certificates_.made()) GTEST_SKIP() << "the openssl command is missing";
    for (const std::string& setting : certificates_.Settings()) {
      options_.agent_settings.push_back(setting);
    }
    for (int node = 0; node < 4; ++node) Put(node, node);
  }
  /// Runs the node's agent at this place of the network.
  void Put(int node, int place) {
    options_.agent_settings_of[node] = {"peers.listen=" + Lan::Address(place) + ":7100"};
    options_.agent_command_of[node] = lan_.CommandAt(place);
  }

  Lan lan_{5};
  const LanCertificates certificates_{5};
};

TEST_F(NetworkTest, AReplacementAtAnotherAddressIsFound) {
  ASSERT_NO_FATAL_FAILURE(Start(4, 1));
  const VersionId promised = SaveUntilProtected();
  job_->Close();
  cluster_->DestroyNode(3);
  Put(3, 4);
  cluster_->Reconfigure(options_);
  ASSERT_TRUE(cluster_->StartAgent(3).ok());
  ASSERT_NO_FATAL_FAILURE(AwaitAgent(3));
  const auto restored = ExpectBack(promised, {3});
  const VersionId next = SaveUntilProtected(restored.version);
  job_->Close();
  ASSERT_NO_FATAL_FAILURE(Replace(0));
  ExpectBack(next, {0});
}

TEST_F(NetworkTest, ADisconnectedNodePreventsPeerCommits) {
  ASSERT_NO_FATAL_FAILURE(Start(4, 1));
  SaveUntilProtected();
  ASSERT_NO_FATAL_FAILURE(lan_.SetCable(2, false));
  // Versions in progress may still become protected.
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(1);
  job_->SaveUntil([&] { return std::chrono::steady_clock::now() > until; }, kTimeout);
  const auto before = job_->Newest(v1::Tier::kPeer);
  const auto memory = job_->Newest(v1::Tier::kMemory);
  const auto later = until + std::chrono::seconds(4);
  job_->SaveUntil([&] { return std::chrono::steady_clock::now() > later; }, kTimeout);
  EXPECT_EQ(job_->Newest(v1::Tier::kPeer), before) << Evidence();
  EXPECT_GT(job_->Newest(v1::Tier::kMemory), memory) << "saves to memory must go on";
  ASSERT_NO_FATAL_FAILURE(lan_.SetCable(2, true));
  const VersionId next = SaveUntilProtected(before);
  job_->Close();
  ASSERT_NO_FATAL_FAILURE(Replace(2));
  ExpectBack(next, {2});
}

}  // namespace
}  // namespace holdfast::local
