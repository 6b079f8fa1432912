#include "tests/coordinator/state/harness.h"

// Tensor replicas that differ are found when a version is committed.

namespace holdfast::coord {
namespace {
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class ReplicasTest : public ::testing::Test {
 protected:
  void SetUp() override {
    for (uint32_t rank = 0; rank < 3; ++rank) {
      c.Attach(Node(rank));
      c.Join(Node(rank), "run-1", rank, 3);
    }
  }
  static std::string Node(uint32_t rank) { return std::string(1, static_cast<char>('a' + rank)); }

  /// Bytes [first, last) of tensor `w` with this checksum.
  static ReplicaSample Sample(uint64_t first, uint64_t last, uint32_t crc,
                              const std::string& tensor = "'w'") {
    return {tensor, first, last - first, crc};
  }
  /// Reports the version from all ranks; rank r reports samples[r]. Returns the findings.
  std::vector<Finding> Save(uint64_t step, const std::vector<std::vector<ReplicaSample>>& samples,
                            uint64_t incarnation = 1) {
    std::vector<Finding> findings;
    const uint32_t world = static_cast<uint32_t>(samples.size());
    for (uint32_t rank = 0; rank < world; ++rank) {
      StoredReplica report = H(V(incarnation, step), rank, Tier::kMemory, world);
      report.samples = samples[rank];
      c.Hold(Node(rank), {report});
      for (const Effect& effect : c.effects) {
        const auto* finding = std::get_if<Finding>(&effect);
        if (finding != nullptr && !finding->kind.empty()) findings.push_back(*finding);
      }
    }
    return findings;
  }
  /// Reports the same bytes of all three ranks, with these checksums.
  std::vector<Finding> SaveOne(uint64_t step, uint64_t first, uint64_t last,
                               const std::vector<uint32_t>& crcs, uint64_t incarnation = 1) {
    std::vector<std::vector<ReplicaSample>> samples;
    samples.reserve(crcs.size());
    for (uint32_t crc : crcs) samples.push_back({Sample(first, last, crc)});
    return Save(step, samples, incarnation);
  }
  std::vector<std::string> Disputes(uint64_t step, uint64_t incarnation = 1) {
    const auto statuses = c.state().Versions("gpt");
    for (const VersionStatus& status : *statuses) {
      if (status.version == V(incarnation, step)) return status.disputed;
    }
    return {"no such version"};
  }
  Harness c;
};

TEST_F(ReplicasTest, TheRankThatDiffersIsNamedAndTheVersionDisputed) {
  EXPECT_THAT(SaveOne(1, 0, 8, {7, 7, 7}), IsEmpty());
  EXPECT_THAT(Disputes(1), IsEmpty());
  const std::vector<Finding> findings = SaveOne(2, 0, 8, {7, 8, 7});
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].kind, "replicas differ");
  EXPECT_THAT(findings[0].ranks, ElementsAre(Rank{1}));
  EXPECT_THAT(
      findings[0].what.message(),
      HasSubstr("version 1-2 is disputed: 'w', bytes 0 to 8: rank 1 differs from ranks 0, 2"));
  EXPECT_THAT(Disputes(2), ElementsAre("'w', bytes 0 to 8: rank 1 differs from ranks 0, 2"));
}

TEST_F(ReplicasTest, WithoutAMajorityAllAreNamed) {
  EXPECT_THAT(SaveOne(1, 0, 1, {7, 8, 9}), SizeIs(1));
  EXPECT_THAT(Disputes(1), ElementsAre("'w', bytes 0 to 1: ranks 0, 1, 2 differ from each other"));
}

TEST_F(ReplicasTest, HalfIsNoMajority) {
  const std::vector<Finding> findings = Save(1, {{Sample(0, 1, 7)}, {}, {Sample(0, 1, 8)}});
  ASSERT_THAT(findings, SizeIs(1));
  EXPECT_THAT(findings[0].ranks, ElementsAre(Rank{0}, Rank{2}));
  EXPECT_THAT(Disputes(1), ElementsAre("'w', bytes 0 to 1: ranks 0, 2 differ from each other"));
}

