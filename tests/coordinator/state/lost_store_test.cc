#include "tests/coordinator/state/harness.h"

// The coordinator's store was lost, or replaced by an older copy of itself. No incarnation number
// is used twice, so that older replicas on the nodes never count as new ones.

namespace holdfast::coord {
namespace {

/// Both ranks of `version`. Another `salt` stands for other bytes under the same number.
std::vector<StoredReplica> Both(VersionId version, Tier tier, uint64_t salt = 0) {
  std::vector<StoredReplica> all = {H(version, 0, tier), H(version, 1, tier)};
  for (StoredReplica& one : all) one.digest += salt;
  return all;
}

TEST(LostStoreTest, AnInventoryDoesNotCommitOlderVersions) {
  Harness h;  // empty, while the node has 1-102 to 1-104
  std::vector<StoredReplica> all;
  for (uint64_t step = 102; step <= 104; ++step) {
    for (const StoredReplica& one : Both(V(1, step), Tier::kDisk, 1'000'000)) all.push_back(one);
  }
  h.Attach("n1", all);
  h.Join("n1", "second", 0, 2);
  h.Join("n1", "second", 1, 2);
  EXPECT_EQ(h.Job().incarnation.value, 2U);
  for (uint64_t step = 1; step <= 3; ++step) {
    for (const StoredReplica& one : Both(V(2, step), Tier::kDisk)) all.push_back(one);
    h.Hold("n1", Both(V(2, step), Tier::kDisk));
  }
  const std::vector<VersionId> saved = {V(2, 1), V(2, 2), V(2, 3)};
  EXPECT_EQ(h.Stored(), saved);
  // The coordinator restarts, and the node lists all its replicas.
  h.Restart();
  h.Attach("n1", all);
  EXPECT_EQ(h.Stored(), saved);
  EXPECT_EQ(h.Job().restorable, V(2, 3));
  h.Join("n1", "third", 0, 2);
  h.Join("n1", "third", 1, 2);
  EXPECT_EQ(h.ReplyTo(h.RequestReshard("n1", 3, 0))->version, V(2, 3));
}

TEST(LostStoreTest, AnOlderStoreContinuesAboveAllReportedIncarnations) {
  Harness h;
  h.Attach("n1");
  h.Join("n1", "one", 0, 2);
  h.Join("n1", "one", 1, 2);
  h.Hold("n1", Both(V(1, 5), Tier::kDisk));
  h.Restart();  // from a backup of this moment
  h.Attach("n1", Both(V(1, 5), Tier::kDisk));
  h.Attach("n2", Both(V(4, 9), Tier::kDisk));
  h.Lose("n2");
  h.Join("n1", "next", 0, 2);
  EXPECT_EQ(h.Job().incarnation.value, 5U) << "also after the node was lost again";
  EXPECT_THAT(h.Stored(), testing::ElementsAre(V(1, 5)));
}

TEST(LostStoreTest, AnImplausibleIncarnationIsIgnored) {
  Harness h;
  h.Attach("n1", Both(V(~uint64_t{0}, 1), Tier::kDisk));
  h.Join("n1", "one", 0, 2);
  EXPECT_EQ(h.Job().incarnation.value, 1U);
}

}  // namespace
}  // namespace holdfast::coord
