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

}  // namespace
}  // namespace holdfast::coord
