#include "coordinator/state/load.h"
#include "tests/coordinator/state/modules/module_test.h"

namespace holdfast::coord {
namespace {
class LoadModule : public ModuleTest {
 protected:
  void SetUp() override {
    JobRecord record;
    record.job = "gpt";
    record.incarnation = Incarnation{2};
    record.nodes_now = {"a"};
    records.jobs.push_back(record);
    LineageRecord lineage;
    lineage.job = "gpt";
    lineage.incarnation = Incarnation{2};
    lineage.world = 2;
    records.lineages.push_back(lineage);
    VersionRecord version;
    version.job = "gpt";
    version.version = V(2, 10);
    version.world = 2;
    version.tiers = TierBit(Tier::kDisk);
    version.digests = {1, 2};
    records.versions.push_back(version);
  }
  Records records;
};

TEST_F(LoadModule, RecordsHoldDecisionsAndNoReplicas) {
  options.epoch = Epoch{3};
  ASSERT_TRUE(LoadRecords(context, records).ok());
  EXPECT_TRUE(effects.empty());
  const VersionState& version = job().versions.at(V(2, 10));
  EXPECT_TRUE(version.committed_at(Tier::kDisk));
  EXPECT_TRUE(version.ranks[0].known);
  EXPECT_TRUE(version.ranks[0].replicas.empty());
  EXPECT_EQ(job().targets[Tier::kDisk].step(), Step{11});
  EXPECT_FALSE(cluster.nodes[0].attached);
  EXPECT_EQ(cluster.nodes[0].lost_at, context.at.now);
  EXPECT_EQ(cluster.next_prepare, uint64_t{3} << 32);
}

TEST_F(LoadModule, DrainedNodesLeave) {
  records.drains.push_back({.node = "b", .why = "", .wall_nanos = 1, .move_runs = false});
  ASSERT_TRUE(LoadRecords(context, records).ok());
  const NodeIndex drained = cluster.node_names.at("b");
  EXPECT_TRUE(cluster.nodes[drained].drain);
  EXPECT_EQ(cluster.leaving, (std::set<NodeIndex>{drained}));
}

TEST_F(LoadModule, ACommitDigestIsThatOfTheDigests) {
  ASSERT_TRUE(LoadRecords(context, records).ok());
  EXPECT_EQ(job().versions.at(V(2, 10)).commit_digest, CommitDigest(std::vector<uint64_t>{1, 2}))
      << "of a record that an older coordinator wrote, too";
  cluster = {};
  records.versions[0].commit_digest = CommitDigest(std::vector<uint64_t>{1, 2});
  EXPECT_TRUE(LoadRecords(context, records).ok());
  cluster = {};
  records.versions[0].commit_digest ^= 1;
  EXPECT_EQ(LoadRecords(context, records).code(), ErrorCode::kDataLoss);
}

TEST_F(LoadModule, ContradictionsAreDataLoss) {
  records.versions[0].digests.pop_back();
  EXPECT_EQ(LoadRecords(context, records).code(), ErrorCode::kDataLoss);
  cluster = {};
  records.versions.clear();
  records.lineages[0].incarnation = Incarnation{3};
  EXPECT_EQ(LoadRecords(context, records).code(), ErrorCode::kDataLoss);
  cluster = {};
  records.lineages.clear();
  EXPECT_EQ(LoadRecords(context, records).code(), ErrorCode::kDataLoss);
}

TEST_F(LoadModule, AForgottenJobIsNoJob) {
  records.jobs[0].forgotten_upto = Incarnation{2};
  records.jobs[0].nodes_before = {"b"};
  records.lineages.clear();
  records.versions.clear();
  ASSERT_TRUE(LoadRecords(context, records).ok());
  EXPECT_TRUE(cluster.jobs.empty());
  EXPECT_EQ(cluster.forgotten.at("gpt").upto, Incarnation{2});
}

}  // namespace
}  // namespace holdfast::coord
