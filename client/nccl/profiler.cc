#include "client/nccl/profiler.h"

#include <holdfast/holdfast.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <iterator>
#include <limits>

#include "client/nccl/names.h"
#include "client/nccl/pool.h"

namespace holdfast::nccl {
namespace {
constexpr auto kRelaxed = std::memory_order_relaxed;
constexpr uint32_t kApiVersion = 4;  // the first of libholdfast.so with holdfast_operation_edge()
/// NCCL reads the mask when it begins an operation. The steps of an operation that already hangs
/// could no longer be requested.
constexpr int kEvents = kCollective | kKernelChannel | kProxyOperation | kProxyStep;
constexpr uint32_t kProxiesMax = 64;  // of an operation, whose progress is compared
constexpr uint64_t kNoEdge = ~uint64_t{0};
constexpr uint32_t kOpenStepsMax = 16;  // of a proxy operation; NCCL has up to 8 (NCCL_STEPS)
// At most this many later operations of a communicator end before an earlier one, since operations
// of a group run concurrently. After more, the earlier one has ended unobserved: its kernel has no
// channel events.
constexpr uint64_t kSupersededMax = 128;
constexpr uint64_t kRecent = 256;

uint64_t NowNs() {
  return static_cast<uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count());
}

void LowerTo(std::atomic<uint64_t>& word, uint64_t value) {
  uint64_t now = word.load(kRelaxed);
  while (now > value && !word.compare_exchange_weak(now, value, kRelaxed)) {
  }
}

void RaiseTo(std::atomic<uint64_t>& word, uint64_t value) {
  uint64_t now = word.load(kRelaxed);
  while (now < value && !word.compare_exchange_weak(now, value, kRelaxed)) {
  }
}

struct Context {
  uint64_t communicator = 0;
  std::atomic<uint64_t> begun{0};
  std::atomic<uint64_t> over{0};            // the highest number of a completed operation
  std::atomic<void*> recent[kRecent] = {};  // the operation of each number
  std::atomic<bool> closed{false};

  void Reset() {
    begun.store(0, kRelaxed);
    over.store(0, kRelaxed);
    closed.store(false, kRelaxed);
    for (auto& handle : recent) handle.store(nullptr, kRelaxed);
  }
  void Finish() {}
};

/// A collective, a send or a receive.
struct Operation {
  holdfast_operation record = 0;
  bool sampled = false;  // the agent requested the sums of its transfers
  Handle context;
  uint64_t number = 0;  // in the context, from 1
  uint32_t channels = 0;
  std::atomic<bool> host_over{false};
  std::atomic<bool> kernel_over{false};
  std::atomic<bool> ended{false};
  std::atomic<uint64_t> open{0};  // channels that run, one bit each
  std::atomic<uint64_t> seen{0};  // channels that run or have run, one bit each
  std::atomic<uint64_t> first_start_ns{0};
  std::atomic<uint64_t> last_stop_ns{0};
  /// What one of its proxies has done, packed: on which connection, and how far it is.
  struct Progress {
    std::atomic<uint64_t> edge{0};                 // peer · 2 + direction
    std::atomic<uint64_t> completed_and_state{0};  // kOver, or steps · 256 + EventState or 0
  };
  static constexpr uint64_t kOver = ~uint64_t{0};
  std::atomic<uint32_t> proxies{0};
  Progress progress[kProxiesMax] = {};

  void Reset() {
    proxies.store(0, kRelaxed);
    host_over.store(false, kRelaxed);
    kernel_over.store(false, kRelaxed);
    ended.store(false, kRelaxed);
    open.store(0, kRelaxed);
    seen.store(0, kRelaxed);
    first_start_ns.store(std::numeric_limits<uint64_t>::max(), kRelaxed);
    last_stop_ns.store(0, kRelaxed);
  }
  void Finish();
};

/// The proxy thread's work for an operation, with one peer over one channel.
struct Proxy {
  uint64_t communicator = 0;
  Handle context;
  Handle operation;  // of kind kNone: of another process, or unknown
  uint32_t peer = 0;
  uint32_t direction = HOLDFAST_DIRECTION_SEND;
  uint32_t index = kProxiesMax;  // in Operation::progress; kProxiesMax: not there
  std::atomic<bool> over{false};
  // Its steps end in the order in which they begin.
  std::atomic<uint64_t> begun{0};
  std::atomic<uint64_t> completed{0};
  std::atomic<int> states[kOpenStepsMax] = {};  // by step, modulo the number of entries

