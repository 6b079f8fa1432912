// The cost of one recorded event for the training: a begin or an end of a collective, a transfer, a
// step, and an event of NCCL through the plugin, into the table of a live agent.

#include <dlfcn.h>
#include <fmt/format.h>
#include <unistd.h>

#include <ctime>
#include <thread>

#include "bench/bench.h"
#include "bench/live_client.h"
#include "client/nccl/profiler_abi.h"

namespace holdfast::bench {
namespace {

constexpr int kRounds = 9;

struct Loop {
  std::string name;
  std::string what;
  int events;                         // per turn
  std::function<void(uint64_t)> run;  // runs the given number of turns
};

/// Returns this thread's CPU time, which excludes other work on the machine.
double ThreadNs() {
  timespec now{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) * 1e9 + static_cast<double>(now.tv_nsec);
}

/// The lower bound for the cost of an event: each event reads the clock.
void ReadClock(uint64_t turns) {
  for (uint64_t i = 0; i < turns; ++i) {
    timespec now{};
    ::clock_gettime(CLOCK_MONOTONIC, &now);
  }
}

/// Returns the medians of several rounds, which alternate with plain reads of the clock.
BenchResult Measure(const Loop& loop, uint64_t turns, int threads) {
  std::vector<double> rounds;
  std::vector<double> clock;
  for (int round = 0; round < kRounds; ++round) {
    const double start = ThreadNs();
    ReadClock(turns);
    clock.push_back((ThreadNs() - start) / static_cast<double>(turns));
    std::vector<std::thread> others;
    for (int i = 1; i < threads; ++i) others.emplace_back([&] { loop.run(turns); });
    const double before = ThreadNs();
    loop.run(turns);
    const double ns = ThreadNs() - before;
    for (std::thread& other : others) other.join();
    rounds.push_back(ns / static_cast<double>(turns) / loop.events);
  }
  return {.name = loop.name,
          .ratio = Median(rounds) / Median(clock),
          .ours = Median(rounds),
          .reference = Median(clock),
          .unit = "ns/event",
          .goal = "<=100 ns",
          .note = loop.what + "; ÷ a plain read of the clock"};
}

/// The profiler plugin from the folder of this program's libraries, called as NCCL calls it.
struct Plugin {
  void* context = nullptr;
  const nccl::ProfilerV5* calls = nullptr;
  int mask = 0;

  bool Open() {
    const std::string name = "libnccl-profiler-holdfast.so";
    void* library = ::dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
      library = ::dlopen((local::BinaryDir() + "/../lib/" + name).c_str(), RTLD_NOW | RTLD_LOCAL);
    }
    if (library == nullptr) return false;
    calls = static_cast<const nccl::ProfilerV5*>(::dlsym(library, "ncclProfiler_v5"));
    return calls != nullptr && calls->init(&context, 7, &mask, "", 1, 2, 0, nullptr) == 0;
  }

  /// A collective on one channel: start, kernel start, kernel stop (two calls), stop.
  void Turn(uint64_t sequence) const {
    nccl::EventV5 event{};
    event.type = nccl::kCollective;
    event.fields.collective.sequence = sequence;
    event.fields.collective.function = "AllReduce";
    event.fields.collective.count = 1024;
    event.fields.collective.datatype = "ncclFloat32";
    event.fields.collective.channels = 1;
    event.fields.collective.algorithm = "RING";
    event.fields.collective.protocol = "SIMPLE";
    void* operation = nullptr;
    calls->start(context, &operation, &event);
    event.type = nccl::kKernelChannel;
    event.parent = operation;
    event.fields.kernel_channel = {0, 1};
    void* kernel = nullptr;
    calls->start(context, &kernel, &event);
    calls->stop(operation);
    nccl::StateArguments arguments{.timer_ns = 2};
    calls->state(kernel, nccl::kKernelChannelStop, &arguments);
    calls->stop(kernel);
  }
};

}  // namespace

Result<std::vector<BenchResult>> RunRecord(const BenchOptions& options) {
  HOLDFAST_ASSIGN_OR_RETURN(LiveClient live, LiveClient::Start(options.dir, 1 << 20, 1, 1));
  HOLDFAST_ASSIGN_OR_RETURN(v1::Client client, live.Open("record"));
  holdfast_client* raw = client.get();
  holdfast_collective collective{};
  collective.struct_size = sizeof collective;
  collective.bytes = 1024;
  collective.kind = HOLDFAST_ALL_REDUCE;
  holdfast_transfer transfer{};
  transfer.struct_size = sizeof transfer;
  transfer.bytes = 1024;
  Plugin plugin;

  const Loop operation = {
      "record_collective", "a begin or an end, one thread", 2, [&](uint64_t turns) {
        for (uint64_t i = 0; i < turns; ++i) {
          holdfast_collective_end(raw, holdfast_collective_begin(raw, &collective));
        }
      }};
  std::vector<Loop> loops = {operation,
                             {"record_transfer", "one transfer total of a peer", 1,
                              [&](uint64_t turns) {
                                for (uint64_t i = 0; i < turns; ++i)
                                  holdfast_peer_transfer(raw, &transfer);
                              }},
                             {"record_step", "one step", 1, [&](uint64_t turns) {
                                static uint64_t step = 0;
                                for (uint64_t i = 0; i < turns; ++i) holdfast_step(raw, ++step);
                              }}};
  if (plugin.Open()) {
    loops.push_back({"record_nccl", "one of NCCL's 5 calls for a collective on one channel", 5,
                     [&](uint64_t turns) {
                       for (uint64_t i = 0; i < turns; ++i) plugin.Turn(i);
                     }});
  }
  const uint64_t turns = options.quick ? 20'000 : 200'000;
  std::vector<BenchResult> results;
  for (const Loop& loop : loops) results.push_back(Measure(loop, turns, 1));
  // Two threads share the table's counters, and on this machine two cores.
  results.push_back(Measure({"record_two_threads", "a begin or an end, two concurrent threads",
                             operation.events, operation.run},
                            turns, 2));
  if (plugin.context != nullptr) plugin.calls->finalize(plugin.context);
  return results;
}

}  // namespace holdfast::bench