TEST_F(ReplicasTest, LaterVersionsAreDisputedUntilTheSameBytesAreEqual) {
  SaveOne(1, 0, 8, {7, 8, 7});
  const std::string text = "'w', bytes 0 to 8: rank 1 differs from ranks 0, 2";
  EXPECT_THAT(SaveOne(2, 8, 16, {1, 1, 1}), IsEmpty());
  EXPECT_THAT(Disputes(2), ElementsAre(text));
  c.Restart();
  for (uint32_t rank = 0; rank < 3; ++rank) c.Attach(Node(rank));
  EXPECT_THAT(SaveOne(3, 8, 16, {1, 1, 1}), IsEmpty());
  EXPECT_THAT(Disputes(3), ElementsAre(text)) << "disputes survive a restart";
  SaveOne(4, 0, 8, {9, 9, 9});
  EXPECT_THAT(Disputes(4), IsEmpty());
}

TEST_F(ReplicasTest, LaterSamplesMayHaveOtherBounds) {
  SaveOne(1, 100, 200, {7, 8, 7});
  SaveOne(2, 120, 130, {1, 1, 1});
  EXPECT_THAT(Disputes(2), ElementsAre("'w', bytes 100 to 120: rank 1 differs from ranks 0, 2",
                                       "'w', bytes 130 to 200: rank 1 differs from ranks 0, 2"));
  SaveOne(3, 0, 110, {1, 1, 1});
  SaveOne(4, 150, 300, {1, 1, 1});
  EXPECT_THAT(Disputes(4), ElementsAre("'w', bytes 110 to 120: rank 1 differs from ranks 0, 2",
                                       "'w', bytes 130 to 150: rank 1 differs from ranks 0, 2"));
  Save(5, {{Sample(0, 999, 1, "'v'")}, {Sample(0, 999, 1, "'v'")}, {Sample(0, 999, 1, "'v'")}});
  EXPECT_THAT(Disputes(5), SizeIs(2)) << "another tensor does not end the dispute";
  SaveOne(6, 100, 200, {1, 1, 1});
  EXPECT_THAT(Disputes(6), IsEmpty());
}

TEST_F(ReplicasTest, ARankThatDiffersEverywhereIsOneIncident) {
  EXPECT_THAT(SaveOne(1, 0, 8, {7, 8, 7}), SizeIs(1));
  EXPECT_THAT(SaveOne(2, 8, 16, {7, 8, 7}), IsEmpty());
  EXPECT_THAT(Disputes(2), ElementsAre("'w', bytes 0 to 16: rank 1 differs from ranks 0, 2"));
  EXPECT_THAT(SaveOne(3, 16, 24, {7, 7, 8}), SizeIs(1)) << "another rank is another incident";
  EXPECT_THAT(Disputes(3), SizeIs(2));
  for (uint64_t step = 4; step < 100; ++step) SaveOne(step, 100 * step, 100 * step + 1, {7, 8, 7});
  EXPECT_THAT(Disputes(99), SizeIs(16)) << "their number is bounded";
}

TEST_F(ReplicasTest, OnlyTheSameBytesAreCompared) {
  // Rank 2 is one save behind, and rank 0 sends no samples.
  EXPECT_THAT(Save(1, {{}, {Sample(8, 16, 1)}, {Sample(0, 8, 2)}}), IsEmpty());
  EXPECT_THAT(Disputes(1), IsEmpty());
  const std::vector<std::vector<ReplicaSample>> others = {
      {Sample(0, 8, 1, "'a'")}, {Sample(0, 8, 2, "'b'")}, {Sample(0, 9, 3, "'a'")}};
  EXPECT_THAT(Save(2, others), IsEmpty());
  EXPECT_THAT(Disputes(2), IsEmpty());
}

TEST_F(ReplicasTest, ANewStartHasNoDisputes) {
  SaveOne(1, 0, 8, {7, 8, 7});
  for (uint32_t rank = 0; rank < 3; ++rank) c.Join(Node(rank), "run-2", rank, 3);
  SaveOne(1, 8, 16, {1, 1, 1}, 2);
  EXPECT_THAT(Disputes(1, 2), IsEmpty());
}

TEST_F(ReplicasTest, TheLatestReportOfARankCounts) {
  StoredReplica report = H(V(1, 1), 0, Tier::kMemory, 3);
  report.samples = {Sample(0, 8, 7)};
  c.Hold("a", {report});
  report.samples = {Sample(0, 8, 8)};
  c.Hold("a", {report});
  for (uint32_t rank = 1; rank < 3; ++rank)
    c.Hold(Node(rank), {H(V(1, 1), rank, Tier::kMemory, 3)});
  EXPECT_THAT(Disputes(1), IsEmpty()) << "one rank does not differ from itself";
}

}  // namespace
}  // namespace holdfast::coord
