#pragma once

#include <string>

#include "base/ids.h"
#include "cli/core/table.h"
#include "coordinator/api/coordinator.pb.h"
#include "coordinator/view/health.h"

// Table cells, the same in every command.

namespace holdfast::cli {

/// "up" or "DOWN"
Cell StateCell(const coordinator::NodeStatus& node);
Tone ToneOf(view::HealthLevel level);

/// Returns the title of a tier's column: "MEMORY".
std::string TierTitle(Tier tier);

}  // namespace holdfast::cli
