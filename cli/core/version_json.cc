#include "cli/core/version_json.h"

#include "base/clock.h"
#include "cli/core/text.h"

namespace holdfast::cli {

namespace {
constexpr Tier kTiers[] = {Tier::kMemory, Tier::kPeer, Tier::kDisk, Tier::kRemote};
}

Json VersionJson(VersionId version) {
  if (version == VersionId{}) return nullptr;
  return ToString(version);
}

Json TimeJson(int64_t wall_nanos) {
  if (wall_nanos == 0) return nullptr;
  return FormatUtc(wall_nanos);
}

Json TiersJson(uint32_t mask) {
  Json tiers = Json::array();
  for (Tier tier : kTiers) {
    if ((mask & TierBit(tier)) != 0) tiers.push_back(ToString(tier));
  }
  return tiers;
}

Json TierJson(uint32_t tier) {
  if (tier == 0) return nullptr;
  return ToString(static_cast<Tier>(tier));
}

std::string VersionText(VersionId version) {
  return version == VersionId{} ? "-" : ToString(version);
}

std::string TiersText(uint32_t mask) {
  std::vector<std::string> names;
  for (Tier tier : kTiers) {
    if ((mask & TierBit(tier)) != 0) names.emplace_back(ToString(tier));
  }
  return names.empty() ? "-" : Join(names, ",");
}

std::string AgeText(int64_t wall_nanos, int64_t now_wall_nanos) {
  return wall_nanos == 0 ? "-" : FormatAge(now_wall_nanos - wall_nanos);
}

}  // namespace holdfast::cli
