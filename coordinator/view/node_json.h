#pragma once

#include <cstdint>
#include <string>

#include "base/json/values.h"
#include "coordinator/api/coordinator.pb.h"

// The JSON form of nodes, the same in every command and on the page.

namespace holdfast::view {

/// Returns the score of a repeat offender: the number of jobs with an incident in the last week
/// that names the node.
uint32_t BlamedBy(const coordinator::GetRunsReply& runs, const std::string& node);
/// The JSON form of one node: integer numbers of bytes, null for unknown values. New fields may be
/// added; existing fields are never renamed.
Json NodeJson(const coordinator::NodeStatus& node, uint32_t blamed_by);
/// The JSON form of all nodes.
Json NodesJson(const coordinator::GetStatusReply& status, const coordinator::GetRunsReply& runs);

}  // namespace holdfast::view
