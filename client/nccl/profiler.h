#pragma once

#include "client/nccl/profiler_abi.h"

// Turns NCCL's events into operations in flight, their completion, and sums over peers while the
// agent requests them. Independent of the version of NCCL's interface.
//
// An operation is complete when NCCL has stopped the host's part, all its kernel channels and all
// its proxy operations, in any order and from any thread: each of them holds a reference. No
// function waits, allocates or fails. An event that finds no room is dropped with its children.

namespace holdfast::nccl {

/// Returns a context for the communicator; null when there is nothing to record. `mask` is NCCL's
/// activation mask, which selects the events that NCCL reports.
void* OpenCommunicator(uint64_t id, int ranks, int rank, int* mask, LogFunction log);
/// Ends the operations that are still in flight.
void CloseCommunicator(void* context);

// These return handles of events; null for an event that is not recorded. Any of the arguments may
// be null or stale.
void* StartCollective(void* context, const CollectiveFields& fields);
void* StartPointToPoint(void* context, const PointToPointFields& fields);
void* StartKernelChannel(void* parent, const KernelChannelFields& fields);
void* StartProxyOperation(void* context, void* parent, const ProxyOperationFields& fields);
void* StartProxyStep(void* parent);

void StopEvent(void* handle);
/// `arguments` may be null.
void ChangeState(void* handle, EventState state, const StateArguments* arguments);

}  // namespace holdfast::nccl
