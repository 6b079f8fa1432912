#include "cli/cluster/cells.h"

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

}  // namespace holdfast::cli