  void Reset() {
    over.store(false, kRelaxed);
    begun.store(0, kRelaxed);
    completed.store(0, kRelaxed);
  }
  void Finish();
  /// Returns the state of the oldest step that has not ended; 0: there is none.
  int StateOfOldest() const {
    const uint64_t oldest = completed.load(kRelaxed);
    return oldest < begun.load(kRelaxed) ? states[oldest % kOpenStepsMax].load(kRelaxed) : 0;
  }
};

/// One chunk of a proxy's transfer. Only the proxy thread accesses it.
struct Step {
  Handle proxy;
  uint64_t number = 0;  // among the steps of its proxy
  std::atomic<int> state{0};
  std::atomic<uint64_t> since_ns{0};
  std::atomic<uint64_t> gpu_wait_ns{0};
  std::atomic<uint64_t> peer_wait_ns{0};
  std::atomic<uint64_t> transfer_ns{0};
  std::atomic<uint64_t> flush_ns{0};
  std::atomic<uint64_t> bytes{0};
  std::atomic<bool> over{false};

  void Reset() {
    for (auto* word : {&since_ns, &gpu_wait_ns, &peer_wait_ns, &transfer_ns, &flush_ns, &bytes}) {
      word->store(0, kRelaxed);
    }
    state.store(0, kRelaxed);
    over.store(false, kRelaxed);
  }
  void Finish();
  /// Adds the time spent in the state that ends now.
  void Leave(uint64_t now_ns);
};

Pool<Context, 256> contexts;
Pool<Operation, 2048> operations;
Pool<Proxy, 2048> proxies;
Pool<Step, 4096> steps;
std::atomic<pid_t> process{0};

// ---- operations --------------------------------------------------------------------------------

/// Releases the reference of one of the operation's parts, once.
void EndPart(const Handle& handle, std::atomic<bool>& over) {
  if (!over.exchange(true)) operations.Release(handle);
}

/// Runs when the last reference is released: the host, the kernel and the proxies have stopped.
void Operation::Finish() {
  if (ended.exchange(true)) return;
  const uint64_t first = first_start_ns.load(kRelaxed);
  const uint64_t last = last_stop_ns.load(kRelaxed);
  if (last > first) holdfast_collective_device_time(nullptr, record, last - first);
  holdfast_collective_end(nullptr, record);
  if (auto communicator = contexts.Find(context)) RaiseTo(communicator->over, number);
}

/// Ends an operation that gets no more events.
void Abandon(const Handle& handle, Operation& operation) {
  if (!operation.ended.exchange(true)) holdfast_collective_abandon(nullptr, operation.record);
  const int open = std::popcount(operation.open.exchange(0));
  for (int i = 0; i < open; ++i) operations.Release(handle);
  EndPart(handle, operation.kernel_over);
  EndPart(handle, operation.host_over);
}

/// Abandons the operation that began kSupersededMax operations before `number`, if later ones have
/// ended long ago.
void AbandonSuperseded(Context& context, uint64_t number) {
  if (number <= kSupersededMax) return;
  const uint64_t old = number - kSupersededMax;
  void* pointer = context.recent[old % kRecent].load(std::memory_order_acquire);
  const Handle handle = Handle::From(pointer);
  if (pointer == nullptr || context.over.load(kRelaxed) < old + kSupersededMax / 2) return;
  auto operation = operations.Find(handle);
  // An operation with a running channel, or that NCCL's host part has not stopped, is not complete.
  if (!operation || operation->open.load() != 0 || !operation->host_over.load()) return;
  Abandon(handle, *operation.operator->());
}

void* StartOperation(void* context_handle, const holdfast_collective& collective) {
  const Handle context = Handle::From(context_handle);
  auto communicator = context.kind == HandleKind::kContext ? contexts.Find(context)
                                                           : decltype(contexts.Find(context)){};
  if (!communicator) return nullptr;
  holdfast_collective described = collective;
  described.struct_size = sizeof described;
  described.communicator = communicator->communicator;
  described.deferred = 1;
  described.source = 1;
  const bool sampled = holdfast_sampling(nullptr) != 0;
  const holdfast_operation record = holdfast_collective_begin(nullptr, &described);
  if (record == 0) return nullptr;
  const uint64_t number = communicator->begun.fetch_add(1) + 1;
  const bool kernel = collective.channels > 0;
  const Handle handle = operations.Take(HandleKind::kOperation, kernel ? 2 : 1,
                                        [&](Operation& operation, const Handle&) {
                                          operation.record = record;
                                          operation.sampled = sampled;
                                          operation.context = context;
                                          operation.number = number;
                                          operation.channels = std::min(collective.channels, 64U);
                                          operation.kernel_over.store(!kernel, kRelaxed);
                                        });
  if (handle.kind == HandleKind::kNone) {
    holdfast_collective_abandon(nullptr, record);
    return nullptr;
  }
  communicator->recent[number % kRecent].store(handle.ToPointer(), std::memory_order_release);
  AbandonSuperseded(*communicator.operator->(), number);
  return handle.ToPointer();
}

void StopKernelChannel(const Handle& handle) {
  auto operation = operations.Find(handle);
  if (!operation) return;
  const uint64_t bit = 1ULL << (handle.channel % 64);
  if ((operation->open.fetch_and(~bit) & bit) == 0) return;
  operations.Release(handle);
  const bool all =
      static_cast<uint32_t>(std::popcount(operation->seen.load())) >= operation->channels;
  if (all && operation->open.load() == 0) EndPart(handle, operation->kernel_over);
}

// ---- proxies -----------------------------------------------------------------------------------

void Proxy::Finish() {
  if (operation.kind != HandleKind::kNone) operations.Release(operation);
}

void Step::Leave(uint64_t now_ns) {
  const uint64_t since = since_ns.load(kRelaxed);
  const uint64_t time = since != 0 && now_ns > since ? now_ns - since : 0;
  switch (state.load(kRelaxed)) {
    case kSendGpuWait:
    case kRecvGpuWait:
      gpu_wait_ns.fetch_add(time, kRelaxed);
      return;
    case kSendPeerWait:
    case kRecvWait:
      peer_wait_ns.fetch_add(time, kRelaxed);
      return;
    case kSendWait:
      transfer_ns.fetch_add(time, kRelaxed);
      return;
    case kRecvFlushWait:
      flush_ns.fetch_add(time, kRelaxed);
      return;
    default:
      return;
  }
}

/// Whether the agent requested the sums of the proxy's transfers.
bool IsSampled(const Proxy& proxy) {
  if (proxy.operation.kind == HandleKind::kNone) return holdfast_sampling(nullptr) != 0;
  auto operation = operations.Find(proxy.operation);
  return operation && operation->sampled;
}

void Step::Finish() {
  if (auto owner = proxies.Find(proxy); owner && IsSampled(*owner.operator->())) {
    holdfast_transfer transfer{};
    transfer.struct_size = sizeof transfer;
    transfer.communicator = owner->communicator;
    transfer.peer = owner->peer;
    transfer.direction = owner->direction;
    transfer.bytes = bytes.load(kRelaxed);
    transfer.gpu_wait_ns = gpu_wait_ns.load(kRelaxed);
    transfer.peer_wait_ns = peer_wait_ns.load(kRelaxed);
    transfer.transfer_ns = transfer_ns.load(kRelaxed);
    transfer.flush_ns = flush_ns.load(kRelaxed);
    if (state.load(kRelaxed) != 0) holdfast_peer_transfer(nullptr, &transfer);
  }
  proxies.Release(proxy);
}

uint32_t EdgeOf(int state) {
  switch (static_cast<EventState>(state)) {
    case kSendGpuWait:
      return HOLDFAST_EDGE_SEND_GPU_WAIT;
    case kSendPeerWait:
      return HOLDFAST_EDGE_SEND_PEER_WAIT;
    case kSendWait:
      return HOLDFAST_EDGE_SEND_WAIT;
    case kRecvWait:
      return HOLDFAST_EDGE_RECEIVE_WAIT;
    case kRecvFlushWait:
      return HOLDFAST_EDGE_RECEIVE_FLUSH_WAIT;
    case kRecvGpuWait:
      return HOLDFAST_EDGE_RECEIVE_GPU_WAIT;
    case kKernelChannelStop:
      break;
  }
  return HOLDFAST_EDGE_IDLE;
}

/// Records what the connection of `proxy` waits for. An operation has a proxy for each channel of a
/// connection. The least advanced of them counts, since the others wait for it in the end.
void RecordEdge(const Proxy& proxy) {
  if (proxy.index == kProxiesMax) return;
  auto operation = operations.Find(proxy.operation);
  if (!operation || operation->ended.load(kRelaxed)) return;
  const uint64_t edge = uint64_t{proxy.peer} * 2 + proxy.direction;
  Operation::Progress& mine = operation->progress[proxy.index];
  mine.edge.store(edge, kRelaxed);
  mine.completed_and_state.store(
      proxy.over.load(kRelaxed)
          ? Operation::kOver
          : proxy.completed.load(kRelaxed) << 8 | static_cast<uint64_t>(proxy.StateOfOldest()),
      kRelaxed);
  uint64_t least = Operation::kOver;
  const uint32_t count = std::min(operation->proxies.load(kRelaxed), kProxiesMax);
  for (uint32_t i = 0; i < count; ++i) {
    const Operation::Progress& other = operation->progress[i];
    if (other.edge.load(kRelaxed) != edge) continue;
    least = std::min(least, other.completed_and_state.load(kRelaxed));
  }
  const bool over = least == Operation::kOver;
  holdfast_operation_edge(nullptr, operation->record, proxy.peer, proxy.direction,
                          EdgeOf(over ? 0 : static_cast<int>(least & 0xFF)), over ? 0 : least >> 8);
}

void ChangeStep(const Handle& handle, EventState state, const StateArguments* arguments) {
  auto step = steps.Find(handle);
  const uint32_t edge = EdgeOf(state);
  if (!step || edge == HOLDFAST_EDGE_IDLE) return;
  const uint64_t now = NowNs();
  step->Leave(now);
  step->state.store(state, kRelaxed);
  step->since_ns.store(now, kRelaxed);
  if (arguments != nullptr) RaiseTo(step->bytes, arguments->transfer_bytes);
  if (auto owner = proxies.Find(step->proxy)) {
    owner->states[step->number % kOpenStepsMax].store(state, kRelaxed);
    if (step->number == owner->completed.load(kRelaxed)) RecordEdge(*owner.operator->());
  }
}

void StopStep(const Handle& handle) {
  auto step = steps.Find(handle);
  if (!step || step->over.exchange(true)) return;
  step->Leave(NowNs());
  auto owner = proxies.Find(step->proxy);
  steps.Release(handle);
  if (!owner) return;
  owner->completed.fetch_add(1, kRelaxed);
  RecordEdge(*owner.operator->());
}

void StopProxy(const Handle& handle) {
  auto proxy = proxies.Find(handle);
  if (!proxy || proxy->over.exchange(true)) return;
  RecordEdge(*proxy.operator->());
  proxies.Release(handle);
}

bool IsSame(const Handle& a, const Handle& b) {
  return a.index == b.index && a.generation == b.generation;
}
}  // namespace

