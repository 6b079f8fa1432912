#include "cli/core/version_json.h"

#include "base/clock.h"
#include "base/tiers.h"
#include "cli/core/text.h"

namespace holdfast::cli {

std::string VersionText(const std::optional<VersionId>& version) {
  return version ? ToString(*version) : "-";
}

std::string TiersText(uint32_t mask) {
  std::vector<std::string> names;
  for (const TierTraits& traits : kTierTable) {
    if ((mask & TierBit(traits.tier)) != 0) names.emplace_back(traits.name);
  }
  return names.empty() ? "-" : Join(names, ",");
}

std::string AgeText(int64_t wall_nanos, int64_t now_wall_nanos) {
  return wall_nanos == 0 ? "-" : FormatAge(now_wall_nanos - wall_nanos);
}

}  // namespace holdfast::cli
