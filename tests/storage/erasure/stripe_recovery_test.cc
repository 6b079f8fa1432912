// Layout and code together: real bytes, real losses.

#include <gtest/gtest.h>

#include <algorithm>

#include "storage/erasure/code.h"
#include "storage/erasure/stripe_layout.h"
#include "tests/storage/erasure/erasure_test_util.h"

namespace holdfast {
namespace {

/// A group after encoding: images[node], and parity[stripe][p] on ParityNodes(stripe).
struct Group {
  Group(Random& random, uint32_t m, const std::vector<uint64_t>& image_bytes)
      : layout(*StripeLayout::Make(m, image_bytes)),
        code(std::move(*ErasureCode::Make(layout.data_count(), m))) {
    for (uint64_t bytes : image_bytes) images.push_back(RandomSegment(random, bytes));
    for (uint32_t stripe = 0; stripe < layout.node_count(); ++stripe) {
      parity.emplace_back(m, Bytes(layout.ParityBytes(stripe)));
      EncodeStripe(stripe);
    }
  }

  /// Returns the bytes of `member` in the piece [begin, end) of its stripe: all of them or none.
  std::span<const std::byte> Piece(const StripeMember& member, uint64_t begin, uint64_t end) const {
    if (member.bytes() < end) return {};
    return std::span(images[member.node]).subspan(member.begin + begin, end - begin);
  }

  void EncodeStripe(uint32_t stripe) {
    const std::vector<StripeMember> members = layout.DataMembers(stripe);
    const uint64_t bytes = layout.ParityBytes(stripe);
    for (uint64_t begin = 0, end; begin < bytes; begin = end) {
      end = layout.PieceEnd(stripe, begin);
      std::vector<std::span<const std::byte>> data;
      data.reserve(members.size());
      for (const StripeMember& member : members) data.push_back(Piece(member, begin, end));
      std::vector<std::span<std::byte>> outputs;
      for (Bytes& each : parity[stripe]) {
        outputs.push_back(std::span(each).subspan(begin, end - begin));
      }
      Status status = code->Encode(data, outputs);
      ASSERT_TRUE(status.ok()) << status.ToString();
    }
  }

  /// Decodes the bytes of the nodes in `lost` from only the other nodes' bytes.
  void ExpectRecovers(uint32_t lost) const {
    const Status status = Recover(lost, lost);
    ASSERT_TRUE(status.ok()) << status.ToString();
  }

  /// Decodes the images of `lost_data` and the parities of `lost_parity`, from the others only.
  /// Returns the code's error if it cannot. Wrong bytes fail the test.
  Status Recover(uint32_t lost_data, uint32_t lost_parity) const {
    std::vector<Bytes> rebuilt(images.size());
    for (uint32_t node : Members(lost_data)) rebuilt[node].resize(images[node].size());
    for (uint32_t stripe = 0; stripe < layout.node_count(); ++stripe) {
      Status status = RebuildStripe(stripe, lost_data, lost_parity, rebuilt);
      if (!status.ok()) return status;
    }
    for (uint32_t node : Members(lost_data)) EXPECT_EQ(rebuilt[node], images[node]) << node;
    return Status::Ok();
  }

  Status RebuildStripe(uint32_t stripe, uint32_t lost_data, uint32_t lost_parity,
                       std::vector<Bytes>& rebuilt) const {
    const uint32_t k = layout.data_count();
    const std::vector<StripeMember> members = layout.DataMembers(stripe);
    const uint64_t bytes = layout.ParityBytes(stripe);
    std::vector<Bytes> rebuilt_parity(layout.parity_count(), Bytes(bytes));
    for (uint64_t begin = 0, end; begin < bytes; begin = end) {
      end = layout.PieceEnd(stripe, begin);
      std::vector<PresentSegment> present;
      std::vector<WantedSegment> wanted;
      for (const StripeMember& member : members) {
        const std::span<const std::byte> piece = Piece(member, begin, end);
        // The lengths of lost nodes' images are known, too: after their ends nothing is lost.
        if ((lost_data >> member.node & 1) == 0 || piece.empty()) {
          present.push_back({member.index, piece});
        } else {
          std::span<std::byte> image(rebuilt[member.node]);
          wanted.push_back({member.index, image.subspan(member.begin + begin, end - begin)});
        }
      }
      for (uint32_t p = 0; p < layout.parity_count(); ++p) {
        if ((lost_parity >> layout.NodeOf(stripe, k + p) & 1) == 0) {
          present.push_back({k + p, std::span(parity[stripe][p]).subspan(begin, end - begin)});
        } else {
          wanted.push_back({k + p, std::span(rebuilt_parity[p]).subspan(begin, end - begin)});
        }
      }
      Status status = code->Decode(present, wanted);
      if (!status.ok()) return status;
    }
    for (uint32_t p = 0; p < layout.parity_count(); ++p) {
      if ((lost_parity >> layout.NodeOf(stripe, k + p) & 1) != 0) {
        EXPECT_EQ(rebuilt_parity[p], parity[stripe][p]) << "parity " << p << " of " << stripe;
      }
    }
    return Status::Ok();
  }

