#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>

// The parts of NCCL's profiler plugin interface that this plugin needs, versions 5 (NCCL 2.28) and
// 4 (2.27). Declared from the published layout, so that neither NCCL nor its headers are needed to
// build. The names of fields are ours; their order and types are NCCL's.

namespace holdfast::nccl {

using Result = int;
inline constexpr Result kSuccess = 0;

/// Bits of the activation mask, and the types of events.
enum EventType : uint64_t {
  kGroup = 1 << 0,
  kCollective = 1 << 1,
  kPointToPoint = 1 << 2,
  kProxyOperation = 1 << 3,
  kProxyStep = 1 << 4,
  kKernelChannel = 1 << 6,
};

enum EventState : int {
  kSendGpuWait = 8,
  kSendWait = 9,
  kRecvWait = 10,
  kRecvFlushWait = 11,
  kRecvGpuWait = 12,
  kSendPeerWait = 20,
  kKernelChannelStop = 22,
};

enum LogLevel : int { kLogWarn = 2, kLogInfo = 3 };
inline constexpr unsigned long kLogAll = ~0UL;
using LogFunction = void (*)(LogLevel level, unsigned long flags, const char* file, int line,
                             const char* format, ...);

struct CollectiveFields {
  uint64_t sequence;
  const char* function;
  const void* send_buffer;
  void* receive_buffer;
  size_t count;
  int root;
  const char* datatype;
  uint8_t channels;
  uint8_t warps;
  const char* algorithm;
  const char* protocol;
};

struct PointToPointFields {
  const char* function;
  void* buffer;
  const char* datatype;
  size_t count;
  int peer;
  uint8_t channels;
};

struct ProxyOperationFields {
  pid_t pid;  // of the process whose operation it serves
  uint8_t channel;
  int peer;
  int steps;
  int chunk_bytes;
  int is_send;
};

struct ProxyStepFields {
  int step;
};

struct KernelChannelFields {
  uint8_t channel;
  uint64_t timer_ns;  // the GPU's global timer
};

union EventFields {
  CollectiveFields collective;
  PointToPointFields point_to_point;
  ProxyOperationFields proxy_operation;
  ProxyStepFields proxy_step;
  KernelChannelFields kernel_channel;
};

/// In version 4 the fields end here.
struct EventV4 {
  uint8_t type;
  void* parent;
  int rank;
  EventFields fields;
};
/// In version 5 a collective has one more field, which the plugin does not read.
struct EventV5 {
  uint64_t type;
  void* parent;
  int rank;
  EventFields fields;
  void* parent_group;
};
static_assert(sizeof(EventV4) == 104 && offsetof(EventV4, fields) == 24);
static_assert(sizeof(EventV5) == 112 && offsetof(EventV5, fields) == 24);

union StateArguments {
  size_t transfer_bytes;  // of a proxy step
  uint64_t timer_ns;      // of a kernel channel
  void* other;
};
static_assert(sizeof(StateArguments) == 8);

struct ProfilerV5 {
  const char* name;
  Result (*init)(void** context, uint64_t communicator, int* mask, const char* name, int nodes,
                 int ranks, int rank, LogFunction log);
  Result (*start)(void* context, void** handle, EventV5* event);
  Result (*stop)(void* handle);
  Result (*state)(void* handle, EventState state, StateArguments* arguments);
  Result (*finalize)(void* context);
};
struct ProfilerV4 {
  const char* name;
  Result (*init)(void** context, int* mask, const char* name, uint64_t communicator, int nodes,
                 int ranks, int rank, LogFunction log);
  Result (*start)(void* context, void** handle, EventV4* event);
  Result (*stop)(void* handle);
  Result (*state)(void* handle, EventState state, StateArguments* arguments);
  Result (*finalize)(void* context);
};
static_assert(sizeof(ProfilerV5) == 48 && sizeof(ProfilerV4) == 48);

}  // namespace holdfast::nccl