// ---- communicators -----------------------------------------------------------------------------

void* OpenCommunicator(uint64_t id, int ranks, int rank, int* mask, LogFunction log) {
  if (holdfast_api_version() < kApiVersion) {
    if (log != nullptr) {
      log(kLogWarn, kLogAll, "holdfast", 0,
          "Holdfast records nothing: libholdfast.so has API version %u, this plugin needs %u; "
          "install the same release of both",
          holdfast_api_version(), kApiVersion);
    }
    return nullptr;
  }
  if (ranks < 2 || rank < 0 || rank >= ranks || mask == nullptr) return nullptr;
  process.store(::getpid(), kRelaxed);
  // ID 0 means all ranks of the job, which this communicator need not contain.
  const uint64_t communicator = id == 0 ? ~uint64_t{0} : id;
  const Handle handle =
      contexts.Take(HandleKind::kContext, 1,
                    [&](Context& context, const Handle&) { context.communicator = communicator; });
  holdfast_communicator description{};
  description.struct_size = sizeof description;
  description.id = communicator;
  description.size = static_cast<uint32_t>(ranks);
  description.index = static_cast<uint32_t>(rank);
  holdfast_error error;
  const bool described =
      handle.kind != HandleKind::kNone &&
      holdfast_communicator_describe(nullptr, &description, &error) == HOLDFAST_OK;
  if (!described) {
    if (log != nullptr) {
      log(kLogWarn, kLogAll, "holdfast", 0, "Holdfast does not record this communicator: %s",
          handle.kind == HandleKind::kNone ? "too many communicators" : error.message);
    }
    if (handle.kind != HandleKind::kNone) contexts.Release(handle);
    return nullptr;
  }
  __atomic_store_n(mask, kEvents, __ATOMIC_RELAXED);
  return handle.ToPointer();
}

