// Calls the plugin as NCCL does, and checks the records that an agent would read.

#include <dlfcn.h>

#include <atomic>
#include <cstdarg>
#include <deque>
#include <thread>

#include "agent/telemetry/table_reader.h"
#include "client/core/collectives.h"
#include "client/nccl/profiler_abi.h"
#include "tests/client/core/client_fixture.h"

namespace holdfast::nccl {
namespace {
using agent::RankTelemetry;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr int kDefaultMask = kCollective | kKernelChannel | kProxyOperation | kProxyStep;

std::string& Logged() {
  static std::string logged;
  return logged;
}
void LogToString(LogLevel, unsigned long, const char*, int, const char* format, ...) {
  char line[512];
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(line, sizeof line, format, arguments);
  va_end(arguments);
  Logged() += line;
}

/// Loads the plugin and calls it as NCCL does, with one version of the interface.
class Plugin {
 public:
  Plugin() : library_(::dlopen(HOLDFAST_NCCL_PLUGIN, RTLD_NOW | RTLD_LOCAL)) {
    EXPECT_NE(library_, nullptr) << ::dlerror();
    if (library_ == nullptr) return;
    v5_ = static_cast<const ProfilerV5*>(::dlsym(library_, "ncclProfiler_v5"));
    v4_ = static_cast<const ProfilerV4*>(::dlsym(library_, "ncclProfiler_v4"));
  }
  ~Plugin() {
    if (library_ != nullptr) ::dlclose(library_);
  }
  Plugin(const Plugin&) = delete;
  Plugin& operator=(const Plugin&) = delete;

  const ProfilerV5& v5() const { return *v5_; }
  const ProfilerV4& v4() const { return *v4_; }

  void* Open(uint64_t id, int ranks = 4, int rank = 1) {
    void* context = nullptr;
    EXPECT_EQ(v5_->init(&context, id, &mask, "tp", 2, ranks, rank, &LogToString), kSuccess);
    return context;
  }
  void* Start(void* context, EventV5 event) {
    void* handle = &event;  // NCCL does not initialise it
    EXPECT_EQ(v5_->start(context, &handle, &event), kSuccess);
    return handle;
  }
  void* Collective(void* context, uint64_t sequence, uint8_t channels = 2,
                   const char* function = "AllReduce") {
    EventV5 event{};
    event.type = kCollective;
    event.fields.collective = {.sequence = sequence,
                               .function = function,
                               .send_buffer = nullptr,
                               .receive_buffer = nullptr,
                               .count = 1000,
                               .root = 0,
                               .datatype = "ncclBfloat16",
                               .channels = channels,
                               .warps = 8,
                               .algorithm = "RING",
                               .protocol = "LL128"};
    return Start(context, event);
  }
  void* Send(void* context, int peer, const char* function = "Send") {
    EventV5 event{};
    event.type = kPointToPoint;
    event.fields.point_to_point = {.function = function,
                                   .buffer = nullptr,
                                   .datatype = "ncclFloat32",
                                   .count = 10,
                                   .peer = peer,
                                   .channels = 1};
    return Start(context, event);
  }
  void* Kernel(void* context, void* parent, uint8_t channel, uint64_t timer_ns) {
    EventV5 event{};
    event.type = kKernelChannel;
    event.parent = parent;
    event.fields.kernel_channel = {channel, timer_ns};
    return Start(context, event);
  }
  void StopKernel(void* handle, uint64_t timer_ns) {
    StateArguments arguments{.timer_ns = timer_ns};
    v5_->state(handle, kKernelChannelStop, &arguments);
    Stop(handle);
  }
  void* ProxyOperation(void* context, void* parent, int peer, bool sends, pid_t pid = ::getpid()) {
    EventV5 event{};
    event.type = kProxyOperation;
    event.parent = parent;
    event.fields.proxy_operation = {pid, 0, peer, 4, 1 << 19, sends ? 1 : 0};
    return Start(context, event);
  }
  void* ProxyStep(void* context, void* parent, int step) {
    EventV5 event{};
    event.type = kProxyStep;
    event.parent = parent;
    event.fields.proxy_step = {step};
    return Start(context, event);
  }
  void State(void* handle, EventState state, size_t bytes = 0) {
    StateArguments arguments{.transfer_bytes = bytes};
    EXPECT_EQ(v5_->state(handle, state, &arguments), kSuccess);
  }
  void Stop(void* handle) { EXPECT_EQ(v5_->stop(handle), kSuccess); }
  void Close(void* context) { EXPECT_EQ(v5_->finalize(context), kSuccess); }
  /// Records a complete operation.
  void Run(void* context, uint64_t sequence) {
    void* operation = Collective(context, sequence, 1);
    Stop(operation);
    StopKernel(Kernel(context, operation, 0, 100), 200);
  }

