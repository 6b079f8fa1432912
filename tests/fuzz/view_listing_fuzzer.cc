#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "agent/api/view_listing.h"
#include "tests/fuzz/require.h"

/// What an agent shows of a version, as a client reads it.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace holdfast;
  const auto listing = std::as_bytes(std::span(data, size));
  const auto shards = agent::ParseListing(listing);
  if (!shards) {
    FUZZ_REQUIRE(!shards.error().message().empty());
    FUZZ_REQUIRE(shards.error().code() == ErrorCode::kDataLoss);
    return 0;
  }
  for (const agent::ListedShard& shard : *shards) {
    FUZZ_REQUIRE(shard.header.size() <= shard.image_bytes);
    FUZZ_REQUIRE(shard.extras.size() <= shard.image_bytes - shard.header.size());
  }
  // One listing has one spelling: nothing hides in what is accepted.
  FUZZ_REQUIRE(agent::ListingBytes(*shards) == size);
  std::vector<std::byte> again(size);
  agent::WriteListing(*shards, again);
  FUZZ_REQUIRE(std::ranges::equal(listing, again));
  return 0;
}
