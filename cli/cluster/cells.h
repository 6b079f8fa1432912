#pragma once

#include "cli/core/table.h"
#include "coordinator/api/coordinator.pb.h"
#include "coordinator/view/health.h"

// Table cells, the same in every command.

namespace holdfast::cli {

/// "up" or "DOWN"
Cell StateCell(const coordinator::NodeStatus& node);
Tone ToneOf(view::HealthLevel level);

}  // namespace holdfast::cli
