#include "coordinator/state/adoption.h"
#include "coordinator/state/lives.h"
#include "tests/coordinator/state/modules/module_test.h"

namespace holdfast::coord {
namespace {
class AdoptionModule : public ModuleTest {
 protected:
  void SetUp() override {
    options.life = LifeId{1};
    ModuleTest::SetUp();
    for (auto& [incarnation, lineage] : job().lineages) lineage.life = options.life;
    job().lineages.erase(Incarnation{1});
  }
  void Quarantine(NodeIndex node, VersionId version, uint32_t rank, uint64_t life = 2) {
    StoredReplica report = H(version, rank, Tier::kDisk);
    report.life = LifeId{life};
    QuarantineReplica(context, node, report);
  }
  std::vector<AdoptedVersion> Adopt(bool dry_run) {
    effects.clear();
    AdoptRequested event;
    event.request = 5;
    event.dry_run = dry_run;
    OnAdoptRequested(context, event);
    return Added<Reply>().at(0).adopted;
  }
};

TEST_F(AdoptionModule, ACompleteVersionIsAdoptedWithARecord) {
  Quarantine(0, V(1, 10), 0);
  Quarantine(1, V(1, 10), 1);
  EXPECT_EQ(Adopt(/*dry_run=*/true).at(0).why_not, "");
  EXPECT_EQ(job().versions.count(V(1, 10)), 0U);
  EXPECT_EQ(Adopt(/*dry_run=*/false).at(0).why_not, "");
  const VersionState& version = job().versions.at(V(1, 10));
  EXPECT_TRUE(version.committed_at(Tier::kDisk));
  EXPECT_TRUE(version.pinned);
  EXPECT_EQ(version.adopted_from, LifeId{2});
  EXPECT_EQ(Added<PutVersion>().size(), 1U);
  EXPECT_FALSE(HasQuarantined(context, "gpt"));
}

TEST_F(AdoptionModule, AnIncompleteOrContestedVersionIsNot) {
  Quarantine(0, V(1, 10), 0);
  EXPECT_THAT(Adopt(false).at(0).why_not, ::testing::HasSubstr("rank 1 has none"));
  Quarantine(1, V(1, 10), 1);
  StoredReplica other = H(V(1, 10), 1, Tier::kMemory);
  other.life = LifeId{2};
  other.digest += 1;
  QuarantineReplica(context, 0, other);
  EXPECT_THAT(Adopt(false).at(0).why_not, ::testing::HasSubstr("is not the same"));
}

TEST_F(AdoptionModule, AnIncarnationOfThisLifeIsNotReplaced) {
  Quarantine(0, V(2, 10), 0);
  Quarantine(1, V(2, 10), 1);
  EXPECT_THAT(Adopt(false).at(0).why_not, ::testing::HasSubstr("has its own incarnation 2"));
}

}  // namespace
}  // namespace holdfast::coord