void CloseCommunicator(void* context) {
  const Handle handle = Handle::From(context);
  if (handle.kind != HandleKind::kContext) return;
  uint64_t communicator = 0;
  {
    auto found = contexts.Find(handle);
    if (!found || found->closed.exchange(true)) return;
    communicator = found->communicator;
  }
  steps.ForEach(HandleKind::kProxyStep, [&](const Handle& at, Step& step) {
    auto proxy = proxies.Find(step.proxy);
    if (proxy && IsSame(proxy->context, handle)) StopStep(at);
  });
  proxies.ForEach(HandleKind::kProxyOperation, [&](const Handle& at, Proxy& proxy) {
    if (IsSame(proxy.context, handle)) StopProxy(at);
  });
  operations.ForEach(HandleKind::kOperation, [&](const Handle& at, Operation& operation) {
    if (IsSame(operation.context, handle)) Abandon(at, operation);
  });
  contexts.Release(handle);
  // Two ranks of one communicator in one process share its description.
  bool others = false;
  contexts.ForEach(HandleKind::kContext, [&](const Handle&, Context& other) {
    others = others || other.communicator == communicator;
  });
  if (!others) holdfast_communicator_forget(nullptr, communicator);
}

// ---- events ------------------------------------------------------------------------------------

void* StartCollective(void* context, const CollectiveFields& fields) {
  holdfast_collective collective{};
  collective.kind = KindOf(fields.function);
  const Datatype type = DatatypeOf(fields.datatype);
  // For these two, NCCL reports bytes for every type.
  const bool in_bytes =
      collective.kind == HOLDFAST_ALL_GATHER || collective.kind == HOLDFAST_BROADCAST;
  collective.bytes = fields.count * (in_bytes ? 1 : type.bytes);
  collective.dtype = type.number;
  const bool rooted = collective.kind == HOLDFAST_BROADCAST || collective.kind == HOLDFAST_REDUCE;
  collective.peer =
      rooted && fields.root >= 0 ? static_cast<uint32_t>(fields.root) : HOLDFAST_NO_PEER;
  collective.algorithm = AlgorithmOf(fields.algorithm);
  collective.protocol = ProtocolOf(fields.protocol);
  collective.channels = fields.channels;
  // NCCL counts by function. Functions that share the kind "other" are counted by the library.
  collective.numbered = collective.kind != HOLDFAST_OTHER_COLLECTIVE ? 1 : 0;
  collective.sequence = fields.sequence;
  return StartOperation(context, collective);
}

