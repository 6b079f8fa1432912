#pragma once

#include "client/cli/output.h"
#include "coordinator/api/coordinator.pb.h"

// How nodes look in tables and in JSON, the same in every command.

namespace holdfast::cli {

/// Machine form of one node: whole numbers of bytes, null for what is not known. Fields are added,
/// none is renamed.
Json NodeJson(const coordinator::NodeStatus& node);
/// Of all nodes.
Json NodesJson(const coordinator::GetStatusReply& status);

/// "up" or "DOWN"
Cell StateCell(const coordinator::NodeStatus& node);

}  // namespace holdfast::cli
