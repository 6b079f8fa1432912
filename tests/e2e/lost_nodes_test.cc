// Node losses at critical times: while parity is computed, while a lost node's shards are decoded,
// and before the other nodes notice the loss. Also tests spares that replace lost nodes.

#include <csignal>

#include "tests/agent/peers/faulty_proxy.h"
#include "tests/e2e/protected_cluster.h"

namespace holdfast::local {
namespace {
using ::testing::HasSubstr;

class LostNodesTest : public ProtectedCluster {
 protected:
  /// Restarts the agent with the crash point `crash` armed. The keeper holds its memory meanwhile.
  void Arm(int node, const std::string& crash) {
    cluster_->agent(node).Kill();
    ASSERT_TRUE(cluster_->StartAgent(node, crash).ok());
    AwaitAgent(node);
  }
  void ExpectDeath(int node) {
    ASSERT_TRUE(cluster_->agent(node).WaitFor(kTimeout)) << "the crash point was never passed";
  }
  void StartAgain(int node) {
    ASSERT_TRUE(cluster_->StartAgent(node).ok());
    AwaitAgent(node);
  }
};

TEST_F(LostNodesTest, ALeaderThatDiesMidStripeDelaysOneVersion) {
  ASSERT_NO_FATAL_FAILURE(Start(4, 1));
  SaveUntilProtected();
  ASSERT_NO_FATAL_FAILURE(Arm(1, "agent.mid_stripe:3"));
  ASSERT_TRUE(job_->SaveUntil([&] { return !cluster_->agent(1).running(); }, kTimeout));
  const auto before = job_->Newest(v1::Tier::kPeer);
  ASSERT_NO_FATAL_FAILURE(StartAgain(1));
  const VersionId next = SaveUntilProtected(before);
  job_->Close();
  ASSERT_NO_FATAL_FAILURE(Replace(1));
  ExpectBack(next, {1});
}

TEST_F(LostNodesTest, ARestoreWaitsForADecoderThatDied) {
  ASSERT_NO_FATAL_FAILURE(Start(4, 1));
  const VersionId promised = SaveUntilProtected();
  job_->Close();
  ASSERT_NO_FATAL_FAILURE(Replace(3));
  ASSERT_NO_FATAL_FAILURE(Arm(0, "agent.mid_decode"));
  ExpectBack(promised, {3}, {}, [this] {
    ExpectDeath(0);
    StartAgain(0);
  });
}

TEST_F(LostNodesTest, ASecondLossDuringARebuild) {
  ASSERT_NO_FATAL_FAILURE(Start(4, 2));
  const VersionId promised = SaveUntilProtected();
  job_->Close();
  ASSERT_NO_FATAL_FAILURE(Replace(3));
  ASSERT_NO_FATAL_FAILURE(Arm(0, "agent.mid_decode"));
  ExpectBack(promised, {0, 3}, {}, [this] {
    ExpectDeath(0);
    Replace(0);
  });
}

TEST_F(LostNodesTest, ACoordinatorThatDiesDuringARebuild) {
  ASSERT_NO_FATAL_FAILURE(Start(4, 1));
  const VersionId promised = SaveUntilProtected();
  job_->Close();
  ASSERT_NO_FATAL_FAILURE(Replace(3));
  ASSERT_NO_FATAL_FAILURE(Arm(0, "agent.mid_decode"));
  const auto restored = ExpectBack(promised, {3}, {}, [this] {
    ExpectDeath(0);
    cluster_->coordinator().Kill();
    ASSERT_TRUE(cluster_->StartCoordinator().ok());
    StartAgain(0);
  });
  SaveUntilProtected(restored.version);
}

/// The spare has another name, so the group gets another member.
TEST_F(LostNodesTest, ASpareOfAnotherNameReplacesAMember) {
  ASSERT_NO_FATAL_FAILURE(Start(4, 1, /*spares=*/1));
  const VersionId promised = SaveUntilProtected();
  job_->Close();
  cluster_->DestroyNode(3);
  ASSERT_NO_FATAL_FAILURE(StartAgain(4));
  const auto restored = ExpectBack(promised, {3}, {0, 1, 2, 4});
  const VersionId next = SaveUntilProtected(restored.version);
  // The group protects versions as before.
  job_->Close();
  ASSERT_NO_FATAL_FAILURE(Replace(1));
  ExpectBack(next, {1}, {0, 1, 2, 4});
}

/// A node that is silent but closes no connection, as after a power loss.
TEST_F(LostNodesTest, ARestoreSucceedsWithoutASilentMember) {
  ASSERT_NO_FATAL_FAILURE(Start(4, 2, /*spares=*/2));
  const VersionId promised = SaveUntilProtected();
  job_->Close();
  cluster_->DestroyNode(3);
  cluster_->agent(2).Signal(SIGSTOP);
  ASSERT_NO_FATAL_FAILURE(StartAgain(4));
  ASSERT_NO_FATAL_FAILURE(StartAgain(5));
  ExpectBack(promised, {2, 3}, {0, 1, 4, 5});
  cluster_->agent(2).Signal(SIGCONT);
}

/// The same during a rebuild. The node is the first decoder, and is slowed down so that the rebuild
/// still runs when the node falls silent.
TEST_F(LostNodesTest, ARebuildSucceedsWhenAMemberFallsSilent) {
  agent::FaultyProxy slow("unix:" + options_.root + "/n1/p.sock", 1);
  slow.SetFaulty(false);
  options_.agent_settings_of[1] = {"peers.advertise=" + slow.address()};
  ASSERT_NO_FATAL_FAILURE(Start(4, 2, /*spares=*/2));
  const VersionId promised = SaveUntilProtected();
  job_->Close();
  cluster_->DestroyNode(0);
  ASSERT_NO_FATAL_FAILURE(StartAgain(4));
  ASSERT_NO_FATAL_FAILURE(StartAgain(5));
  slow.SetFaults({agent::NetworkFault::kHold}, 1);
  ExpectBack(promised, {0}, {4, 5, 2, 3}, [&] {
    EXPECT_TRUE(WaitUntil([&] { return slow.faults() >= 5; }, kTimeout)) << "nothing is decoded";
    cluster_->agent(1).Signal(SIGSTOP);
  });
  cluster_->agent(1).Signal(SIGCONT);
}

/// An agent that was stopped beyond its lease, while another agent took its node name.
TEST_F(LostNodesTest, AStaleAgentIsRefusedAndLogsIt) {
  options_.coordinator_settings = {"node_lease_ms=1500"};
  options_.agent_settings_of[4] = {"node=n3"};
  options_.disk_every = 1;
  ASSERT_NO_FATAL_FAILURE(Start(4, 1, /*spares=*/1));
  const VersionId promised = SaveUntilProtected();
  cluster_->agent(3).Signal(SIGSTOP);
  ASSERT_NO_FATAL_FAILURE(StartAgain(4));
  const auto restored = ExpectBack(promised, {3}, {0, 1, 2, 4});
  const VersionId next = SaveUntilProtected(restored.version);

  cluster_->agent(3).Signal(SIGCONT);
  ASSERT_TRUE(job_->SaveUntil(
      [&] { return AgentLog(3).find("two agents have one node name") != std::string::npos; },
      kTimeout))
      << Evidence();
  EXPECT_THAT(AgentLog(3), HasSubstr("another agent of node 'n3' is attached"));
  EXPECT_TRUE(cluster_->agent(3).running());
  // The stale agent changed nothing: versions are protected, and the successor's shards are intact.
  const VersionId last = SaveUntilProtected(next);
  job_->Close();
  ASSERT_NO_FATAL_FAILURE(Replace(0));
  ExpectBack(last, {0}, {0, 1, 2, 4});
}

}  // namespace
}  // namespace holdfast::local