void* StartPointToPoint(void* context, const PointToPointFields& fields) {
  holdfast_collective collective{};
  collective.kind = KindOf(fields.function);
  const Datatype type = DatatypeOf(fields.datatype);
  collective.bytes = fields.count * type.bytes;
  collective.dtype = type.number;
  collective.peer = fields.peer >= 0 ? static_cast<uint32_t>(fields.peer) : HOLDFAST_NO_PEER;
  collective.channels = fields.channels;
  return StartOperation(context, collective);
}

void* StartKernelChannel(void* parent, const KernelChannelFields& fields) {
  Handle handle = Handle::From(parent);
  if (handle.kind != HandleKind::kOperation) return nullptr;
  auto operation = operations.Find(handle);
  if (!operation || operation->ended.load()) return nullptr;
  const uint64_t bit = 1ULL << (fields.channel % 64);
  if ((operation->seen.fetch_or(bit) & bit) != 0) return nullptr;  // reported twice
  operation->open.fetch_or(bit);
  LowerTo(operation->first_start_ns, fields.timer_ns);
  holdfast_collective_started(nullptr, operation->record);
  operation.Keep();
  handle.kind = HandleKind::kKernelChannel;
  handle.channel = fields.channel;
  return handle.ToPointer();
}

void* StartProxyOperation(void* context, void* parent, const ProxyOperationFields& fields) {
  const Handle owner = Handle::From(context);
  if (owner.kind != HandleKind::kContext) return nullptr;
  auto communicator = contexts.Find(owner);
  if (!communicator || fields.peer < 0) return nullptr;
  // The handle of another process's operation has no meaning here.
  Handle operation;
  uint32_t index = kProxiesMax;
  if (fields.pid == process.load(kRelaxed)) operation = Handle::From(parent);
  if (operation.kind == HandleKind::kOperation) {
    auto reference = operations.Find(operation);
    if (!reference || reference->ended.load()) return nullptr;
    index = std::min(reference->proxies.load(kRelaxed), kProxiesMax);
    if (index < kProxiesMax) {
      reference->progress[index].edge.store(kNoEdge, kRelaxed);
      reference->proxies.store(index + 1, kRelaxed);
    }
    reference.Keep();
  } else {
    operation = {};
  }
  const Handle handle =
      proxies.Take(HandleKind::kProxyOperation, 1, [&](Proxy& proxy, const Handle&) {
        proxy.communicator = communicator->communicator;
        proxy.context = owner;
        proxy.operation = operation;
        proxy.index = index;
        proxy.peer = static_cast<uint32_t>(fields.peer);
        proxy.direction =
            fields.is_send != 0 ? HOLDFAST_DIRECTION_SEND : HOLDFAST_DIRECTION_RECEIVE;
      });
  if (handle.kind == HandleKind::kNone) {
    if (operation.kind != HandleKind::kNone) operations.Release(operation);
    return nullptr;
  }
  return handle.ToPointer();
}

