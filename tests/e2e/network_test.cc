// Nodes that reach each other by addresses of their own, as machines do: every agent in a network
// namespace, one switch between them. Nothing touches the network of the machine.

#include <fmt/format.h>
#include <unistd.h>

#include <cstdlib>

#include "tests/e2e/protected_cluster.h"

namespace holdfast::local {
namespace {

/// One switch and a place for each node; gone with the object.
class Lan {
 public:
  explicit Lan(int places) : name_(fmt::format("hf{}", ::getpid())), places_(places) {}
  ~Lan() {
    for (int i = 0; i < places_; ++i) std::ignore = Ip("netns del " + Namespace(i));
    std::ignore = Ip("netns del " + name_);
  }
  Lan(const Lan&) = delete;
  Lan& operator=(const Lan&) = delete;

  /// False where this process may not.
  bool Make() {
    if (!Ip("netns add " + name_)) return false;
    bool made = Ip(fmt::format("-n {} link add lan type bridge", name_)) &&
                Ip(fmt::format("-n {} link set lan up", name_));
    for (int i = 0; made && i < places_; ++i) {
      const std::string node = Namespace(i);
      made = Ip("netns add " + node) &&
             Ip(fmt::format("-n {} link add port{} type veth peer name eth0 netns {}", name_, i,
                            node)) &&
             Ip(fmt::format("-n {} link set port{} master lan up", name_, i)) &&
             Ip(fmt::format("-n {} addr add {}/24 dev eth0", node, Address(i))) &&
             Ip(fmt::format("-n {} link set eth0 up", node)) &&
             Ip(fmt::format("-n {} link set lo up", node));
    }
    return made;
  }
  std::string Namespace(int place) const { return fmt::format("{}n{}", name_, place); }
  static std::string Address(int place) { return fmt::format("10.77.0.{}", place + 1); }
  /// Pulls or plugs the cable at the switch.
  void SetCable(int place, bool plugged) {
    ASSERT_TRUE(Ip(fmt::format("-n {} link set port{} {}", name_, place, plugged ? "up" : "down")));
  }

 private:
  static bool Ip(const std::string& arguments) {
    return std::system(("ip " + arguments + " 2>/dev/null").c_str()) == 0;
  }

  const std::string name_;
  const int places_;
};

class NetworkTest : public ProtectedCluster {
 protected:
  void SetUp() override {
    ProtectedCluster::SetUp();
    std::filesystem::create_directories(options_.root);
    const std::string secret = options_.root + "/secret";
    std::ofstream(secret) << "sixteen bytes or more of it";
    std::filesystem::permissions(secret, std::filesystem::perms::owner_read);
    options_.agent_settings.push_back("peers.secret_file=" + secret);
    options_.agent_settings.push_back("peers.build_timeout_ms=1500");
    if (!lan_.Make()) GTEST_SKIP() << "this process may make no network namespaces";
    for (int node = 0; node < 4; ++node) Put(node, node);
  }
  /// The node's agent listens for its peers at that place of the network.
  void Put(int node, int place) {
    options_.agent_settings_of[node] = {"peers.listen=" + Lan::Address(place) + ":7100"};
    options_.agent_command_of[node] = {"/usr/bin/env", "ip", "netns", "exec",
                                       lan_.Namespace(place)};
  }

  Lan lan_{5};
};

TEST_F(NetworkTest, AReplacementAtAnotherAddressIsFound) {
  ASSERT_NO_FATAL_FAILURE(Start(4, 1));
  const VersionId promised = SaveUntilProtected();
  job_->Close();
  cluster_->DestroyNode(3);
  Put(3, 4);
  cluster_->MoveAgents(options_);
  ASSERT_TRUE(cluster_->StartAgent(3).ok());
  ASSERT_NO_FATAL_FAILURE(AwaitAgent(3));
  const auto restored = ExpectBack(promised, {3});
  const VersionId next = SaveUntilProtected(restored.version);
  job_->Close();
  ASSERT_NO_FATAL_FAILURE(Replace(0));
  ExpectBack(next, {0});
}

TEST_F(NetworkTest, WithoutItsCableNothingIsCalledProtected) {
  ASSERT_NO_FATAL_FAILURE(Start(4, 1));
  SaveUntilProtected();
  ASSERT_NO_FATAL_FAILURE(lan_.SetCable(2, false));
  // What was under way may still have had all it needed.
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(1);
  job_->SaveUntil([&] { return std::chrono::steady_clock::now() > until; }, kTimeout);
  const auto before = job_->Newest(v1::Tier::kPeer);
  const auto memory = job_->Newest(v1::Tier::kMemory);
  const auto later = until + std::chrono::seconds(4);
  job_->SaveUntil([&] { return std::chrono::steady_clock::now() > later; }, kTimeout);
  EXPECT_EQ(job_->Newest(v1::Tier::kPeer), before) << Evidence();
  EXPECT_GT(job_->Newest(v1::Tier::kMemory), memory) << "training and memory go on";
  ASSERT_NO_FATAL_FAILURE(lan_.SetCable(2, true));
  const VersionId next = SaveUntilProtected(before);
  job_->Close();
  ASSERT_NO_FATAL_FAILURE(Replace(2));
  ExpectBack(next, {2});
}

}  // namespace
}  // namespace holdfast::local
