#include "storage/format/overlap.h"

#include <gtest/gtest.h>

#include <cstring>
#include <numeric>

#include "base/random.h"

namespace holdfast {
namespace {

uint64_t ElementsOf(const std::vector<uint64_t>& shape) {
  return std::accumulate(shape.begin(), shape.end(), uint64_t{1}, std::multiplies<>());
}

/// Returns the row-major index in a tensor of `global` for each element of a box: slow and simple.
std::vector<uint64_t> IndicesOf(const Box& box, const std::vector<uint64_t>& global) {
  std::vector<uint64_t> indices;
  const uint64_t count = ElementsOf(box.shape);
  for (uint64_t i = 0; i < count; ++i) {
    uint64_t left = i;
    uint64_t index = 0;
    uint64_t stride = 1;
    for (size_t d = box.shape.size(); d-- > 0;) {
      index += (box.offset[d] + left % box.shape[d]) * stride;
      left /= box.shape[d];
      stride *= global[d];
    }
    indices.push_back(index);
  }
  return indices;
}

Box RandomBox(Random& random, const std::vector<uint64_t>& global, bool may_be_empty) {
  Box box;
  for (uint64_t extent : global) {
    // Include complete dimensions: only then a run spans several.
    const bool whole = random.OneIn(3);
    const uint64_t begin = whole ? 0 : random.Below(extent);
    const uint64_t most = extent - begin;
    const uint64_t count = whole          ? extent
                           : may_be_empty ? random.Below(most + 1)
                                          : 1 + random.Below(most);
    box.offset.push_back(begin);
    box.shape.push_back(count);
  }
  return box;
}

std::vector<uint64_t> RandomShape(Random& random) {
  std::vector<uint64_t> shape(random.Below(5));
  for (uint64_t& extent : shape) extent = 1 + random.Below(6);
  return shape;
}

TEST(OverlapTest, CoverAssignsEachElementOnceAndReportsMissingOnes) {
  Random random(7);
  uint64_t missed = 0;
  for (int round = 0; round < 3000; ++round) {
    const std::vector<uint64_t> global = RandomShape(random);
    const Box wanted = RandomBox(random, global, /*may_be_empty=*/true);
    std::vector<Box> pieces;
    for (uint64_t n = random.Below(6); n > 0; --n)
      pieces.push_back(RandomBox(random, global, true));
    std::vector<int> owner(ElementsOf(global), -1);  // expected owner of each element
    for (size_t i = pieces.size(); i-- > 0;) {
      for (uint64_t at : IndicesOf(pieces[i], global)) owner[at] = static_cast<int>(i);
    }
    std::vector<Box> missing;
    const std::vector<BoxPart> parts = Cover(wanted, pieces, missing);
    std::vector<int> got(owner.size(), -2);
    for (const BoxPart& part : parts) {
      ASSERT_FALSE(part.box.empty());
      for (uint64_t at : IndicesOf(part.box, global)) {
        ASSERT_EQ(got[at], -2) << "assigned twice";
        got[at] = static_cast<int>(part.from);
      }
    }
    for (const Box& box : missing) {
      ASSERT_FALSE(box.empty());
      for (uint64_t at : IndicesOf(box, global)) {
        ASSERT_EQ(got[at], -2);
        got[at] = -1;
        ++missed;
      }
    }
    for (uint64_t at : IndicesOf(wanted, global)) {
      ASSERT_EQ(got[at], owner[at]) << ToString(wanted) << " round " << round;
      got[at] = -2;
    }
    for (int left : got) ASSERT_EQ(left, -2) << "assigned but not requested";
  }
  EXPECT_GT(missed, 1000U);
}

TEST(OverlapTest, RunsCopyTheBoxFromAnyStart) {
  Random random(11);
  for (int round = 0; round < 3000; ++round) {
    const std::vector<uint64_t> global = RandomShape(random);
    const Box source = RandomBox(random, global, false);
    const Box target = RandomBox(random, global, false);
    const std::optional<Box> box = Intersect(source, target);
    if (!box) continue;
    const uint32_t element = 1U << random.Below(4);
    const BoxCopy copy(source, target, *box, element);
    const auto sources = IndicesOf(source, global);
    const auto targets = IndicesOf(target, global);
    std::vector<uint64_t> wanted(targets.size() * element, ~uint64_t{0});  // by target byte
    const auto inside = IndicesOf(*box, global);
    for (size_t t = 0; t < targets.size(); ++t) {
      if (std::find(inside.begin(), inside.end(), targets[t]) == inside.end()) continue;
      const auto s = std::find(sources.begin(), sources.end(), targets[t]) - sources.begin();
      for (uint32_t b = 0; b < element; ++b) {
        wanted[t * element + b] = static_cast<uint64_t>(s) * element + b;
      }
    }
    // From the start, or from any byte: then only the bytes from there on.
    const uint64_t begin = random.OneIn(2) ? 0 : random.Below(sources.size() * element + 2);
    std::vector<uint64_t> got(wanted.size(), ~uint64_t{0});
    uint64_t at = begin;
    uint64_t last = 0;
    while (const auto run = copy.RunFrom(at)) {
      ASSERT_GE(run->source, at);
      ASSERT_GT(run->bytes, 0U);
      for (uint64_t i = 0; i < run->bytes; ++i) got[run->target + i] = run->source + i;
      at = last = run->source + run->bytes;
    }
    if (last != 0) {
      EXPECT_EQ(last, copy.source_end());
    }
    for (uint64_t& byte : wanted) {
      if (byte != ~uint64_t{0} && byte < begin) byte = ~uint64_t{0};
    }
    ASSERT_EQ(got, wanted) << ToString(source) << " to " << ToString(target) << " from " << begin;
  }
}

TEST(OverlapTest, RowsThatAreCompleteInBothAreOneRun) {
  const Box rows{{4, 0, 0}, {8, 16, 32}};
  const Box all{{0, 0, 0}, {64, 16, 32}};
  const BoxCopy copy(rows, all, rows, 4);
  const auto run = copy.RunFrom(0);
  ASSERT_TRUE(run.has_value());
  EXPECT_EQ(run->source, 0U);
  EXPECT_EQ(run->target, 4U * 16 * 32 * 4);
  EXPECT_EQ(run->bytes, 8U * 16 * 32 * 4);
  EXPECT_FALSE(copy.RunFrom(run->bytes).has_value());
}

TEST(OverlapTest, OffsetsOfLargeTensorsDoNotOverflow) {
  // 2^40 rows of 2^20 bytes; the last column of the last rows.
  const uint64_t rows = 1ULL << 40;
  const Box all{{0, 0}, {rows, 1 << 20}};
  const Box column{{0, (1 << 20) - 1}, {rows, 1}};
  const BoxCopy copy(all, column, column, 1);
  const auto run = copy.RunFrom(((rows - 1) << 20) + 1);
  ASSERT_TRUE(run.has_value());
  EXPECT_EQ(run->source, (rows << 20) - 1);
  EXPECT_EQ(run->target, rows - 1);
  EXPECT_EQ(run->bytes, 1U);
  EXPECT_EQ(copy.source_end(), rows << 20);
}

TEST(OverlapTest, AScalarIsOneElement) {
  const Box scalar;
  EXPECT_FALSE(scalar.empty());
  std::vector<Box> missing;
  const Box pieces[] = {scalar};
  EXPECT_EQ(Cover(scalar, pieces, missing).size(), 1U);
  EXPECT_TRUE(missing.empty());
  Cover(scalar, {}, missing);
  EXPECT_EQ(missing.size(), 1U);
  const auto run = BoxCopy(scalar, scalar, scalar, 8).RunFrom(3);
  ASSERT_TRUE(run.has_value());
  EXPECT_EQ(run->bytes, 5U);
  EXPECT_EQ(ToString(scalar), "[]");
  EXPECT_EQ(ToString(Box{{2, 0}, {3, 4}}), "[2:5, 0:4]");
}

}  // namespace
}  // namespace holdfast
