#include <fmt/format.h>
#include <stdlib.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <mutex>
#include <thread>
#include <vector>

#include "base/log.h"
#include "coordinator/api/channel.h"
#include "coordinator/api/convert.h"
#include "coordinator/api/coordinator.grpc.pb.h"
#include "coordinator/server/coordinator_server.h"
#include "coordinator/store/rocks_store.h"

// holdfast-coordinator-bench [--quick] [--dir DIR]
//
// Commits of the real coordinator (gRPC over a Unix socket, RocksDB with synced writes), compared
// with plain synced writes of the same records into a second RocksDB, alternating. Prints one JSON
// object per line.

namespace holdfast::coord {
namespace {
using SteadyClock = std::chrono::steady_clock;
constexpr char kJob[] = "bench";

double MillisSince(SteadyClock::time_point start) {
  return std::chrono::duration<double, std::milli>(SteadyClock::now() - start).count();
}

/// One node's agent: reports its ranks' shards and receives commits.
class BenchAgent {
 public:
  BenchAgent(const Endpoint& endpoint, std::string node) : node_(std::move(node)) {
    stub_ = coordinator::Coordinator::NewStub(*MakeChannel(endpoint, {}));
  }
  ~BenchAgent() {
    context_.TryCancel();
    if (thread_.joinable()) thread_.join();
  }

  void Attach() {
    pb::AttachRequest request;
    request.set_cluster("bench");
    request.set_node(node_);
    request.set_agent_start(1);
    request.set_data_address("unix:/tmp/none");
    thread_ = std::thread([this, request] {
      auto reader = stub_->Attach(&context_, request);
      pb::Directive directive;
      while (reader->Read(&directive)) {
        if (!directive.has_job()) continue;
        std::lock_guard lock(mutex_);
        committed_ = directive.job().memory_committed().step();
        commit_received_.notify_all();
      }
      reader->Finish();
    });
  }
  bool Join(uint32_t rank, uint32_t world) {
    pb::JoinRequest request;
    request.set_node(node_);
    request.set_agent_start(1);
    request.set_job(kJob);
    request.set_run_id("run");
    request.set_rank(rank);
    request.set_world(world);
    for (int attempt = 0; attempt < 500; ++attempt) {
      grpc::ClientContext context;
      context.set_wait_for_ready(true);
      pb::JoinReply reply;
      if (stub_->Join(&context, request, &reply).ok() && reply.outcome().code() == 0) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(10));  // until Attach has arrived
    }
    return false;
  }
  bool Report(uint64_t epoch, uint64_t step, uint32_t first_rank, uint32_t ranks, uint32_t world) {
    pb::ReportRequest request;
    request.set_node(node_);
    request.set_agent_start(1);
    request.set_epoch(epoch);
    for (uint32_t rank = first_rank; rank < first_rank + ranks; ++rank) {
      ToProto(StoredReplica{kJob,
                            {Incarnation{1}, Step{step}},
                            Rank{rank},
                            world,
                            Tier::kMemory,
                            step * 0x9e3779b97f4a7c15 + rank,
                            1 << 30},
              request.add_replicas());
    }
    grpc::ClientContext context;
    pb::ReportReply reply;
    return stub_->Report(&context, request, &reply).ok() && reply.outcome().code() == 0;
  }
  void AwaitCommit(uint64_t step) {
    std::unique_lock lock(mutex_);
    commit_received_.wait(lock, [&] { return committed_ >= step; });
  }

