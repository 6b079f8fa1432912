#pragma once

#include "cli/core/output.h"
#include "coordinator/api/coordinator.pb.h"

// The table and JSON forms of nodes, the same in every command.

namespace holdfast::cli {

/// The JSON form of one node: integer numbers of bytes, null for unknown values. New fields may be
/// added; existing fields are never renamed.
Json NodeJson(const coordinator::NodeStatus& node);
/// The JSON form of all nodes.
Json NodesJson(const coordinator::GetStatusReply& status);

/// "up" or "DOWN"
Cell StateCell(const coordinator::NodeStatus& node);

}  // namespace holdfast::cli