  StripeLayout layout;
  std::unique_ptr<ErasureCode> code;
  std::vector<Bytes> images;
  std::vector<std::vector<Bytes>> parity;
};

/// Returns what n nodes have without the data of `lost_data` and the parity of `lost_parity`.
std::vector<NodeShards> Without(uint32_t n, uint32_t lost_data, uint32_t lost_parity) {
  std::vector<NodeShards> nodes;
  for (uint32_t node = 0; node < n; ++node) {
    nodes.push_back({(lost_data >> node & 1) == 0, (lost_parity >> node & 1) == 0});
  }
  return nodes;
}

/// Returns unequal lengths of n images, at least one empty and one of `longest`.
std::vector<uint64_t> UnequalLengths(Random& random, uint32_t n, uint64_t longest) {
  std::vector<uint64_t> lengths(n);
  for (uint64_t& length : lengths) length = random.Below(longest + 1);
  lengths[0] = longest;
  lengths[1] = 0;
  Shuffle(random, lengths);
  return lengths;
}

TEST(RecoveryTest, AnyLossOfSmallGroups) {
  Random random(1);
  for (auto [k, m] : AllShapes()) {
    const uint32_t n = k + m;
    if (n > 10) continue;
    const Group group(random, m, UnequalLengths(random, n, 1 + random.Below(uint64_t{k} * 2000)));
    SCOPED_TRACE(testing::Message() << "n = " << n << ", m = " << m);
    for (uint32_t lost = 0; lost < 1U << n; ++lost) {
      if (!group.layout.IsDecodable(Without(n, lost, lost))) continue;
      ASSERT_NO_FATAL_FAILURE(group.ExpectRecovers(lost)) << "lost set " << lost;
    }
  }
}

TEST(RecoveryTest, RandomLossesOfLargeGroups) {
  Random random(2);
  for (auto [k, m] : AllShapes()) {
    const uint32_t n = k + m;
    if (n <= 10) continue;
    const Group group(random, m, UnequalLengths(random, n, 1 + random.Below(uint64_t{k} * 2000)));
    SCOPED_TRACE(testing::Message() << "n = " << n << ", m = " << m);
    for (int round = 0; round < 5; ++round) {
      const uint32_t lost = RandomSubset(random, n, m);
      ASSERT_NO_FATAL_FAILURE(group.ExpectRecovers(lost)) << "lost set " << lost;
    }
  }
}

TEST(RecoveryTest, SegmentsOfSeveralUnits) {
  Random random(3);
  const Group group(random, 2, {7'000'001, 0, 6'999'999, 3'000'000, 7'000'001});
  ASSERT_GT(group.layout.segment_bytes(), 2 * kStripeUnitBytes);
  for (uint32_t lost = 0; lost < 1U << 5; ++lost) {
    if (std::popcount(lost) != 2) continue;
    ASSERT_NO_FATAL_FAILURE(group.ExpectRecovers(lost)) << "lost set " << lost;
  }
}

TEST(RecoveryTest, EmptyImagesNeedNoParity) {
  Random random(4);
  const Group group(random, 1, {0, 0, 0});
  EXPECT_EQ(group.layout.segment_bytes(), 0U);
  EXPECT_EQ(group.layout.HeldParityBytes(0), 0U);
  ASSERT_NO_FATAL_FAILURE(group.ExpectRecovers(1));
}

// Every combination of lost images and lost parities, which nodes may lose independently. All
// images have the same length, so that every segment has bytes and every loss is an erasure.
TEST(RecoveryTest, TheRuleAgreesWithTheCodeOnEveryLossOfSmallGroups) {
  Random random(6);
  for (auto [k, m] : AllShapes()) {
    const uint32_t n = k + m;
    if (n > 5) continue;
    const Group group(random, m, std::vector<uint64_t>(n, k * kSegmentAlign));
    SCOPED_TRACE(testing::Message() << "n = " << n << ", m = " << m);
    for (uint32_t lost_data = 0; lost_data < 1U << n; ++lost_data) {
      for (uint32_t lost_parity = 0; lost_parity < 1U << n; ++lost_parity) {
        const Status status = group.Recover(lost_data, lost_parity);
        ASSERT_EQ(group.layout.IsDecodable(Without(n, lost_data, lost_parity)), status.ok())
            << "lost data " << lost_data << ", lost parity " << lost_parity << ": "
            << status.ToString();
        ASSERT_TRUE(status.ok() || status.code() == ErrorCode::kDataLoss);
      }
    }
  }
}

// After more than m losses, the code reports an error instead of returning wrong bytes.
TEST(RecoveryTest, OneLossTooManyIsDataLoss) {
  Random random(5);
  const Group group(random, 2, std::vector<uint64_t>(6, 40'000));
  const std::vector<StripeMember> members = group.layout.DataMembers(0);
  const uint64_t bytes = group.layout.ParityBytes(0);
  Bytes output(bytes);
  std::vector<PresentSegment> present;
  for (uint32_t i = 1; i < 4; ++i) present.push_back({i, group.Piece(members[i], 0, bytes)});
  const std::vector<WantedSegment> wanted = {{0, output}};
  const uint32_t lost = 1U << 0 | 1U << 1 | 1U << members[0].node;
  EXPECT_FALSE(group.layout.IsDecodable(Without(6, lost, lost)));
  EXPECT_EQ(group.code->Decode(present, wanted).code(), ErrorCode::kDataLoss);
}

}  // namespace
}  // namespace holdfast
