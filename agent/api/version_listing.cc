#include "agent/api/version_listing.h"

#include <algorithm>
#include <cstring>
#include <type_traits>

namespace holdfast::agent {
namespace {
constexpr uint64_t kListingMagic = 0x3130574549564648;  // "HFVIEW01"
constexpr uint32_t kNear = 1;

struct ListingHead {
  uint64_t magic = kListingMagic;
  uint64_t shards = 0;
};
struct ShardHead {
  uint32_t rank = 0;
  uint32_t flags = 0;
  uint64_t image_bytes = 0;
  uint64_t header_bytes = 0;
  uint64_t extra_bytes = 0;
};
static_assert(std::has_unique_object_representations_v<ListingHead> && sizeof(ListingHead) == 16);
static_assert(std::has_unique_object_representations_v<ShardHead> && sizeof(ShardHead) == 32);

uint64_t Padded(uint64_t bytes) { return (bytes + 7) / 8 * 8; }

Status Bad(const char* what) {
  return DataLossError(std::string("the version listing is damaged: ") + what);
}
}  // namespace

uint64_t ListingBytes(std::span<const ListedShard> shards) {
  uint64_t bytes = sizeof(ListingHead);
  for (const ListedShard& shard : shards) {
    bytes += sizeof(ShardHead) + Padded(shard.header.size() + shard.extras.size());
  }
  return bytes;
}

void WriteListing(std::span<const ListedShard> shards, std::span<std::byte> into) {
  std::byte* at = into.data();
  const auto put = [&at](const void* from, size_t bytes) {
    if (bytes > 0) std::memcpy(at, from, bytes);
    at += bytes;
  };
  const ListingHead head{.shards = shards.size()};
  put(&head, sizeof(head));
  for (const ListedShard& shard : shards) {
    const ShardHead of{shard.rank, shard.near ? kNear : 0, shard.image_bytes, shard.header.size(),
                       shard.extras.size()};
    put(&of, sizeof(of));
    put(shard.header.data(), shard.header.size());
    put(shard.extras.data(), shard.extras.size());
    const uint64_t bytes = shard.header.size() + shard.extras.size();
    const uint64_t zero = 0;
    put(&zero, Padded(bytes) - bytes);
  }
}

Result<std::vector<ListedShard>> ParseListing(std::span<const std::byte> listing) {
  ListingHead head;
  if (listing.size() < sizeof(head)) return Fail(Bad("it is shorter than its head"));
  std::memcpy(&head, listing.data(), sizeof(head));
  if (head.magic != kListingMagic) return Fail(Bad("it has another format"));
  std::span<const std::byte> rest = listing.subspan(sizeof(head));
  if (head.shards > rest.size() / sizeof(ShardHead)) {
    return Fail(Bad("it is too short for its number of shards"));
  }
  std::vector<ListedShard> shards;
  shards.reserve(head.shards);
  for (uint64_t i = 0; i < head.shards; ++i) {
    ShardHead of;
    if (rest.size() < sizeof(of)) return Fail(Bad("it ends within a shard"));
    std::memcpy(&of, rest.data(), sizeof(of));
    rest = rest.subspan(sizeof(of));
    // The sum cannot overflow, because each part is no longer than the rest.
    const bool fits = of.header_bytes <= rest.size() && of.extra_bytes <= rest.size() &&
                      Padded(of.header_bytes + of.extra_bytes) <= rest.size();
    if (!fits) return Fail(Bad("it ends within a shard"));
    const bool sound = of.flags <= kNear && of.header_bytes <= of.image_bytes &&
                       of.extra_bytes <= of.image_bytes - of.header_bytes;
    if (!sound) return Fail(Bad("a shard has unknown flags or is longer than its image"));
    const uint64_t bytes = of.header_bytes + of.extra_bytes;
    const auto padding = rest.subspan(bytes, Padded(bytes) - bytes);
    if (std::ranges::any_of(padding, [](std::byte byte) { return byte != std::byte{0}; })) {
      return Fail(Bad("its padding is not zero"));
    }
    shards.push_back({of.rank, of.flags == kNear, of.image_bytes, rest.first(of.header_bytes),
                      rest.subspan(of.header_bytes, of.extra_bytes)});
    rest = rest.subspan(Padded(bytes));
  }
  if (!rest.empty()) return Fail(Bad("it continues after its last shard"));
  return shards;
}

}  // namespace holdfast::agent
