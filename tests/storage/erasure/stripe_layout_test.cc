#include "storage/erasure/stripe_layout.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "tests/storage/erasure/erasure_test_util.h"

namespace holdfast {
namespace {

StripeLayout Layout(uint32_t parity_count, const std::vector<uint64_t>& image_bytes) {
  auto layout = StripeLayout::Make(parity_count, image_bytes);
  EXPECT_TRUE(layout) << layout.error().ToString();
  return *layout;
}

/// Returns the lengths of n images: some empty, some equal, most unaligned.
std::vector<uint64_t> RandomLengths(Random& random, uint32_t n, uint64_t longest) {
  std::vector<uint64_t> lengths(n);
  for (uint64_t& length : lengths) {
    if (random.OneIn(4)) continue;
    length = random.OneIn(4) ? longest : random.Below(longest + 1);
  }
  return lengths;
}

/// Runs `check` with a layout of random lengths for every n and m.
template <typename Check>
void ForEveryGroup(Check check) {
  Random random(7);
  for (auto [k, m] : AllShapes()) {
    const uint64_t longest = random.OneIn(2) ? random.Below(1 << 20) : random.Below(1ULL << 30);
    const StripeLayout layout = Layout(m, RandomLengths(random, k + m, longest));
    SCOPED_TRACE(testing::Message() << "n = " << k + m << ", m = " << m);
    ASSERT_NO_FATAL_FAILURE(check(layout));
  }
}

TEST(MakeTest, AcceptsExactlyTheGroupsWithinTheLimits) {
  for (uint32_t n = 0; n <= 40; ++n) {
    for (uint32_t m = 0; m <= 6; ++m) {
      auto layout = StripeLayout::Make(m, std::vector<uint64_t>(n, 100));
      const bool fits = n >= 2 && n <= 32 && m >= 1 && m <= 4 && m < n;
      ASSERT_EQ(layout.has_value(), fits) << "n = " << n << ", m = " << m;
      if (!fits) {
        EXPECT_EQ(layout.error().code(), ErrorCode::kInvalidArgument);
      }
    }
  }
  EXPECT_FALSE(StripeLayout::Make(1, std::vector<uint64_t>{~0ULL, 1, 1}));
}

// The picture in docs/formats/stripe.md.
TEST(LayoutTest, TheDocumentedExample) {
  const StripeLayout layout = Layout(1, {20000, 30000, 8000, 0});
  EXPECT_EQ(layout.segment_bytes(), 12288U);  // 30000 ÷ 3, rounded up to 4096
  std::string picture;
  for (uint32_t stripe = 0; stripe < 4; ++stripe) {
    std::string row(8, ' ');
    for (uint32_t node : layout.ParityNodes(stripe)) row.replace(size_t{2} * node, 2, "P ");
    for (const StripeMember& member : layout.DataMembers(stripe)) {
      row[size_t{2} * member.node] = static_cast<char>('A' + member.node);
      row[size_t{2} * member.node + 1] = static_cast<char>('0' + member.segment);
    }
    picture += row + "\n";
  }
  EXPECT_EQ(picture,
            "P B2C1D0\n"
            "A0P C2D1\n"
            "A1B0P D2\n"
            "A2B1C0P \n");
  EXPECT_EQ(layout.DataMember(2, 1), (StripeMember{0, 1, 1, 12288, 20000}));
  EXPECT_EQ(layout.DataMember(3, 0), (StripeMember{0, 0, 2, 20000, 20000}));
  EXPECT_EQ(layout.DataMember(0, 0), (StripeMember{1, 0, 2, 24576, 30000}));
  EXPECT_EQ(layout.ParityBytes(0), 5424U);
  EXPECT_EQ(layout.ParityBytes(1), 12288U);
}

TEST(LayoutTest, EveryNodeHoldsItsShareOfEveryStripe) {
  ForEveryGroup([](const StripeLayout& layout) {
    const uint32_t n = layout.node_count();
    std::map<uint32_t, uint32_t> parities;
    std::map<uint32_t, std::set<uint32_t>> segments;
    for (uint32_t stripe = 0; stripe < n; ++stripe) {
      // No node occurs twice: the stripe contains each of the n nodes once.
      std::set<uint32_t> nodes;
      const std::vector<uint32_t> holders = layout.ParityNodes(stripe);
      ASSERT_EQ(holders.size(), layout.parity_count());
      EXPECT_EQ(holders[0], layout.LeaderOf(stripe));
      for (uint32_t p = 0; p < holders.size(); ++p) {
        EXPECT_EQ(holders[p], (stripe + p) % n);
        nodes.insert(holders[p]);
        ++parities[holders[p]];
      }
      const std::vector<StripeMember> members = layout.DataMembers(stripe);
      ASSERT_EQ(members.size(), layout.data_count());
      for (uint32_t i = 0; i < members.size(); ++i) {
        EXPECT_EQ(members[i].index, i);
        EXPECT_EQ(members[i].node, (stripe + layout.parity_count() + i) % n);
        EXPECT_EQ(members[i], layout.DataMember(stripe, i));
        nodes.insert(members[i].node);
        segments[members[i].node].insert(members[i].segment);
      }
      ASSERT_EQ(nodes.size(), n);
    }
    for (uint32_t node = 0; node < n; ++node) {
      EXPECT_EQ(parities[node], layout.parity_count());
      ASSERT_EQ(segments[node].size(), layout.data_count());
      EXPECT_EQ(*segments[node].rbegin(), layout.data_count() - 1);
    }
  });
}

TEST(LayoutTest, EveryByteOfEveryImageIsInOneSegment) {
  ForEveryGroup([](const StripeLayout& layout) {
    EXPECT_EQ(layout.segment_bytes() % kSegmentAlign, 0U);
    uint64_t longest = 0;
    for (uint32_t node = 0; node < layout.node_count(); ++node) {
      longest = std::max(longest, layout.image_bytes(node));
      uint64_t covered = 0;
      for (uint32_t segment = 0; segment < layout.data_count(); ++segment) {
        const uint32_t stripe = layout.StripeOf(node, segment);
        const StripeMember member = layout.DataMember(stripe, layout.data_count() - 1 - segment);
        ASSERT_EQ(member.node, node);
        ASSERT_EQ(member.segment, segment);
        ASSERT_EQ(member.begin, covered);
        ASSERT_LE(member.bytes(), layout.segment_bytes());
        // A segment is shorter only where the image ends.
        if (member.bytes() < layout.segment_bytes()) {
          ASSERT_EQ(member.end, layout.image_bytes(node));
        }
        ASSERT_LE(member.bytes(), layout.ParityBytes(stripe));
        covered = member.end;
      }
      ASSERT_EQ(covered, layout.image_bytes(node));
    }
    // Segments are not longer than needed.
    EXPECT_GE(layout.segment_bytes() * layout.data_count(), longest);
    EXPECT_LT(layout.segment_bytes() * layout.data_count(),
              longest + layout.data_count() * kSegmentAlign);
  });
}

TEST(LayoutTest, NodesAndIndicesAreInverse) {
  ForEveryGroup([](const StripeLayout& layout) {
    for (uint32_t stripe = 0; stripe < layout.node_count(); ++stripe) {
      const std::vector<uint32_t> holders = layout.ParityNodes(stripe);
      for (uint32_t index = 0; index < layout.node_count(); ++index) {
        const uint32_t node = layout.NodeOf(stripe, index);
        ASSERT_EQ(layout.IndexOf(stripe, node), index);
        if (index >= layout.data_count()) {
          ASSERT_EQ(node, holders[index - layout.data_count()]);
        } else {
          ASSERT_EQ(layout.StripeOf(node, layout.DataMember(stripe, index).segment), stripe);
        }
      }
    }
  });
}

TEST(PiecesTest, CoverTheStripeWithSegmentsCompleteOrAbsent) {
  ForEveryGroup([](const StripeLayout& layout) {
    for (uint32_t stripe = 0; stripe < layout.node_count(); ++stripe) {
      const uint64_t bytes = layout.ParityBytes(stripe);
      const std::vector<StripeMember> members = layout.DataMembers(stripe);
      uint64_t pieces = 0;
      for (uint64_t begin = 0, end; begin < bytes; begin = end, ++pieces) {
        end = layout.PieceEnd(stripe, begin);
        ASSERT_GT(end, begin);
        ASSERT_LE(end, bytes);
        ASSERT_EQ(begin / kStripeUnitBytes, (end - 1) / kStripeUnitBytes);
        for (const StripeMember& member : members) {
          ASSERT_TRUE(member.bytes() <= begin || member.bytes() >= end);
        }
      }
      // There are no other cuts.
      ASSERT_LE(pieces, bytes / kStripeUnitBytes + layout.data_count());
    }
  });
}

// The table "rotating parity, stripe leader": sent S(n − 1)/(n − m), extra memory m·S/(n − m).
TEST(CostTest, MatchesTheFormulasOfRotatingParity) {
  for (auto [k, m] : AllShapes()) {
    const uint32_t n = k + m;
    const uint64_t image_bytes = uint64_t{k} * kSegmentAlign * 300;
    const StripeLayout layout = Layout(m, std::vector<uint64_t>(n, image_bytes));
    for (uint32_t node = 0; node < n; ++node) {
      EXPECT_EQ(layout.SentBytes(node), image_bytes * (n - 1) / (n - m));
      EXPECT_EQ(layout.HeldParityBytes(node), image_bytes * m / (n - m));
    }
  }
}

TEST(CostTest, MatchesTheBytesThatEachNodeSendsAndHolds) {
  ForEveryGroup([](const StripeLayout& layout) {
    const uint32_t n = layout.node_count();
    std::vector<uint64_t> sent(n);
    std::vector<uint64_t> held(n);
    for (uint32_t stripe = 0; stripe < n; ++stripe) {
      uint64_t longest = 0;
      for (const StripeMember& member : layout.DataMembers(stripe)) {
        ASSERT_NE(member.node, layout.LeaderOf(stripe));
        sent[member.node] += member.bytes();
        longest = std::max(longest, member.bytes());
      }
      for (uint32_t holder : layout.ParityNodes(stripe)) {
        held[holder] += longest;
        if (holder != layout.LeaderOf(stripe)) sent[layout.LeaderOf(stripe)] += longest;
      }
    }
    for (uint32_t node = 0; node < n; ++node) {
      EXPECT_EQ(layout.SentBytes(node), sent[node]);
      EXPECT_EQ(layout.HeldParityBytes(node), held[node]);
    }
  });
}

TEST(IsDecodableTest, UpToAsManyLostNodesAsParities) {
  ForEveryGroup([](const StripeLayout& layout) {
    std::vector<NodeShards> nodes(layout.node_count(), {true, true});
    for (uint32_t lost = 0; lost < layout.node_count(); ++lost) {
      EXPECT_EQ(layout.IsDecodable(nodes), lost <= layout.parity_count());
      nodes[layout.node_count() - 1 - lost] = {};
    }
    EXPECT_FALSE(layout.IsDecodable(nodes));
  });
}

}  // namespace
}  // namespace holdfast
