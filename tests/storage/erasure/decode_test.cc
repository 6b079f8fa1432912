#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "storage/erasure/code.h"
#include "tests/storage/erasure/erasure_test_util.h"

namespace holdfast {
namespace {

using ::testing::HasSubstr;

/// A code and one complete stripe of it, with the oracle's parity.
struct Stripe {
  Stripe(Random& random, uint32_t k, uint32_t m, size_t length, uint32_t absent = 0)
      : bytes(length), code(std::move(*ErasureCode::Make(k, m))), segments(k) {
    for (uint32_t i = 0; i < k; ++i) {
      if ((absent >> i & 1) == 0) segments[i] = RandomSegment(random, bytes);
    }
    std::vector<Bytes> parity = SlowEncode(segments, m, bytes);
    segments.insert(segments.end(), parity.begin(), parity.end());
  }

  uint32_t size() const { return static_cast<uint32_t>(segments.size()); }

  /// Returns segment `index`, with zeros in place of an absent one.
  Bytes Whole(uint32_t index) const {
    return segments[index].empty() ? Bytes(bytes) : segments[index];
  }

  /// Decodes `wanted` from `present`, both in random order. Returns one result per bit of `wanted`,
  /// ascending.
  Result<std::vector<Bytes>> Decode(Random& random, uint32_t present, uint32_t wanted) const {
    std::vector<PresentSegment> from;
    for (uint32_t i : Members(present)) from.push_back({i, segments[i]});
    std::vector<Bytes> results(static_cast<size_t>(std::popcount(wanted)),
                               Bytes(bytes, std::byte{0xa5}));
    std::vector<WantedSegment> into;
    for (uint32_t i : Members(wanted)) into.push_back({i, results[into.size()]});
    Shuffle(random, from);
    Shuffle(random, into);
    HOLDFAST_RETURN_IF_ERROR(code->Decode(from, into));
    return results;
  }

  void ExpectDecodes(Random& random, uint32_t present, uint32_t wanted) const {
    auto results = Decode(random, present, wanted);
    ASSERT_TRUE(results) << results.error().ToString();
    size_t next = 0;
    for (uint32_t i : Members(wanted)) {
      ASSERT_EQ((*results)[next++], Whole(i))
          << "segment " << i << " of " << code->data_count() << "+" << code->parity_count()
          << " from set " << present;
    }
  }

  size_t bytes;
  std::unique_ptr<ErasureCode> code;
  std::vector<Bytes> segments;  // empty where absent
};

TEST(DecodeTest, EveryErasurePatternOfSmallCodes) {
  Random random(1);
  for (auto [k, m] : AllShapes()) {
    if (k + m > 9) continue;
    Stripe stripe(random, k, m, 70);
    const uint32_t all = (1U << (k + m)) - 1;
    for (uint32_t lost = 1; lost <= all; ++lost) {
      if (static_cast<uint32_t>(std::popcount(lost)) > m) continue;
      ASSERT_NO_FATAL_FAILURE(stripe.ExpectDecodes(random, all & ~lost, lost));
      // Only k of the survivors, and only one of the lost segments.
      std::vector<uint32_t> survivors = Members(all & ~lost);
      Shuffle(random, survivors);
      uint32_t some = 0;
      for (uint32_t i = 0; i < k; ++i) some |= 1U << survivors[i];
      const std::vector<uint32_t> missing = Members(lost);
      const uint32_t one = 1U << missing[random.Below(missing.size())];
      ASSERT_NO_FATAL_FAILURE(stripe.ExpectDecodes(random, some, one));
    }
  }
}

TEST(DecodeTest, RandomErasuresOfEveryLargeCode) {
  Random random(2);
  for (auto [k, m] : AllShapes()) {
    if (k + m <= 9) continue;
    Stripe stripe(random, k, m, 50 + random.Below(200));
    const uint32_t all = ~0U >> (32 - (k + m));
    for (int round = 0; round < 20; ++round) {
      const uint32_t lost = RandomSubset(random, k + m, 1 + static_cast<uint32_t>(random.Below(m)));
      ASSERT_NO_FATAL_FAILURE(stripe.ExpectDecodes(random, all & ~lost, lost));
    }
  }
}

TEST(DecodeTest, AbsentDataCountAsSurvivors) {
  Random random(3);
  for (auto [k, m] : AllShapes()) {
    const uint32_t absent = RandomSubset(random, k, static_cast<uint32_t>(random.Below(k + 1)));
    Stripe stripe(random, k, m, 90, absent);
    const uint32_t all = ~0U >> (32 - (k + m));
    for (int round = 0; round < 10; ++round) {
      // Absent segments may be lost, too: they decode to zeros.
      const uint32_t lost = RandomSubset(random, k + m, m);
      ASSERT_NO_FATAL_FAILURE(stripe.ExpectDecodes(random, all & ~lost, lost));
    }
  }
}

TEST(DecodeTest, AWrongSurvivorMakesAWrongResult) {
  Random random(4);
  for (auto [k, m] : AllShapes()) {
    Stripe stripe(random, k, m, 64);
    const uint32_t all = ~0U >> (32 - (k + m));
    const uint32_t lost = RandomSubset(random, k, std::min(k, m));
    // With exactly k survivors, Decode reads every one of them.
    std::vector<uint32_t> survivors = Members(all & ~lost);
    survivors.resize(k);
    uint32_t present = 0;
    for (uint32_t i : survivors) present |= 1U << i;
    auto right = stripe.Decode(random, present, lost);
    ASSERT_TRUE(right);
    const size_t place = random.Below(64);
    stripe.segments[survivors[random.Below(k)]][place] ^= std::byte{0x10};
    auto wrong = stripe.Decode(random, present, lost);
    ASSERT_TRUE(wrong);
    bool differs = false;
    for (size_t i = 0; i < right->size(); ++i) {
      for (size_t at = 0; at < 64; ++at) {
        if ((*right)[i][at] == (*wrong)[i][at]) continue;
        differs = true;
        EXPECT_EQ(at, place);
      }
    }
    EXPECT_TRUE(differs) << k << "+" << m;
  }
}

class DecodeErrorTest : public ::testing::Test {
 protected:
  Status Decode(const std::vector<uint32_t>& present, const std::vector<uint32_t>& wanted) {
    std::vector<PresentSegment> from;
    from.reserve(present.size());
    for (uint32_t i : present) from.push_back({i, bytes_});
    std::vector<WantedSegment> into;
    into.reserve(wanted.size());
    for (uint32_t i : wanted) into.push_back({i, output_});
    return code_->Decode(from, into);
  }

