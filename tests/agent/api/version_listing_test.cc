#include "agent/api/version_listing.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <string>

#include "base/random.h"

namespace holdfast::agent {
namespace {

std::span<const std::byte> BytesOf(const std::string& text) {
  return std::as_bytes(std::span(text));
}

class VersionListingTest : public ::testing::Test {
 protected:
  VersionListingTest() {
    shards_.push_back({0, true, 1000, BytesOf(header_), BytesOf(extras_)});
    shards_.push_back({1, false, 12, BytesOf(short_), {}});
    shards_.push_back({2, false, 8, {}, {}});
    listing_.resize(ListingBytes(shards_));
    WriteListing(shards_, listing_);
  }
  const std::string header_ = std::string(101, 'h');
  const std::string extras_ = "state";
  const std::string short_ = "twelve bytes";
  std::vector<ListedShard> shards_;
  std::vector<std::byte> listing_;
};

TEST_F(VersionListingTest, ParsesWhatWriteListingWrote) {
  const auto parsed = ParseListing(listing_);
  ASSERT_TRUE(parsed.has_value()) << parsed.error().ToString();
  ASSERT_EQ(parsed->size(), shards_.size());
  for (size_t i = 0; i < shards_.size(); ++i) {
    const ListedShard& got = (*parsed)[i];
    EXPECT_EQ(got.rank, shards_[i].rank);
    EXPECT_EQ(got.near, shards_[i].near);
    EXPECT_EQ(got.image_bytes, shards_[i].image_bytes);
    EXPECT_TRUE(std::ranges::equal(got.header, shards_[i].header));
    EXPECT_TRUE(std::ranges::equal(got.extras, shards_[i].extras));
  }
  EXPECT_EQ(std::memcmp(listing_.data(), "HFVIEW01", 8), 0) << "as in the format page";
  EXPECT_EQ(listing_.size(), 16U + 3 * 32 + 112 + 16);
}

TEST_F(VersionListingTest, NoOtherLengthIsAccepted) {
  for (size_t bytes = 0; bytes < listing_.size(); ++bytes) {
    const auto parsed = ParseListing(std::span(listing_).first(bytes));
    ASSERT_FALSE(parsed.has_value()) << bytes;
    EXPECT_EQ(parsed.error().code(), ErrorCode::kDataLoss);
  }
  listing_.push_back({});
  EXPECT_FALSE(ParseListing(listing_).has_value());
}

/// A listing has exactly one encoding.
TEST_F(VersionListingTest, PaddingIsZero) {
  std::byte& padding = listing_[listing_.size() - 32 - 1];  // before the head of the last shard
  ASSERT_EQ(padding, std::byte{0});
  padding = std::byte{1};
  EXPECT_FALSE(ParseListing(listing_).has_value());
}

/// Whatever the numbers are, the returned spans are within the listing.
TEST_F(VersionListingTest, HostileNumbersYieldSpansWithinTheListing) {
  Random random(5);
  int accepted = 0;
  for (int round = 0; round < 100'000; ++round) {
    std::vector<std::byte> bytes = listing_;
    for (uint64_t n = 1 + random.Below(3); n > 0; --n) {
      const uint64_t extreme[] = {0, 1, ~uint64_t{0}, 1ULL << 63, bytes.size(), random.Next()};
      const size_t at = random.Below(bytes.size() / 8) * 8;
      std::memcpy(bytes.data() + at, &extreme[random.Below(6)], 8);
    }
    const auto parsed = ParseListing(bytes);
    if (!parsed) continue;
    ++accepted;
    for (const ListedShard& shard : *parsed) {
      for (const auto& part : {shard.header, shard.extras}) {
        if (part.empty()) continue;
        ASSERT_GE(part.data(), bytes.data());
        ASSERT_LE(part.data() + part.size(), bytes.data() + bytes.size());
      }
      ASSERT_LE(shard.header.size() + shard.extras.size(), shard.image_bytes);
    }
  }
  EXPECT_GT(accepted, 1000);
}

}  // namespace
}  // namespace holdfast::agent
