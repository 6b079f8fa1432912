#include "storage/erasure/table_cache.h"

#include <gtest/gtest.h>

namespace holdfast {
namespace {

/// Returns a pattern of the 2+2 code by its number.
CodingPattern Pattern(uint32_t number) {
  return {.sources = 0b11, .zeros = 0, .outputs = number << 2};
}

TableCache::Tables Tables() {
  return std::make_shared<const CodingTables>(*CodingTables::Make(2, 2, Pattern(1)));
}

TEST(TableCacheTest, FindsStoredTables) {
  TableCache cache(4);
  EXPECT_EQ(cache.Find(Pattern(1)), nullptr);
  TableCache::Tables one = Tables();
  TableCache::Tables two = Tables();
  cache.Keep(Pattern(1), one);
  cache.Keep(Pattern(2), two);
  EXPECT_EQ(cache.Find(Pattern(1)), one);
  EXPECT_EQ(cache.Find(Pattern(2)), two);
}

TEST(TableCacheTest, EveryFieldOfAPatternCounts) {
  TableCache cache(8);
  const CodingPattern pattern{.sources = 0b011, .zeros = 0b100, .outputs = 0b1000};
  cache.Keep(pattern, Tables());
  for (uint32_t CodingPattern::*field :
       {&CodingPattern::sources, &CodingPattern::zeros, &CodingPattern::outputs}) {
    CodingPattern other = pattern;
    other.*field ^= 0b10000;
    EXPECT_EQ(cache.Find(other), nullptr);
  }
  EXPECT_NE(cache.Find(pattern), nullptr);
}

TEST(TableCacheTest, EvictsTheLeastRecentlyUsedPattern) {
  TableCache cache(3);
  for (uint32_t i = 0; i < 3; ++i) cache.Keep(Pattern(i), Tables());
  ASSERT_NE(cache.Find(Pattern(0)), nullptr);
  TableCache::Tables in_use = cache.Find(Pattern(0));
  ASSERT_NE(cache.Find(Pattern(2)), nullptr);
  cache.Keep(Pattern(3), Tables());
  EXPECT_EQ(cache.size(), 3U);
  EXPECT_EQ(cache.Find(Pattern(1)), nullptr);
  EXPECT_EQ(cache.Find(Pattern(0)), in_use);
  EXPECT_NE(cache.Find(Pattern(2)), nullptr);
  EXPECT_NE(cache.Find(Pattern(3)), nullptr);
}

TEST(TableCacheTest, NeverGrowsBeyondItsCapacity) {
  TableCache cache(5);
  for (uint32_t i = 0; i < 50; ++i) {
    cache.Keep(Pattern(i % 20), Tables());
    cache.Keep(Pattern(i % 20), Tables());  // again, as after two concurrent misses
    EXPECT_EQ(cache.size(), std::min<size_t>(i + 1, 5));
  }
}

}  // namespace
}  // namespace holdfast