  int mask = 0;

 private:
  void* library_;
  const ProfilerV5* v5_ = nullptr;
  const ProfilerV4* v4_ = nullptr;
};

class PluginTest : public client::ClientFixture {
 protected:
  void SetUp() override {
    ClientFixture::SetUp();
    Logged().clear();
    agent_->Start();
    ASSERT_EQ(ClientFixture::Open(), HOLDFAST_OK) << Message();
    reader_.emplace(agent_->segment()->control());
    plugin_.emplace();
    Read();
  }
  void TearDown() override {
    plugin_.reset();
    ClientFixture::TearDown();
  }
  RankTelemetry Read() {
    auto read = reader_->Read(client::MonotonicNs());
    EXPECT_TRUE(read.has_value()) << read.error().ToString();
    return read ? *std::move(read) : RankTelemetry{};
  }
  agent::CollectiveTable& Table() { return agent_->segment()->control().collectives; }

  std::optional<agent::TableReader> reader_;
  std::optional<Plugin> plugin_;
};

TEST_F(PluginTest, ACommunicatorIsDescribedAndForgotten) {
  EXPECT_EQ(std::string(plugin_->v5().name), "Holdfast");
  void* context = plugin_->Open(0xABC, 4, 3);
  ASSERT_NE(context, nullptr);
  EXPECT_EQ(plugin_->mask, kDefaultMask);
  RankTelemetry seen = Read();
  ASSERT_THAT(seen.communicators, SizeIs(2)) << "in addition to that of all ranks of the job";
  EXPECT_EQ(seen.communicators[1].id, CommunicatorId{0xABC});
  EXPECT_EQ(seen.communicators[1].size, 4U);
  EXPECT_EQ(seen.communicators[1].index, 3U);
  plugin_->Close(context);
  EXPECT_THAT(Read().communicators, SizeIs(1));
  plugin_->Close(context);
  plugin_->Close(nullptr);
}

TEST_F(PluginTest, AnOperationEndsWithItsLastChannel) {
  void* context = plugin_->Open(1);
  void* operation = plugin_->Collective(context, 6);
  ASSERT_NE(operation, nullptr);
  RankTelemetry seen = Read();
  ASSERT_THAT(seen.in_flight, SizeIs(1));
  EXPECT_FALSE(seen.in_flight[0].started);
  const CollectiveRecord record = seen.in_flight[0].record;
  EXPECT_EQ(record.communicator, CommunicatorId{1});
  EXPECT_EQ(record.kind, CollectiveKind::kAllReduce);
  EXPECT_EQ(record.sequence, 6U);
  EXPECT_EQ(record.bytes, 2000U);
  EXPECT_EQ(record.dtype, HOLDFAST_BF16);
  EXPECT_EQ(record.algorithm, CollectiveAlgorithm::kRing);
  EXPECT_EQ(record.protocol, CollectiveProtocol::kLl128);
  EXPECT_EQ(record.channels, 2);
  EXPECT_EQ(record.source, CollectiveSource::kNccl);
  EXPECT_EQ(record.peer, kNoPeer);

  plugin_->Stop(operation);  // only enqueued
  EXPECT_THAT(Read().in_flight, SizeIs(1));
  void* first = plugin_->Kernel(context, operation, 0, 5000);
  EXPECT_TRUE(Read().in_flight.at(0).started);
  plugin_->StopKernel(first, 7000);
  EXPECT_THAT(Read().in_flight, SizeIs(1)) << "one channel has not even begun";
  void* second = plugin_->Kernel(context, operation, 1, 5500);
  plugin_->StopKernel(second, 7500);
  seen = Read();
  EXPECT_THAT(seen.in_flight, IsEmpty());
  ASSERT_THAT(seen.ended, SizeIs(1));
  EXPECT_EQ(seen.ended[0].device_ns, 2500U);
  EXPECT_EQ(seen.ended[0].flags, 0);
  plugin_->Close(context);
}

TEST_F(PluginTest, PartsEndInAnyOrder) {
  void* context = plugin_->Open(1);
  void* operation = plugin_->Collective(context, 0);
  void* proxy = plugin_->ProxyOperation(context, operation, 2, true);
  void* kernels[] = {plugin_->Kernel(context, operation, 7, 10),
                     plugin_->Kernel(context, operation, 63, 20)};
  for (void* kernel : kernels) plugin_->StopKernel(kernel, 100);
  EXPECT_THAT(Read().in_flight, SizeIs(1)) << "the host has not returned";
  plugin_->Stop(operation);
  EXPECT_THAT(Read().in_flight, SizeIs(1)) << "a late child";
  void* step = plugin_->ProxyStep(context, proxy, 0);
  plugin_->Stop(proxy);
  EXPECT_THAT(Read().in_flight, SizeIs(1)) << "its own child, later still";
  plugin_->Stop(step);
  EXPECT_THAT(Read().ended, SizeIs(1));
  EXPECT_EQ(plugin_->Kernel(context, operation, 1, 10), nullptr) << "a parent that has ended";
  EXPECT_EQ(plugin_->ProxyOperation(context, operation, 2, true), nullptr);
  EXPECT_EQ(plugin_->ProxyStep(context, proxy, 1), nullptr);
  plugin_->Close(context);
}

TEST_F(PluginTest, InvalidEventsAreIgnored) {
  void* context = plugin_->Open(1);
  void* operation = plugin_->Collective(context, 0, 1);
  EXPECT_EQ(plugin_->Collective(nullptr, 0), nullptr);
  EXPECT_EQ(plugin_->Send(nullptr, 0), nullptr);
  EXPECT_EQ(plugin_->Kernel(context, nullptr, 0, 1), nullptr);
  EXPECT_EQ(plugin_->Kernel(context, context, 0, 1), nullptr);
  EXPECT_EQ(plugin_->ProxyOperation(nullptr, operation, 1, true), nullptr);
  EXPECT_EQ(plugin_->ProxyOperation(context, operation, -1, true), nullptr);
  EXPECT_EQ(plugin_->ProxyStep(context, operation, 0), nullptr);
  for (uint64_t type : {0ULL, 1ULL, 32ULL, 128ULL, 256ULL, 512ULL, 1ULL << 11, 1ULL << 63, ~0ULL}) {
    EventV5 event{};
    event.type = type;
    EXPECT_EQ(plugin_->Start(context, event), nullptr) << type;
  }
  EXPECT_EQ(plugin_->v5().start(context, nullptr, nullptr), kSuccess);
  void* handle = context;
  EXPECT_EQ(plugin_->v5().start(context, &handle, nullptr), kSuccess);
  EXPECT_EQ(handle, nullptr);
  for (uint64_t made_up = 1; made_up != 0; made_up <<= 1) {
    void* pointer = reinterpret_cast<void*>(made_up | 3);
    plugin_->Stop(pointer);
    plugin_->State(pointer, kSendWait);
    plugin_->v5().state(pointer, kKernelChannelStop, nullptr);
    plugin_->Close(pointer);
    EXPECT_EQ(plugin_->Kernel(pointer, pointer, 0, 1), nullptr);
  }
  plugin_->Stop(nullptr);
  plugin_->State(nullptr, static_cast<EventState>(99));
  // Names that are missing or unknown, and numbers out of range.
  EventV5 event{};
  event.type = kCollective;
  event.fields.collective.root = -1;
  void* bare = plugin_->Start(context, event);
  EXPECT_NE(bare, nullptr);
  plugin_->Stop(bare);
  const RankTelemetry seen = Read();
  ASSERT_THAT(seen.ended, SizeIs(1)) << "without channels, the operation ends with the host's part";
  EXPECT_EQ(seen.ended[0].kind, CollectiveKind::kOther);
  EXPECT_THAT(seen.in_flight, SizeIs(1));

  plugin_->Stop(operation);
  plugin_->Stop(operation);
  void* kernel = plugin_->Kernel(context, operation, 0, 1);
  EXPECT_EQ(plugin_->Kernel(context, operation, 0, 1), nullptr) << "reported twice";
  plugin_->Stop(kernel);
  plugin_->Stop(kernel);
  plugin_->Stop(operation);
  EXPECT_THAT(Read().ended, SizeIs(1));
  plugin_->Close(context);
}

TEST_F(PluginTest, SendsAndReceivesNameThePeer) {
  void* context = plugin_->Open(1);
  void* send = plugin_->Send(context, 3);
  void* receive = plugin_->Send(context, 2, "Recv");
  const RankTelemetry seen = Read();
  ASSERT_THAT(seen.in_flight, SizeIs(2));
  EXPECT_EQ(seen.in_flight[0].record.kind, CollectiveKind::kSend);
  EXPECT_EQ(seen.in_flight[0].record.peer, 3U);
  EXPECT_EQ(seen.in_flight[0].record.bytes, 40U);
  EXPECT_EQ(seen.in_flight[1].record.kind, CollectiveKind::kReceive);
  EXPECT_EQ(seen.in_flight[1].record.peer, 2U);
  for (void* operation : {send, receive}) {
    plugin_->Stop(operation);
    plugin_->StopKernel(plugin_->Kernel(context, operation, 0, 1), 2);
  }
  EXPECT_THAT(Read().ended, SizeIs(2));
  plugin_->Close(context);
}

TEST_F(PluginTest, TransfersAreSummedWhenTheAgentRequestsThem) {
  void* context = plugin_->Open(1);
  agent::RequestSampling(Table(), 2);
  plugin_->Run(context, 0);
  void* operation = plugin_->Collective(context, 1, 1);
  void* proxy = plugin_->ProxyOperation(context, operation, 2, true);
  void* step = plugin_->ProxyStep(context, proxy, 0);
  plugin_->State(step, kSendGpuWait);
  plugin_->State(step, kSendPeerWait);
  plugin_->State(step, kSendWait, 4096);
  void* kernel = plugin_->Kernel(context, operation, 0, 1);
  RankTelemetry seen = Read();
  ASSERT_THAT(seen.in_flight, SizeIs(1));
  EXPECT_FALSE(seen.in_flight[0].edge.has_value()) << "older than the operation's start";
  plugin_->State(step, kSendWait, 4096);
  seen = Read();
  ASSERT_TRUE(seen.in_flight.at(0).edge.has_value());
  EXPECT_EQ(seen.in_flight[0].edge->peer, 2U);
  EXPECT_EQ(seen.in_flight[0].edge->state, EdgeState::kSendWait);
  ::usleep(2000);
  plugin_->Stop(step);
  void* receive = plugin_->ProxyOperation(context, operation, 0, false);
  step = plugin_->ProxyStep(context, receive, 0);
  plugin_->State(step, kRecvWait);
  ::usleep(1000);
  plugin_->State(step, kRecvFlushWait, 8192);
  plugin_->State(step, kRecvGpuWait);
  plugin_->Stop(step);
  for (void* event : {proxy, receive, operation}) plugin_->Stop(event);
  plugin_->StopKernel(kernel, 2);
  seen = Read();
  ASSERT_THAT(seen.peers, SizeIs(2));
  for (const PeerTransfers& sums : seen.peers) {
    const bool sent = sums.direction == Direction::kSend;
    EXPECT_EQ(sums.peer, sent ? 2U : 0U);
    EXPECT_EQ(sums.bytes, sent ? 4096U : 8192U);
    EXPECT_GE(sent ? sums.transfer_ns : sums.peer_wait_ns, 1'000'000U);
  }
  operation = plugin_->Collective(context, 2, 1);
  proxy = plugin_->ProxyOperation(context, operation, 2, true);
  step = plugin_->ProxyStep(context, proxy, 0);
  plugin_->State(step, kSendWait, 4096);
  plugin_->Stop(step);
  for (void* event : {proxy, operation}) plugin_->Stop(event);
  plugin_->StopKernel(plugin_->Kernel(context, operation, 0, 1), 2);
  EXPECT_THAT(Read().peers, IsEmpty()) << "only for as many operations as were requested";
  plugin_->Close(context);
}

/// An operation that has started, with the proxies of two channels to rank 2 and one from rank 0.
TEST_F(PluginTest, TheLeastAdvancedConnectionIsKnownWithoutARequest) {
  void* context = plugin_->Open(1);
  EXPECT_EQ(plugin_->mask, kDefaultMask);
  void* operation = plugin_->Collective(context, 0, 1);
  void* kernel = plugin_->Kernel(context, operation, 0, 1);
  void* slow = plugin_->ProxyOperation(context, operation, 2, true);
  void* fast = plugin_->ProxyOperation(context, operation, 2, true);
  void* receives = plugin_->ProxyOperation(context, operation, 0, false);
  const auto step = [&](void* proxy, EventState state, bool ends) {
    void* transfer = plugin_->ProxyStep(context, proxy, 0);
    plugin_->State(transfer, state, 4096);
    if (ends) plugin_->Stop(transfer);
  };
  for (int i = 0; i < 3; ++i) step(receives, kRecvWait, true);
  step(slow, kSendWait, true);
  step(slow, kSendWait, false);  // hangs
  for (const EventState state : {kSendGpuWait, kSendPeerWait}) step(slow, state, false);
  for (int i = 0; i < 3; ++i) step(fast, kSendWait, true);
  step(fast, kSendGpuWait, false);
  plugin_->Stop(fast);
  const auto edge = Read().in_flight.at(0).edge;
  ASSERT_TRUE(edge.has_value());
  EXPECT_EQ(edge->peer, 2U);
  EXPECT_EQ(edge->direction, Direction::kSend);
  EXPECT_EQ(edge->state, EdgeState::kSendWait) << "of the oldest transfer of the slow channel";
  EXPECT_EQ(edge->completed, 1U);
  for (void* event : {slow, receives, operation}) plugin_->Stop(event);
  plugin_->StopKernel(kernel, 2);
  EXPECT_THAT(Read().ended, SizeIs(0)) << "transfers have not ended";
  plugin_->Close(context);
}

/// The proxy thread of NCCL calls the plugin several times per transfer of some 512 KiB. The test
/// compares CPU time, since a busy machine also runs other threads.
TEST_F(PluginTest, AProxyStepTakesMicroseconds) {
  constexpr int kSteps = 20'000;
  void* context = plugin_->Open(1);
  void* operation = plugin_->Collective(context, 0, 1);
  std::vector<void*> channels;
  for (int i = 0; i < 16; ++i) {
    channels.push_back(plugin_->ProxyOperation(context, operation, 2, i % 2 == 0));
  }
  const auto cpu_ns = [] {
    timespec now{};
    ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return static_cast<double>(now.tv_sec) * 1e9 + static_cast<double>(now.tv_nsec);
  };
  const double begin = cpu_ns();
  for (int i = 0; i < kSteps; ++i) {
    void* step = plugin_->ProxyStep(context, channels[static_cast<size_t>(i) % 16], i / 16);
    for (const EventState state : {kSendGpuWait, kSendPeerWait, kSendWait}) {
      plugin_->State(step, state, 1 << 19);
    }
    plugin_->Stop(step);
  }
  const double ns_per_step = (cpu_ns() - begin) / kSteps;
  RecordProperty("ns_per_step", static_cast<int>(ns_per_step));
  EXPECT_LT(ns_per_step, 20'000);
  plugin_->Close(context);
}

TEST_F(PluginTest, ACompleteConnectionIsNotAnEdge) {
  void* context = plugin_->Open(1);
  void* operation = plugin_->Collective(context, 0, 1);
  void* kernel = plugin_->Kernel(context, operation, 0, 1);
  void* sends = plugin_->ProxyOperation(context, operation, 2, true);
  void* transfer = plugin_->ProxyStep(context, sends, 0);
  plugin_->State(transfer, kSendWait, 4096);
  EXPECT_EQ(Read().in_flight.at(0).edge->completed, 0U);
  plugin_->Stop(transfer);
  plugin_->Stop(sends);
  EXPECT_FALSE(Read().in_flight.at(0).edge.has_value());
  plugin_->Stop(operation);
  plugin_->StopKernel(kernel, 2);
  plugin_->Close(context);
}

TEST_F(PluginTest, AParentOfAnotherProcessIsIgnored) {
  void* context = plugin_->Open(1);
  void* operation = plugin_->Collective(context, 0, 1);
  void* proxy = plugin_->ProxyOperation(context, operation, 2, true, ::getpid() + 1);
  EXPECT_NE(proxy, nullptr);
  plugin_->Stop(operation);
  plugin_->StopKernel(plugin_->Kernel(context, operation, 0, 1), 2);
  EXPECT_THAT(Read().ended, SizeIs(1)) << "it does not wait for that proxy operation";
  plugin_->Stop(proxy);
  plugin_->Close(context);
}

TEST_F(PluginTest, FinalizeEndsWhatIsInFlight) {
  void* context = plugin_->Open(1);
  void* other = plugin_->Open(2);
  void* operation = plugin_->Collective(context, 0);
  void* kernel = plugin_->Kernel(context, operation, 0, 1);
  void* proxy = plugin_->ProxyOperation(context, operation, 2, true);
  void* step = plugin_->ProxyStep(context, proxy, 0);
  void* kept = plugin_->Collective(other, 0);
  plugin_->Close(context);
  const RankTelemetry seen = Read();
  ASSERT_THAT(seen.ended, SizeIs(1));
  EXPECT_EQ(seen.ended[0].flags, kEndInferred);
  EXPECT_THAT(seen.in_flight, SizeIs(1));
  // Threads that have not noticed the end yet.
  for (void* late : {step, proxy, kernel, operation}) {
    plugin_->State(late, kSendWait, 1);
    plugin_->Stop(late);
  }
  EXPECT_EQ(plugin_->Kernel(context, operation, 1, 1), nullptr);
  EXPECT_EQ(plugin_->Collective(context, 1), nullptr);
  EXPECT_THAT(Read().ended, IsEmpty());
  plugin_->Stop(kept);
  plugin_->Close(other);
  EXPECT_THAT(Read().in_flight, IsEmpty());
}

TEST_F(PluginTest, ManyCommunicators) {
  std::vector<void*> contexts;
  for (uint64_t id = 1; id <= 300; ++id) {
    if (void* context = plugin_->Open(id * 1'000'003)) contexts.push_back(context);
  }
  EXPECT_EQ(contexts.size(), agent::kCommunicatorsMax - 1) << "all except that of all ranks";
  EXPECT_THAT(Logged(), HasSubstr("does not record this communicator"));
  for (void* context : contexts) plugin_->Run(context, 0);
  EXPECT_THAT(Read().ended, SizeIs(contexts.size()));
  for (void* context : contexts) plugin_->Close(context);
  EXPECT_THAT(Read().communicators, SizeIs(1));
  // As a program that repeatedly creates and frees communicators.
  for (uint64_t id = 1; id <= 1000; ++id) {
    void* context = plugin_->Open(id);
    ASSERT_NE(context, nullptr) << id;
    plugin_->Run(context, 0);
    plugin_->Close(context);
  }
  EXPECT_THAT(Read().ended, SizeIs(1000));
}

TEST_F(PluginTest, CommunicatorsOfOneRankAndInvalidOnesAreIgnored) {
  EXPECT_EQ(plugin_->Open(1, 1, 0), nullptr);
  EXPECT_EQ(plugin_->mask, 0);
  EXPECT_EQ(plugin_->Open(1, 4, 4), nullptr);
  EXPECT_EQ(plugin_->Open(1, -1, -1), nullptr);
  EXPECT_EQ(plugin_->v5().init(nullptr, 1, nullptr, nullptr, 1, 2, 0, nullptr), kSuccess);
  EXPECT_THAT(Read().communicators, SizeIs(1));
}

TEST_F(PluginTest, VersionFourRecordsTheSame) {
  const ProfilerV4& v4 = plugin_->v4();
  void* context = nullptr;
  int mask = 0;
  ASSERT_EQ(v4.init(&context, &mask, "", 9, 1, 2, 0, &LogToString), kSuccess);
  EXPECT_EQ(mask, kDefaultMask);
  EventV4 event;
  std::memset(&event, 0xEE, sizeof event);  // its type is one byte; the next bytes are undefined
  event.type = kCollective;
  event.parent = nullptr;
  event.fields.collective = {.sequence = 0,
                             .function = "AllGather",
                             .send_buffer = nullptr,
                             .receive_buffer = nullptr,
                             .count = 77,
                             .root = 0,
                             .datatype = "ncclFloat32",
                             .channels = 1,
                             .warps = 1,
                             .algorithm = "NVLS_TREE",
                             .protocol = nullptr};
  void* operation = nullptr;
  ASSERT_EQ(v4.start(context, &operation, &event), kSuccess);
  ASSERT_NE(operation, nullptr);
  event.type = kKernelChannel;
  event.parent = operation;
  event.fields.kernel_channel = {0, 10};
  void* kernel = nullptr;
  ASSERT_EQ(v4.start(context, &kernel, &event), kSuccess);
  StateArguments arguments{.timer_ns = 30};
  v4.state(kernel, kKernelChannelStop, &arguments);
  v4.stop(kernel);
  v4.stop(operation);
  const RankTelemetry seen = Read();
  ASSERT_THAT(seen.ended, SizeIs(1));
  EXPECT_EQ(seen.ended[0].kind, CollectiveKind::kAllGather);
  EXPECT_EQ(seen.ended[0].bytes, 77U) << "NCCL reports bytes for this kind";
  EXPECT_EQ(seen.ended[0].device_ns, 20U);
  EXPECT_EQ(seen.ended[0].algorithm, CollectiveAlgorithm::kNvls);
  v4.finalize(context);
}

TEST_F(PluginTest, AnOperationThatLaterOnesSupersededEnds) {
  void* context = plugin_->Open(1);
  plugin_->Stop(plugin_->Collective(context, 0));  // its kernel has no events
  void* stuck = plugin_->Collective(context, 1);
  plugin_->Stop(stuck);
  plugin_->Kernel(context, stuck, 0, 1);  // an operation that runs is not abandoned
  for (uint64_t sequence = 2; sequence < 200; ++sequence) plugin_->Run(context, sequence);
  const RankTelemetry seen = Read();
  ASSERT_THAT(seen.in_flight, SizeIs(1));
  EXPECT_EQ(seen.in_flight[0].record.sequence, 1U);
  EXPECT_EQ(std::count_if(seen.ended.begin(), seen.ended.end(),
                          [](const auto& record) { return record.flags == kEndInferred; }),
            1);
  plugin_->Close(context);
}

TEST_F(PluginTest, EnqueuedOperationsAreNotSupersededWhileNoneEnds) {
  void* context = plugin_->Open(1);
  for (uint64_t sequence = 0; sequence < 600; ++sequence) {
    plugin_->Stop(plugin_->Collective(context, sequence));
  }
  EXPECT_THAT(Read().in_flight, SizeIs(600)) << "a GPU that hangs";
  plugin_->Close(context);
}

TEST_F(PluginTest, FullPoolsDropEvents) {
  void* context = plugin_->Open(1);
  std::vector<void*> held;
  for (uint64_t sequence = 0; sequence < 3000; ++sequence) {
    if (void* operation = plugin_->Collective(context, sequence)) held.push_back(operation);
  }
  EXPECT_EQ(held.size(), agent::kInFlightMax);
  std::vector<void*> proxies;
  for (int i = 0; i < 3000; ++i) {
    if (void* proxy = plugin_->ProxyOperation(context, held[0], 1, true)) proxies.push_back(proxy);
  }
  EXPECT_EQ(proxies.size(), 2048U);
  for (void* event : proxies) plugin_->Stop(event);
  plugin_->Close(context);
  context = plugin_->Open(1);
  plugin_->Run(context, 0);
  EXPECT_EQ(Read().in_flight.size(), 0U);
  plugin_->Close(context);
}

/// One communicator as in NCCL: a calling thread, and a late proxy thread.
void Drive(Plugin& plugin, uint64_t id, int turns, std::atomic<uint64_t>& done) {
  void* context = plugin.Open(id);
  ASSERT_NE(context, nullptr);
  std::deque<void*> queue;
  std::mutex mutex;
  std::atomic<bool> enqueued{false};
  std::thread proxy([&] {
    for (;;) {
      const bool last = enqueued;
      void* operation = nullptr;
      {
        std::lock_guard lock(mutex);
        if (!queue.empty()) {
          operation = queue.front();
          queue.pop_front();
        }
      }
      if (operation == nullptr && last) return;
      if (operation == nullptr) continue;
      void* kernels[] = {plugin.Kernel(context, operation, 0, 5),
                         plugin.Kernel(context, operation, 1, 6)};
      void* transfer = plugin.ProxyOperation(context, operation, 2, true);
      void* step = plugin.ProxyStep(context, transfer, 0);
      plugin.State(step, kSendWait, 10);
      plugin.StopKernel(kernels[0], 9);
      plugin.Stop(step);
      plugin.Stop(transfer);
      plugin.StopKernel(kernels[1], 9);
      ++done;
    }
  });
  for (int turn = 0; turn < turns; ++turn) {
    void* operation = plugin.Collective(context, static_cast<uint64_t>(turn));
    {
      std::lock_guard lock(mutex);
      queue.push_back(operation);
    }
    plugin.Stop(operation);
    // As many as a launch queue has; all of them together fit the table.
    while (done + 200 < static_cast<uint64_t>(turn)) std::this_thread::yield();
  }
  enqueued = true;
  proxy.join();
  plugin.Close(context);
}

TEST_F(PluginTest, ThreadsOfManyCommunicators) {
  constexpr int kCommunicators = 4;
  constexpr int kTurns = 1500;
  agent::RequestSampling(Table(), kCommunicators * kTurns);
  std::vector<std::atomic<uint64_t>> done(kCommunicators);
  std::atomic<int> running{kCommunicators};
  std::vector<std::thread> threads;
  for (int i = 0; i < kCommunicators; ++i) {
    threads.emplace_back([&, i] {
      Drive(*plugin_, static_cast<uint64_t>(i) + 1, kTurns, done[static_cast<size_t>(i)]);
      --running;
    });
  }
  uint64_t ended = 0;
  uint64_t transfers = 0;
  bool last = false;
  for (int quiet = 0; quiet < 3; quiet += last ? 1 : 0) {
    last = running == 0;
    const RankTelemetry seen = Read();
    EXPECT_EQ(seen.gaps.nonsense, 0U);
    EXPECT_EQ(seen.gaps.dropped, 0U);
    for (const CollectiveRecord& record : seen.ended) {
      EXPECT_EQ(record.flags & ~kSampled, 0);
      EXPECT_EQ(record.device_ns, 4U);
    }
    ended += seen.ended.size() + seen.gaps.lost;
    for (const PeerTransfers& sums : seen.peers) transfers += sums.transfers;
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(ended, uint64_t{kCommunicators} * kTurns);
  EXPECT_GT(transfers, 0U);
  EXPECT_THAT(Read().in_flight, IsEmpty());
}

TEST_F(PluginTest, FinalizeWhileEventsStillArrive) {
  for (int round = 0; round < 50; ++round) {
    void* context = plugin_->Open(5);
    std::vector<void*> held;
    for (uint64_t i = 0; i < 20; ++i) held.push_back(plugin_->Collective(context, i));
    std::thread late([&] {
      for (void* operation : held) {
        void* kernel = plugin_->Kernel(context, operation, 0, 1);
        void* step =
            plugin_->ProxyStep(context, plugin_->ProxyOperation(context, operation, 1, true), 0);
        plugin_->State(step, kSendWait, 1);
        plugin_->Stop(step);
        plugin_->StopKernel(kernel, 2);
        plugin_->Stop(operation);
      }
    });
    plugin_->Close(context);
    late.join();
  }
  EXPECT_THAT(Read().in_flight, IsEmpty());
  EXPECT_THAT(Read().communicators, SizeIs(1));
}

TEST_F(PluginTest, LoadedAndUnloadedAgainAndAgain) {
  plugin_.reset();
  for (int round = 0; round < 20; ++round) {
    Plugin plugin;
    void* context = plugin.Open(3);
    ASSERT_NE(context, nullptr);
    plugin.Run(context, 0);
    void* open = plugin.Collective(context, 1);
    plugin.Close(context);
    plugin.Stop(open);
  }
  const RankTelemetry seen = Read();
  EXPECT_THAT(seen.ended, SizeIs(40));
  EXPECT_THAT(seen.in_flight, IsEmpty());
}

TEST_F(PluginTest, WithoutAnAgentRecordsAreDiscarded) {
  agent_->Stop();
  ASSERT_TRUE(Eventually([&] { return !Connected(); }));
  ClientFixture::Close(0);
  void* context = plugin_->Open(1);
  for (uint64_t i = 0; i < 3000; ++i) plugin_->Run(context, i);
  plugin_->Close(context);
}

}  // namespace
}  // namespace holdfast::nccl
