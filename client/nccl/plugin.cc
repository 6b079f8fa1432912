// libnccl-profiler-holdfast.so: the tables that NCCL finds in it. Every call returns success: an
// error in the plugin must not fail the training.

#include "client/nccl/profiler.h"
#include "client/nccl/profiler_abi.h"

namespace holdfast::nccl {
namespace {

Result Init(void** context, uint64_t communicator, int* mask, int ranks, int rank,
            LogFunction log) {
  void* opened = OpenCommunicator(communicator, ranks, rank, mask, log);
  if (context != nullptr) *context = opened;
  return kSuccess;
}

Result InitV5(void** context, uint64_t communicator, int* mask, const char* /*name*/, int /*nodes*/,
              int ranks, int rank, LogFunction log) {
  return Init(context, communicator, mask, ranks, rank, log);
}

Result InitV4(void** context, int* mask, const char* /*name*/, uint64_t communicator, int /*nodes*/,
              int ranks, int rank, LogFunction log) {
  return Init(context, communicator, mask, ranks, rank, log);
}

void* StartAny(void* context, uint64_t type, void* parent, const EventFields& fields) {
  switch (type) {
    case kCollective:
      return StartCollective(context, fields.collective);
    case kPointToPoint:
      return StartPointToPoint(context, fields.point_to_point);
    case kKernelChannel:
      return StartKernelChannel(parent, fields.kernel_channel);
    case kProxyOperation:
      return StartProxyOperation(context, parent, fields.proxy_operation);
    case kProxyStep:
      return StartProxyStep(parent);
    default:
      return nullptr;
  }
}

/// The versions differ in the width of `type`. The layout of the other fields is the same.
template <typename Event>
Result Start(void* context, void** handle, Event* event) {
  if (handle == nullptr) return kSuccess;
  *handle =
      event == nullptr ? nullptr : StartAny(context, event->type, event->parent, event->fields);
  return kSuccess;
}

Result Stop(void* handle) {
  StopEvent(handle);
  return kSuccess;
}

Result State(void* handle, EventState state, StateArguments* arguments) {
  ChangeState(handle, state, arguments);
  return kSuccess;
}

Result Finalize(void* context) {
  CloseCommunicator(context);
  return kSuccess;
}

}  // namespace
}  // namespace holdfast::nccl

#define HOLDFAST_EXPORTED __attribute__((visibility("default")))

extern "C" {
extern HOLDFAST_EXPORTED const holdfast::nccl::ProfilerV5 ncclProfiler_v5;
extern HOLDFAST_EXPORTED const holdfast::nccl::ProfilerV4 ncclProfiler_v4;

const holdfast::nccl::ProfilerV5 ncclProfiler_v5 = {
    "Holdfast",           holdfast::nccl::InitV5, holdfast::nccl::Start<holdfast::nccl::EventV5>,
    holdfast::nccl::Stop, holdfast::nccl::State,  holdfast::nccl::Finalize};
const holdfast::nccl::ProfilerV4 ncclProfiler_v4 = {
    "Holdfast",           holdfast::nccl::InitV4, holdfast::nccl::Start<holdfast::nccl::EventV4>,
    holdfast::nccl::Stop, holdfast::nccl::State,  holdfast::nccl::Finalize};
}
