#pragma once

#include "client/nccl/profiler_abi.h"

// What NCCL's events become: operations in flight with their completion, and sums over peers while
// the agent wants them. Neither version of the interface is known here.
//
// An operation is over when NCCL has said so of the host's part, of all its kernel channels and of
// all its proxy operations, in any order and from any thread: each of them holds a reference.
// Nothing here waits, takes memory or fails; what finds no room is left out, and its children too.

namespace holdfast::nccl {

/// A context for the communicator; null when there is nothing to record. `mask` is NCCL's word of
/// events that it shall tell.
void* OpenCommunicator(uint64_t id, int ranks, int rank, int* mask, LogFunction log);
/// Operations that are still in flight end here.
void CloseCommunicator(void* context);

// Handles of events; null for what is not followed. Any of the arguments may be null or stale.
void* StartCollective(void* context, const CollectiveFields& fields);
void* StartPointToPoint(void* context, const PointToPointFields& fields);
void* StartKernelChannel(void* parent, const KernelChannelFields& fields);
void* StartProxyOperation(void* context, void* parent, const ProxyOperationFields& fields);
void* StartProxyStep(void* parent);

void StopEvent(void* handle);
/// `arguments` may be null.
void ChangeState(void* handle, EventState state, const StateArguments* arguments);

}  // namespace holdfast::nccl