 private:
  const std::string node_;
  std::unique_ptr<coordinator::Coordinator::Stub> stub_;
  grpc::ClientContext context_;
  std::thread thread_;
  std::mutex mutex_;
  std::condition_variable commit_received_;
  uint64_t committed_ = 0;
};

struct Series {
  std::vector<double> millis;
  double Sum() const {
    double sum = 0;
    for (double m : millis) sum += m;
    return sum;
  }
  double Quantile(double q) const {
    std::vector<double> sorted = millis;
    std::sort(sorted.begin(), sorted.end());
    return sorted[std::min(sorted.size() - 1,
                           static_cast<size_t>(q * static_cast<double>(sorted.size())))];
  }
};

void Print(const std::string& name, double ours, double reference, const char* unit,
           const char* goal) {
  std::printf(
      "{\"name\": \"%s\", \"ratio\": %.3f, \"ours\": %.3f, \"reference\": %.3f, \"unit\": \"%s\", "
      "\"goal\": \"%s\"}\n",
      name.c_str(), ours / reference, ours, reference, unit, goal);
  std::fflush(stdout);
}

/// Runs one step: all nodes report concurrently. Returns when the last node has received the
/// commit.
bool CommitStep(std::vector<std::unique_ptr<BenchAgent>>& agents, uint64_t epoch, uint64_t step,
                uint32_t ranks_per_node, uint32_t world) {
  std::vector<std::thread> threads;
  std::atomic<bool> good{true};
  // One machine simulates all nodes: a few threads report for many nodes.
  const size_t workers = std::min<size_t>(agents.size(), 4);
  for (size_t w = 0; w < workers; ++w) {
    threads.emplace_back([&, w] {
      for (size_t i = w; i < agents.size(); i += workers) {
        const uint32_t first = static_cast<uint32_t>(i) * ranks_per_node;
        if (!agents[i]->Report(epoch, step, first, ranks_per_node, world)) good = false;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  if (!good) return false;
  for (auto& agent : agents) agent->AwaitCommit(step);
  return true;
}

bool PlainPut(MetaStore& store, uint64_t step, const std::string& value) {
  const Mutation mutation{fmt::format("version/bench/{:016x}", step), value};
  return store.Commit({}, {&mutation, 1}).value_or(false);
}

Status Measure(const std::string& dir, uint32_t nodes, uint32_t ranks_per_node, uint64_t steps) {
  const uint32_t world = nodes * ranks_per_node;
  CoordinatorConfig config;
  config.cluster = "bench";
  config.listen = "unix:" + dir + "/c.sock";
  config.data_dir = dir + "/data";
  config.node_lease_ms = 600'000;
  HOLDFAST_ASSIGN_OR_RETURN(auto server, CoordinatorServer::Start(config, Clock::Real()));
  HOLDFAST_ASSIGN_OR_RETURN(auto plain, RocksStore::Open(dir + "/plain"));
  std::vector<std::unique_ptr<BenchAgent>> agents;
  for (uint32_t i = 0; i < nodes; ++i) {
    agents.push_back(std::make_unique<BenchAgent>(server->endpoint(), fmt::format("n{}", i)));
    agents.back()->Attach();
  }
  for (uint32_t rank = 0; rank < world; ++rank) {
    if (!agents[rank / ranks_per_node]->Join(rank, world)) return InternalError("a join failed");
  }
  const std::string value(64 + 8 * world, 'x');  // the size of a version's record
  Series ours;
  Series reference;
  const uint64_t warm_up = 5;
  for (uint64_t step = 1; step <= steps + warm_up; ++step) {
    auto start = SteadyClock::now();
    if (!CommitStep(agents, server->epoch().value, step, ranks_per_node, world)) {
      return InternalError("a report failed");
    }
    const double commit = MillisSince(start);
    start = SteadyClock::now();
    if (!PlainPut(*plain, step, value)) return InternalError("a plain write failed");
    if (step <= warm_up) continue;
    ours.millis.push_back(commit);
    reference.millis.push_back(MillisSince(start));
  }
  const double count = static_cast<double>(steps);
  const std::string name = fmt::format("coordinator_commit_{}_ranks", world);
  Print(name + "_rate", 1000 * count / ours.Sum(), 1000 * count / reference.Sum(), "1/s", "");
  Print(name + "_p50", ours.Quantile(0.5), reference.Quantile(0.5), "ms", "");
  Print(name + "_p99", ours.Quantile(0.99), reference.Quantile(0.99), "ms", "");
  return Status::Ok();
}
}  // namespace
}  // namespace holdfast::coord

int main(int argc, char** argv) {
  bool quick = false;
  std::string base = std::filesystem::temp_directory_path().string();
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--quick") == 0) {
      quick = true;
    } else if (std::strcmp(argv[i], "--dir") == 0 && i + 1 < argc) {
      base = argv[++i];
    } else {
      std::fprintf(stderr, "usage: holdfast-coordinator-bench [--quick] [--dir DIR]\n");
      return 64;
    }
  }
  holdfast::ConfigureLog("bench", holdfast::LogLevel::kWarn);
  struct {
    uint32_t nodes, ranks_per_node;
    uint64_t steps;
  } const sizes[] = {{4, 1, quick ? 100U : 500U}, {64, 16, quick ? 30U : 200U}};
  for (const auto& size : sizes) {
    std::string dir = base + "/coordinator-bench-XXXXXX";
    if (::mkdtemp(dir.data()) == nullptr) {
      std::perror(dir.c_str());
      return 1;
    }
    holdfast::Status status =
        holdfast::coord::Measure(dir, size.nodes, size.ranks_per_node, size.steps);
    std::filesystem::remove_all(dir);
    if (!status.ok()) {
      std::fprintf(stderr, "holdfast-coordinator-bench: %s\n", status.ToString().c_str());
      return 1;
    }
  }
  return 0;
}
