// Every node of a group builds its parity; then, for every set of up to m lost nodes, every lost
// shard is rebuilt byte for byte.

#include <gmock/gmock.h>

#include <functional>
#include <tuple>

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

TEST(ParityTest, EverySetOfUpToMLostNodesIsRebuilt) {
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

TEST(ParityTest, MissingParityIsBuiltFromTheData) {
  for (const auto& [n, m] : std::vector<std::pair<uint32_t, uint32_t>>{{2, 1}, {4, 1}, {8, 2}}) {
    Group group(n, m, n + m, 3 << 20);
    ASSERT_THAT(group.Build(), Each(Status::Ok()));
    const Status status = group.RebuildAllParity();
    EXPECT_TRUE(status.ok()) << "n=" << n << ": " << status.ToString();
  }
}

TEST(ParityTest, TheImageIsASafetensorsFileThatDescribesItself) {
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

TEST(ParityTest, ALostContributorFailsTheVersionForAllMembersInTime) {
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

/// Random bad chunks in data and parity of all members. A chunk is decodable exactly when the code
/// can decode each of its positions.
class RandomDamage {
 public:
  RandomDamage(Group& group, Random& random, uint64_t one_in) : group_(group) {
    for (uint32_t i = 0; i < group.plan().members().size(); ++i) {
      for (const auto& [rank, shard] : group.node(i).shards) {
        for (uint64_t chunk = 0; chunk < shard.seal.chunk_crcs.size(); ++chunk) {
          if (random.Below(one_in) != 0) continue;
          group.node(i).bad[rank].insert(chunk);
          damaged_.emplace_back(i, rank, chunk);
        }
      }
    }
  }
  const std::vector<std::tuple<uint32_t, Rank, uint64_t>>& damaged() const { return damaged_; }

  /// Returns whether each position of the chunk has k members with good bytes.
  bool IsDecodable(uint32_t position, Rank rank, uint64_t chunk) {
    const GroupPlan& plan = group_.plan();
    const StripeLayout& layout = plan.layout();
    const uint64_t bytes = group_.node(position).shards.at(rank).bytes.size();
    const uint64_t end = std::min(bytes, (chunk + 1) * kChunkBytes);
    for (uint64_t at = chunk * kChunkBytes; at < end; at += kSegmentAlign) {
      uint32_t stripe = 0;
      uint64_t offset = 0;
      if (IsParity(rank)) {
        if (at < ParityImage::kHeaderBytes) continue;
        const uint64_t in_rows = at - ParityImage::kHeaderBytes;
        const auto parity = static_cast<uint32_t>(in_rows / layout.segment_bytes());
        if (parity >= layout.parity_count()) continue;
        stripe = ParityImage::StripeOfRow(layout, position, parity);
        offset = in_rows % layout.segment_bytes();
        if (offset >= layout.ParityBytes(stripe)) continue;
      } else {
        const uint64_t node_at = plan.RankBegin(position, rank) + at;
        stripe = layout.StripeOf(position, static_cast<uint32_t>(node_at / layout.segment_bytes()));
        offset = node_at % layout.segment_bytes();
      }
      uint32_t good = 0;
      for (uint32_t i = 0; i < layout.node_count(); ++i) {
        if (i != position && IsGood(stripe, layout.IndexOf(stripe, i), offset)) ++good;
      }
      if (good < layout.data_count()) return false;
    }
    return true;
  }

 private:
  bool IsGood(uint32_t stripe, uint32_t index, uint64_t offset) {
    const GroupPlan& plan = group_.plan();
    const StripeLayout& layout = plan.layout();
    const uint32_t node = layout.NodeOf(stripe, index);
    const auto bad = [&](Rank rank, uint64_t at) {
      return group_.node(node).bad[rank].contains(at / kChunkBytes);
    };
    if (index >= layout.data_count()) {
      return !bad(ParityRank(plan.members()[node].number),
                  ParityImage::RowBegin(layout, index - layout.data_count()) + offset);
    }
    const StripeMember segment = layout.DataMember(stripe, index);
    if (segment.begin + offset >= segment.end) return true;
    const auto pieces = plan.Pieces(node, segment.begin + offset, segment.begin + offset + 1);
    return pieces.empty() || !bad(pieces[0].rank, pieces[0].rank_offset);
  }

  Group& group_;
  std::vector<std::tuple<uint32_t, Rank, uint64_t>> damaged_;
};

TEST(ParityTest, BadChunksAreErasuresOfTheirPositionsOnly) {
  uint32_t decoded = 0;
  uint32_t lost = 0;
  for (const auto& [n, m] :
       std::vector<std::pair<uint32_t, uint32_t>>{{2, 1}, {4, 1}, {5, 2}, {6, 3}}) {
    for (uint64_t seed = 1; seed <= 4; ++seed) {
      SCOPED_TRACE(fmt::format("n={} m={} seed={}", n, m, seed));
      Group group(n, m, seed * 100 + n, 8 << 20);
      ASSERT_THAT(group.Build(), Each(Status::Ok()));
      Random random(seed);
      RandomDamage damage(group, random, /*one_in=*/1 + seed);
      for (const auto& [position, rank, chunk] : damage.damaged()) {
        const auto bytes = group.DecodeChunk(position, rank, chunk);
        // Every other member has a copy of the seals.
        const bool can = damage.IsDecodable(position, rank, chunk);
        ASSERT_EQ(bytes.has_value(), can) << ShardName(rank) << " chunk " << chunk << ": "
                                          << (bytes ? "" : bytes.error().ToString());
        ++(can ? decoded : lost);
        if (!can) {
          EXPECT_EQ(bytes.error().code(), ErrorCode::kDataLoss);
          continue;
        }
        const auto& shard = group.node(position).shards.at(rank);
        const auto right = std::span(shard.bytes).subspan(chunk * kChunkBytes, bytes->size());
        EXPECT_TRUE(std::equal(bytes->begin(), bytes->end(), right.begin()));
      }
    }
  }
  // Both cases were tested.
  EXPECT_GT(decoded, 50U);
  EXPECT_GT(lost, 50U);
}

TEST(ParityTest, AMemberThatDoesNotAnswerIsReplaced) {
  Group group(5, 2, 21, 3 << 20);
  ASSERT_THAT(group.Build(), Each(Status::Ok()));
  const auto lost_node = std::move(group.network().nodes["n4"]);
  for (const auto& [rank, shard] : group.node(2).shards) {
    for (uint64_t chunk = 0; chunk < shard.seal.chunk_crcs.size(); ++chunk) {
      const auto bytes = group.DecodeChunk(2, rank, chunk);
      ASSERT_TRUE(bytes.has_value()) << ShardName(rank) << ": " << bytes.error().ToString();
      const auto right = std::span(shard.bytes).subspan(chunk * kChunkBytes, bytes->size());
      EXPECT_TRUE(std::equal(bytes->begin(), bytes->end(), right.begin())) << ShardName(rank);
    }
  }
}

TEST(GroupPlanTest, RanksOfANodeAscendAndHaveAlignedSlots) {
  const auto made = [](std::vector<PlanRank> ranks) {
    PlanMember first;
    first.node = "a";
    first.ranks = std::move(ranks);
    PlanMember second;
    second.node = "b";
    second.number = 1;
    second.ranks = {{Rank{9}, kSegmentAlign}};
    return GroupPlan::Make({first, second}, 1);
  };
  EXPECT_TRUE(made({{Rank{1}, kSegmentAlign}, {Rank{2}, 2 * kSegmentAlign}}));
  // The order of ranks determines where their bytes begin, so it must be the same on all nodes.
  EXPECT_FALSE(made({{Rank{2}, kSegmentAlign}, {Rank{1}, kSegmentAlign}}));
  EXPECT_FALSE(made({{Rank{1}, kSegmentAlign}, {Rank{1}, kSegmentAlign}}));
  EXPECT_FALSE(made({{Rank{1}, kSegmentAlign + 1}}));
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

TEST(RowQueueTest, ASlowFollowerBlocksTheLeaderForABoundedTime) {
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
