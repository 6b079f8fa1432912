#include "tests/coordinator/state/harness.h"

// A commit at peer requires that each member of a group has its own data and its parity.

namespace holdfast::coord {
namespace {
using ::testing::ElementsAre;
using ::testing::IsEmpty;

const char* const kNodes[] = {"a", "b", "c", "d"};

class PeerCommitTest : public ::testing::Test {
 protected:
  PeerCommitTest() : c(GroupsOf(4, 1)) { c.peers = true; }
  void SetUp() override {
    for (const char* node : kNodes) c.Attach(node);
    c.Attach("spare");
    for (uint32_t rank = 0; rank < 4; ++rank) c.Join(kNodes[rank], "run-1", rank, 4);
  }
  Harness c;
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

class PeerCommitAfterRestartTest : public PeerCommitTest {
 protected:
  void SetUp() override {
    PeerCommitTest::SetUp();
    for (uint32_t i = 0; i < 4; ++i) c.Hold(kNodes[i], {H(version, i, Tier::kMemory, 4)});
    for (uint32_t i = 0; i < 3; ++i) c.Hold(kNodes[i], {P(version, i, Tier::kMemory, 4)});
    for (uint32_t rank = 0; rank < 3; ++rank) c.Join(kNodes[rank], "run-2", rank, 4);
  }
  const VersionId version = V(1, 1);
};

TEST_F(PeerCommitAfterRestartTest, LateParityCountsUntilTheGroupsArePlanned) {
  c.Hold("d", {P(version, 3, Tier::kMemory, 4)});
  EXPECT_THAT(c.Commits(Tier::kPeer), ElementsAre(version));
}

// The other members may have freed their parity for that of the new incarnation, although the
// coordinator does not know it yet. With this version as the retention floor, they would free the
// previous one, too.
TEST_F(PeerCommitAfterRestartTest, LateParityInMemoryDoesNotCountOnceTheGroupsArePlanned) {
  c.Join("d", "run-2", 3, 4);
  ASSERT_EQ(c.Job().peer_members, 4U);
  c.Hold("d", {P(version, 3, Tier::kMemory, 4)});
  EXPECT_THAT(c.Commits(Tier::kPeer), IsEmpty());
  // Agents remove nothing from their disks for a new incarnation, so replicas there count.
  for (uint32_t i = 0; i < 4; ++i) {
    EXPECT_THAT(c.Commits(Tier::kPeer), IsEmpty());
    c.Hold(kNodes[i], {H(version, i, Tier::kDisk, 4), P(version, i, Tier::kDisk, 4)});
  }
  EXPECT_THAT(c.Commits(Tier::kPeer), ElementsAre(version));
}

}  // namespace
}  // namespace holdfast::coord
