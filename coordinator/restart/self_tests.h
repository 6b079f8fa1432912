#pragma once

#include <string>

#include "coordinator/restart/run_table.h"

// Self-tests of nodes that leave quarantine.
//
// An operator releases a node. Its agent then tests the hardware, as soon as it is attached, and
// the node gets workers again when no part of it has failed. A part that cannot be tested does
// not keep the node in quarantine. If a part has failed, the node stays in quarantine, or is put
// there if only a GPU error had made it suspect. The result is an incident with the outcome of each
// part as evidence. Agents of older releases test nothing: their nodes are released at once.
//
// A release that waits for the test is not stored: after a start of the coordinator, the node is
// still in quarantine.

namespace holdfast::coord {

/// Starts the self-test that precedes the release of the node. A test that runs is repeated.
void BeginSelfTest(RunContext& context, const std::string& node);

/// Releases the node or keeps it in quarantine. Ignores results of other tests than the last one.
void RecordSelfTest(RunContext& context, const SelfTested& event);

/// Ends the quarantine of the node, and forgets its strikes and its GPU errors.
void ReleaseNode(RunContext& context, const std::string& node);

}  // namespace holdfast::coord