void* StartProxyStep(void* parent) {
  const Handle owner = Handle::From(parent);
  if (owner.kind != HandleKind::kProxyOperation) return nullptr;
  auto proxy = proxies.Find(owner);
  if (!proxy || proxy->over.load()) return nullptr;
  const uint64_t number = proxy->begun.load(kRelaxed);
  const Handle handle = steps.Take(HandleKind::kProxyStep, 1, [&](Step& step, const Handle&) {
    step.proxy = owner;
    step.number = number;
  });
  if (handle.kind == HandleKind::kNone) return nullptr;
  proxy->states[number % kOpenStepsMax].store(0, kRelaxed);
  proxy->begun.store(number + 1, kRelaxed);
  proxy.Keep();
  return handle.ToPointer();
}

void StopEvent(void* pointer) {
  const Handle handle = Handle::From(pointer);
  switch (handle.kind) {
    case HandleKind::kOperation:
      if (auto operation = operations.Find(handle)) EndPart(handle, operation->host_over);
      return;
    case HandleKind::kKernelChannel:
      return StopKernelChannel(handle);
    case HandleKind::kProxyOperation:
      return StopProxy(handle);
    case HandleKind::kProxyStep:
      return StopStep(handle);
    case HandleKind::kContext:
    case HandleKind::kNone:
      return;
  }
}

void ChangeState(void* pointer, EventState state, const StateArguments* arguments) {
  const Handle handle = Handle::From(pointer);
  if (handle.kind == HandleKind::kProxyStep) return ChangeStep(handle, state, arguments);
  if (handle.kind != HandleKind::kKernelChannel || state != kKernelChannelStop) return;
  if (arguments == nullptr) return;
  if (auto operation = operations.Find(handle)) {
    RaiseTo(operation->last_stop_ns, arguments->timer_ns);
  }
}

}  // namespace holdfast::nccl