  std::unique_ptr<ErasureCode> code_ = std::move(*ErasureCode::Make(4, 2));
  const Bytes bytes_ = Bytes(32, std::byte{1});
  Bytes output_ = Bytes(32, std::byte{9});
};

TEST_F(DecodeErrorTest, TooFewSurvivors) {
  Status status = Decode({0, 2, 5}, {1});
  EXPECT_EQ(status.code(), ErrorCode::kDataLoss);
  EXPECT_THAT(status.message(), HasSubstr("3 of the 4+2 segments are left, 4 are needed"));
  EXPECT_EQ(Decode({}, {1}).code(), ErrorCode::kDataLoss);
  EXPECT_EQ(output_, Bytes(32, std::byte{9}));
}

TEST_F(DecodeErrorTest, BadIndices) {
  for (auto [present, wanted] :
       std::vector<std::pair<std::vector<uint32_t>, std::vector<uint32_t>>>{
           {{0, 1, 2, 6}, {3}},
           {{0, 1, 2, 4}, {6}},
           {{0, 1, 2, 32}, {3}},
           {{0, 1, 2, 4}, {~0U}},
           {{0, 1, 2, 2}, {3}},
           {{0, 1, 2, 4}, {3, 3}},
           {{0, 1, 2, 3}, {3}},
       }) {
    EXPECT_EQ(Decode(present, wanted).code(), ErrorCode::kInvalidArgument);
  }
  EXPECT_THAT(Decode({0, 1, 2, 6}, {3}).message(), HasSubstr("has no segment 6"));
  EXPECT_THAT(Decode({0, 1, 2, 3}, {3}).message(), HasSubstr("segment 3 occurs twice"));
  EXPECT_EQ(output_, Bytes(32, std::byte{9}));
}

TEST_F(DecodeErrorTest, Lengths) {
  const Bytes shorter(31);
  std::vector<PresentSegment> from = {{0, bytes_}, {1, shorter}, {2, bytes_}, {4, bytes_}};
  std::vector<WantedSegment> into = {{3, output_}};
  Status status = code_->Decode(from, into);
  EXPECT_EQ(status.code(), ErrorCode::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("present segment 1 has 31 bytes, the others have 32"));
  // Data may be absent, but parity may not: an empty parity segment does not stand for zeros.
  from[1].bytes = {};
  EXPECT_TRUE(code_->Decode(from, into).ok());
  from[3].bytes = {};
  EXPECT_EQ(code_->Decode(from, into).code(), ErrorCode::kInvalidArgument);
  from[3].bytes = bytes_;
  Bytes longer(33);
  into.push_back({5, longer});
  EXPECT_EQ(code_->Decode(from, into).code(), ErrorCode::kInvalidArgument);
}

TEST_F(DecodeErrorTest, DecodingNothingSucceeds) { EXPECT_TRUE(Decode({}, {}).ok()); }

// Several threads use more patterns than the cache can store. The test is for ThreadSanitizer, and
// checks that no thread uses another pattern's tables or freed ones.
TEST(ThreadsTest, ShareOneCode) {
  Random random(5);
  const Stripe stripe(random, 10, 4, 100);
  const uint32_t all = (1U << 14) - 1;
  std::vector<std::thread> threads;
  for (uint64_t seed = 0; seed < 4; ++seed) {
    threads.emplace_back([&, seed] {
      // Pairs of threads use the same patterns.
      Random mine(seed / 2);
      for (int round = 0; round < 400; ++round) {
        const uint32_t lost = RandomSubset(mine, 14, 4);
        ASSERT_NO_FATAL_FAILURE(stripe.ExpectDecodes(mine, all & ~lost, lost));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace holdfast
