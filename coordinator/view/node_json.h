#pragma once

#include "base/json/values.h"
#include "coordinator/api/coordinator.pb.h"

// The JSON form of nodes, the same in every command and on the page.

namespace holdfast::view {

/// The JSON form of one node: integer numbers of bytes, null for unknown values. New fields may be
/// added; existing fields are never renamed.
Json NodeJson(const coordinator::NodeStatus& node);
/// The JSON form of all nodes.
Json NodesJson(const coordinator::GetStatusReply& status);

}  // namespace holdfast::view
