#include <map>
#include <optional>

#include "tests/coordinator/state/harness.h"

// A commit at peer requires that each member of a group has its own data and its parity.

namespace holdfast::coord {
namespace {
using ::testing::ElementsAre;
using ::testing::IsEmpty;

const char* const kNodes[] = {"a", "b", "c", "d"};

class PeerCommitTest : public ::testing::Test {
 protected:
  explicit PeerCommitTest(const StateOptions& options = GroupsOf(4, 1)) : c(options) {
    c.peers = true;
  }
  void SetUp() override {
    for (const char* node : kNodes) c.Attach(node);
    c.Attach("spare");
    for (uint32_t rank = 0; rank < 4; ++rank) c.Join(kNodes[rank], "run-1", rank, 4);
  }
  /// A trainer of node "a" waits until the version is at tier peer.
  void WantAtPeer(VersionId version) {
    NodeReported report = c.NewReport("a");
    report.wanted.push_back({"gpt", version, Tier::kPeer});
    c.Apply(report);
  }
  Harness c;
};

class PeerFlushTest : public PeerCommitTest {
 protected:
  PeerFlushTest() : PeerCommitTest(Options()) {}
  static StateOptions Options() {
    StateOptions options = GroupsOf(4, 1);
    options.flush_after = std::chrono::milliseconds(200);
    options.end_grace = options.node_lease = std::chrono::hours(1);
    return options;
  }
};

TEST_F(PeerCommitTest, ANodeWithoutItsOwnDataIsNotProtected) {
  const VersionId version = V(1, 1);
  for (uint32_t rank = 0; rank < 4; ++rank) {
    c.Hold(rank == 1 ? "spare" : kNodes[rank], {H(version, rank, Tier::kMemory, 4)});
  }
  ASSERT_THAT(c.Commits(Tier::kMemory), ElementsAre(version)) << "a node has each rank";
  for (uint32_t number = 0; number < 4; ++number) {
    c.Hold(kNodes[number], {P(version, number, Tier::kMemory, 4)});
    EXPECT_THAT(c.Commits(Tier::kPeer), IsEmpty());
  }
  // A group decodes from its planned members, and b, the member of rank 1, lacked its data.
  c.Hold("b", {H(version, 1, Tier::kMemory, 4)});
  EXPECT_THAT(c.Commits(Tier::kPeer), ElementsAre(version));
}

TEST_F(PeerCommitTest, ParityOnDiskAloneIsNotAtPeer) {
  const VersionId version = V(1, 1);
  for (uint32_t rank = 0; rank < 4; ++rank) {
    c.Hold(kNodes[rank], {H(version, rank, Tier::kMemory, 4)});
  }
  for (uint32_t number = 0; number < 4; ++number) {
    c.Hold(kNodes[number], {P(version, number, number == 2 ? Tier::kDisk : Tier::kMemory, 4)});
    EXPECT_THAT(c.Commits(Tier::kPeer), IsEmpty());
  }
  c.Hold("c", {P(version, 2, Tier::kMemory, 4)});
  EXPECT_THAT(c.Commits(Tier::kPeer), ElementsAre(version));
}

// The first member that attaches must not free the parity of a version that the last one completes.
TEST_F(PeerCommitTest, ARestartedCoordinatorLetsTheMembersCompleteTheirVersion) {
  const auto data = [](uint64_t step, uint32_t rank) {
    return H(V(1, step), rank, Tier::kMemory, 4);
  };
  const auto parity = [](uint64_t step, uint32_t number) {
    return P(V(1, step), number, Tier::kMemory, 4);
  };
  for (uint64_t step = 1; step <= 4; ++step) {
    for (uint32_t i = 0; i < 4; ++i) c.Hold(kNodes[i], {data(step, i)});
  }
  for (uint32_t i = 0; i < 4; ++i) c.Hold(kNodes[i], {parity(1, i)});
  c.ReportFailedParity("a", V(1, 2), 0, Tier::kPeer);
  for (uint32_t i = 0; i < 3; ++i) c.Hold(kNodes[i], {parity(3, i)});
  c.Restart();
  for (uint32_t i = 0; i < 3; ++i) {
    c.Attach(kNodes[i], {data(3, i), parity(3, i)});
    EXPECT_EQ(c.JobStateTo(kNodes[i])->target_step[Tier::kPeer], Step{3});
  }
  c.Attach("d", {data(3, 3), parity(3, 3)});
  EXPECT_EQ(c.Job().committed[Tier::kPeer], V(1, 3));
  EXPECT_EQ(c.JobStateTo("d")->target_step[Tier::kPeer], Step{5});
}

// A member could not make its parity, so the target has passed the newest version. When a flush
// takes the version to tier peer after all, another member may already have freed its parity for a
// save that has begun.
TEST_F(PeerFlushTest, AFlushCommitsOnlyWhatAllMembersKeep) {
  const VersionId version = V(1, 1);
  for (uint32_t i = 0; i < 4; ++i) {
    c.ReportTrainers(kNodes[i], {{"gpt", Incarnation{1}, Rank{i}, false}});
    c.Hold(kNodes[i], {H(version, i, Tier::kMemory, 4)});
  }
  for (uint32_t i = 1; i < 4; ++i) c.Hold(kNodes[i], {P(version, i, Tier::kMemory, 4)});
  c.ReportFailedParity("a", version, 0, Tier::kPeer);
  ASSERT_EQ(c.JobStateTo("a")->target_step[Tier::kPeer], Step{2}) << "nodes free parity of 1-1";
  // A trainer waits for the version. The members get the target first, and then directives.
  WantAtPeer(version);
  std::map<std::string, uint64_t> requests;
  std::optional<Step> target;
  for (int i = 0; i < 50 && requests.size() < 4; ++i) {
    c.Pass(std::chrono::milliseconds(100));
    if (const auto state = c.JobStateTo("a")) target = state->target_step[Tier::kPeer];
    for (const Effect& effect : c.effects) {
      const auto* send = std::get_if<Send>(&effect);
      if (send == nullptr) continue;
      const auto* order = std::get_if<PrepareShard>(&send->directive);
      if (order == nullptr || order->into != Tier::kMemory) continue;
      EXPECT_EQ(target, Step{1}) << "the job state comes first";
      requests[kNodes[ParityNode(order->identity.rank)]] = order->request;
    }
  }
  ASSERT_EQ(requests.size(), 4U) << "also of the members that had reported their parity";
  c.Hold("a", {P(version, 0, Tier::kMemory, 4)});
  EXPECT_THAT(c.Commits(Tier::kPeer), IsEmpty()) << "each member may have freed its parity";
  for (const char* node : {"a", "b", "c"}) {
    c.Answer(node, requests.at(node), Status::Ok());
    EXPECT_THAT(c.Commits(Tier::kPeer), IsEmpty()) << node;
  }
  // d had freed its parity before it knew the target, and builds it again.
  c.ReportRemoved("d", version, ParityRank(3).value, Tier::kMemory);
  EXPECT_THAT(c.Commits(Tier::kPeer), IsEmpty());
  c.Hold("d", {P(version, 3, Tier::kMemory, 4)});
  EXPECT_THAT(c.Commits(Tier::kPeer), IsEmpty());
  c.Answer("d", requests.at("d"), Status::Ok());
  EXPECT_THAT(c.Commits(Tier::kPeer), ElementsAre(version));
  EXPECT_EQ(c.JobStateTo("d")->target_step[Tier::kPeer], Step{2});
}

TEST_F(PeerFlushTest, ANewerVersionEndsTheFlushOfAnOlderOne) {
  const VersionId version = V(1, 1);
  for (uint32_t i = 0; i < 4; ++i) {
    c.ReportTrainers(kNodes[i], {{"gpt", Incarnation{1}, Rank{i}, false}});
    c.Hold(kNodes[i], {H(version, i, Tier::kMemory, 4)});
  }
  c.ReportFailedParity("a", version, 0, Tier::kPeer);
  WantAtPeer(version);
  c.Pass(std::chrono::milliseconds(100));
  ASSERT_EQ(c.JobStateTo("a")->target_step[Tier::kPeer], Step{1});
  for (uint32_t i = 0; i < 4; ++i) c.Hold(kNodes[i], {H(V(1, 2), i, Tier::kMemory, 4)});
  std::optional<Step> target;
  for (int i = 0; i < 5; ++i) {
    c.Pass(std::chrono::milliseconds(100));
    if (const auto state = c.JobStateTo("a")) target = state->target_step[Tier::kPeer];
  }
  EXPECT_EQ(target, Step{2}) << "the peers take the newer version";
  for (uint32_t i = 0; i < 4; ++i) c.Hold(kNodes[i], {P(V(1, 2), i, Tier::kMemory, 4)});
  EXPECT_THAT(c.Commits(Tier::kPeer), ElementsAre(V(1, 2)));
}

}  // namespace
}  // namespace holdfast::coord
