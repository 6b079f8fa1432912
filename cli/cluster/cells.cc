#include "cli/cluster/cells.h"

#include <algorithm>

#include "base/tiers.h"

namespace holdfast::cli {

Cell StateCell(const coordinator::NodeStatus& node) {
  return node.alive() ? Cell{"up", Tone::kGood} : Cell{"DOWN", Tone::kBad};
}

Tone ToneOf(view::HealthLevel level) {
  switch (level) {
    case view::HealthLevel::kOk:
      return Tone::kGood;
    case view::HealthLevel::kWarn:
      return Tone::kWarn;
    case view::HealthLevel::kError:
      return Tone::kBad;
  }
  return Tone::kBad;
}

std::string TierTitle(Tier tier) {
  std::string title(TraitsOf(tier).name);
  std::transform(title.begin(), title.end(), title.begin(),
                 [](char c) { return static_cast<char>(c - 'a' + 'A'); });
  return title;
}

}  // namespace holdfast::cli
