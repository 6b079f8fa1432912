// Plain replicas of many reports become one list; nothing else is changed.
#include "coordinator/relay/fold.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "coordinator/api/convert.h"

namespace holdfast::coord::relay {
namespace {
StoredReplica Replica(uint32_t rank, uint64_t step, Tier tier) {
  return {"lm", {Incarnation{1}, Step{step}}, Rank{rank}, 4, tier, 100 * step + rank, 1000 + rank};
}

pb::ReportRequest* AddReport(pb::ForwardRequest& batch, const std::string& node) {
  pb::ReportRequest* report = batch.add_items()->mutable_report();
  report->set_node(node);
  return report;
}

TEST(FoldTest, ReplicasOfOneVersionAndTierBecomeOneEntry) {
  pb::ForwardRequest batch;
  batch.add_items()->set_detach(true);
  for (uint32_t node = 0; node < 2; ++node) {
    pb::ReportRequest* report = AddReport(batch, "n" + std::to_string(node));
    for (uint32_t rank = 2 * node; rank < 2 * node + 2; ++rank) {
      ToProto(Replica(rank, 7, Tier::kMemory), report->add_replicas());
      ToProto(Replica(rank, 6, Tier::kDisk), report->add_replicas());
    }
  }
  const size_t before = batch.ByteSizeLong();
  FoldReplicas(&batch);
  ASSERT_EQ(batch.folded_size(), 2);
  for (const pb::FoldedReplicas& folded : batch.folded()) {
    const uint64_t step = folded.version().step();
    EXPECT_EQ(folded.job(), "lm");
    EXPECT_EQ(folded.world(), 4U);
    EXPECT_EQ(folded.tier(), static_cast<uint32_t>(step == 7 ? Tier::kMemory : Tier::kDisk));
    ASSERT_EQ(folded.ranks_size(), 4);
    for (int i = 0; i < 4; ++i) {
      EXPECT_EQ(folded.ranks(i), static_cast<uint32_t>(i));
      EXPECT_EQ(folded.items(i), 1U + static_cast<uint32_t>(i) / 2);  // the item of its report
      EXPECT_EQ(folded.digests(i), 100 * step + static_cast<uint64_t>(i));
      EXPECT_EQ(folded.image_bytes(i), 1000U + static_cast<uint64_t>(i));
    }
  }
  for (int item = 1; item < 3; ++item) {
    EXPECT_EQ(batch.items(item).report().replicas_size(), 0);
    EXPECT_EQ(batch.items(item).report().node(), "n" + std::to_string(item - 1));
  }
  EXPECT_LT(batch.ByteSizeLong(), before);
}

// A report that the coordinator refuses must not make it refuse those of other nodes. What the
// relay does not know must arrive as the agent sent it.
TEST(FoldTest, ReplicasWithMoreFieldsAndBadOnesStayInTheirReport) {
  pb::ForwardRequest batch;
  pb::ReportRequest* report = AddReport(batch, "n0");
  StoredReplica damaged = Replica(0, 7, Tier::kDisk);
  damaged.damage = "chunk 3";
  ToProto(damaged, report->add_replicas());
  StoredReplica sampled = Replica(1, 7, Tier::kMemory);
  sampled.samples.push_back({"w", 0, 4, 5});
  ToProto(sampled, report->add_replicas());
  ToProto(Replica(2, 7, Tier::kMemory), report->add_replicas());
  report->mutable_replicas(2)->set_rank(4);  // beyond the world
  std::string newer;
  ToProto(Replica(3, 7, Tier::kMemory), report->add_replicas());
  ASSERT_TRUE(report->replicas(3).SerializeToString(&newer));
  newer += "\xa2\x06\x01z";  // field 100 of a later version
  ASSERT_TRUE(report->mutable_replicas(3)->ParseFromString(newer));
  const std::string before = batch.SerializeAsString();
  FoldReplicas(&batch);
  EXPECT_EQ(batch.SerializeAsString(), before);
}

TEST(FoldTest, NothingBecomesNothing) {
  pb::ForwardRequest batch;
  FoldReplicas(&batch);
  AddReport(batch, "n0");
  FoldReplicas(&batch);
  EXPECT_EQ(batch.folded_size(), 0);
  EXPECT_EQ(batch.items_size(), 1);
}

}  // namespace
}  // namespace holdfast::coord::relay
