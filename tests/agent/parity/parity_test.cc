// Every node of a group builds its parity, every set of up to m nodes is lost, and every lost shard
// comes back byte for byte.

#include <gmock/gmock.h>

#include <functional>

#include "storage/erasure/code.h"
#include "storage/format/image.h"
#include "tests/agent/parity/group_fixture.h"

namespace holdfast::agent {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::Each;

void ForSubsets(uint32_t n, uint32_t size,
                const std::function<void(std::vector<uint32_t>)>& visit) {
  std::vector<bool> pick(n, false);
  std::fill(pick.begin(), pick.begin() + size, true);
  do {
    std::vector<uint32_t> subset;
    for (uint32_t i = 0; i < n; ++i) {
      if (pick[i]) subset.push_back(i);
    }
    visit(subset);
  } while (std::prev_permutation(pick.begin(), pick.end()));
}

TEST(ParityTest, EverySetOfUpToMLostNodesComesBack) {
  for (const auto& [n, m] :
       std::vector<std::pair<uint32_t, uint32_t>>{{2, 1}, {3, 1}, {4, 1}, {5, 2}, {6, 3}, {8, 2}}) {
    SCOPED_TRACE(fmt::format("n={} m={}", n, m));
    Group group(n, m, n * 100 + m, 3 << 20);
    EXPECT_THAT(group.Build(), Each(Status::Ok()));
    for (uint32_t lost = 1; lost <= m; ++lost) {
      ForSubsets(n, lost, [&](const std::vector<uint32_t>& subset) {
        const Status status = group.Recover(subset);
        EXPECT_TRUE(status.ok()) << status.ToString() << " after losing "
                                 << ::testing::PrintToString(subset);
      });
    }
    std::vector<uint32_t> too_many;
    for (uint32_t i = 0; i <= m; ++i) too_many.push_back(i);
    EXPECT_FALSE(group.Recover(too_many).ok());
  }
}

TEST(ParityTest, ParityThatWasNeverKeptIsMadeFromTheData) {
  for (const auto& [n, m] : std::vector<std::pair<uint32_t, uint32_t>>{{2, 1}, {4, 1}, {8, 2}}) {
    Group group(n, m, n + m, 3 << 20);
    ASSERT_THAT(group.Build(), Each(Status::Ok()));
    const Status status = group.RemakeParity();
    EXPECT_TRUE(status.ok()) << "n=" << n << ": " << status.ToString();
  }
}

TEST(ParityTest, TheImageIsASafetensorsFileThatSaysWhatItIs) {
  Group group(4, 2, 5, 1 << 20);
  ASSERT_THAT(group.Build(), Each(Status::Ok()));
  const Shard& parity = group.node(2).shards.at(ParityRank(12));
  auto parsed = ParseImage(parity.bytes, parity.bytes.size());
  ASSERT_TRUE(parsed.has_value()) << parsed.error().ToString();
  EXPECT_EQ(parsed->identity, parity.seal.identity);
  ASSERT_EQ(parsed->tensors.size(), 2U);
  EXPECT_EQ(parsed->tensors[0].spec.name, "parity");
  EXPECT_EQ(parsed->tensors[0].spec.shape,
            (std::vector<uint64_t>{2, group.plan().layout().segment_bytes()}));
  ASSERT_EQ(parsed->extras.size(), 1U);
  const PlacedExtra& extra = parsed->extras[0];
  const auto text =
      std::span(parity.bytes).subspan(parsed->data_offset + extra.begin, extra.bytes());
  auto plan = GroupPlan::FromJson({reinterpret_cast<const char*>(text.data()), text.size()});
  ASSERT_TRUE(plan.has_value()) << plan.error().ToString();
  EXPECT_EQ(plan->layout(), group.plan().layout());
}

TEST(ParityTest, EachNodeSendsNoMoreThanItsShare) {
  for (const auto& [n, m] : std::vector<std::pair<uint32_t, uint32_t>>{{4, 1}, {8, 2}}) {
    Group group(n, m, n, 8 << 20);
    ASSERT_THAT(group.Build(), Each(Status::Ok()));
    for (uint32_t i = 0; i < n; ++i) {
      uint64_t seals = 0;
      for (const auto& [rank, shard] : group.node(i).shards) {
        if (!IsParity(rank)) seals += EncodeSeal(shard.seal).size() * (n - 1);
      }
      EXPECT_LE(group.network().sent.at(Group::NameOf(i)),
                group.plan().layout().SentBytes(i) + seals);
    }
  }
}

TEST(ParityTest, ALostContributorFailsTheVersionForAllInTime) {
  Group group(5, 2, 9, 1 << 20);
  group.network().nodes["n3"] = nullptr;
  const auto start = Clock::Real().Now();
  for (const Status& outcome : group.Build(milliseconds(500))) EXPECT_FALSE(outcome.ok());
  EXPECT_LT(Clock::Real().Now() - start, seconds(20));
}

TEST(ParityTest, CorruptSurvivorsAreNeverServed) {
  Group group(4, 1, 11, 1 << 20);
  ASSERT_THAT(group.Build(), Each(Status::Ok()));
  const uint64_t rows_end = ParityImage::RowBegin(group.plan().layout(), 1);
  for (uint32_t i = 1; i < 4; ++i) {
    for (auto& [rank, shard] : group.node(i).shards) {
      const auto rows = std::span(shard.bytes).subspan(ParityImage::kHeaderBytes);
      for (auto& byte : IsParity(rank) ? rows.first(rows_end - ParityImage::kHeaderBytes)
                                       : std::span(shard.bytes)) {
        byte ^= std::byte{4};
      }
    }
  }
  const Status status = group.Recover({0});
  EXPECT_EQ(status.code(), ErrorCode::kDataLoss) << status.ToString();
}

TEST(ParityTest, HostilePlansAreRefused) {
  const std::string good = Group(4, 1, 1, 8192).plan().ToJson(/*as_of_now=*/true);
  ASSERT_TRUE(GroupPlan::FromJson(good).has_value());
  Random random(3);
  for (int round = 0; round < 3000; ++round) {
    std::string bad = good;
    for (uint64_t flips = 1 + random.Below(3); flips > 0; --flips) {
      bad[random.Below(bad.size())] = static_cast<char>(random.Next());
    }
    auto plan = GroupPlan::FromJson(bad);
    if (plan) {
      EXPECT_LE(plan->members().size(), kCodeSegmentsMax);
    }
  }
  EXPECT_FALSE(GroupPlan::FromJson("").has_value());
  EXPECT_FALSE(GroupPlan::FromJson(R"({"parity":1,"members":[]})").has_value());
  EXPECT_FALSE(GroupPlan::FromJson(R"({"parity":1,"members":7})").has_value());
}

TEST(RowQueueTest, ASlowFollowerHoldsTheLeaderBackAndNobodyForEver) {
  RowQueue row;
  const std::vector<std::byte> unit(10);
  const auto soon = [] { return Clock::Real().Now() + milliseconds(50); };
  int pushed = 0;
  while (row.Push(unit, soon()).ok()) ++pushed;
  EXPECT_EQ(pushed, 4);
  EXPECT_EQ(row.Pop(soon())->size(), 10U);
  EXPECT_TRUE(row.Push(unit, soon()).ok());
  row.Close(AbortedError("the version is aborted"));
  EXPECT_EQ(row.Pop(soon()).error().code(), ErrorCode::kAborted);
  EXPECT_EQ(row.Push(unit, soon()).code(), ErrorCode::kAborted);
  RowQueue empty;
  EXPECT_EQ(empty.Pop(soon()).error().code(), ErrorCode::kDeadlineExceeded);
  empty.Close(Status::Ok());
  EXPECT_EQ(empty.Pop(soon())->size(), 0U);
}

}  // namespace
}  // namespace holdfast::agent
