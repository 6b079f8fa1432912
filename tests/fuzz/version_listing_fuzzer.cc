#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "agent/api/version_listing.h"
#include "tests/fuzz/require.h"

/// Parses a version listing of an agent, as a client does.
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
  // Each listing has exactly one encoding, so an accepted one contains nothing else.
  FUZZ_REQUIRE(agent::ListingBytes(*shards) == size);
  std::vector<std::byte> again(size);
  agent::WriteListing(*shards, again);
  FUZZ_REQUIRE(std::ranges::equal(listing, again));
  return 0;
}
