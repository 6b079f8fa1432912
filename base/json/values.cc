#include "base/json/values.h"

#include <fmt/format.h>

#include "base/clock.h"
#include "base/tiers.h"

namespace holdfast {
Json VersionJson(const std::optional<VersionId>& version) {
  if (!version) return nullptr;
  return ToString(*version);
}

Json TimeJson(int64_t wall_nanos) {
  if (wall_nanos == 0) return nullptr;
  return FormatUtc(wall_nanos);
}

Json TiersJson(uint32_t mask) {
  Json tiers = Json::array();
  for (const TierTraits& traits : kTierTable) {
    if ((mask & TierBit(traits.tier)) != 0) tiers.push_back(traits.name);
  }
  return tiers;
}

Json TierJson(uint32_t tier) {
  if (tier == 0) return nullptr;
  return ToString(static_cast<Tier>(tier));
}

Json NumberOrNull(std::optional<int64_t> value) { return value ? Json(*value) : Json(nullptr); }

std::string FormatAge(int64_t nanos) {
  int64_t seconds = nanos / 1'000'000'000;
  if (seconds <= 0) return "now";
  if (seconds < 60) return fmt::format("{}s", seconds);
  if (seconds < 3600) return fmt::format("{}m{:02}s", seconds / 60, seconds % 60);
  if (seconds < 86400) return fmt::format("{}h{:02}m", seconds / 3600, seconds / 60 % 60);
  return fmt::format("{}d{:02}h", seconds / 86400, seconds / 3600 % 24);
}

std::string Count(uint64_t count, std::string_view noun) {
  return fmt::format("{} {}{}", count, noun, count == 1 ? "" : "s");
}

}  // namespace holdfast
