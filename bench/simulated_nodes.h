#pragma once

#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/status.h"
#include "bench/simulated_agent.h"

namespace holdfast::bench {

struct LoadOptions {
  uint32_t nodes = 16;
  uint32_t ranks_per_node = 8;
  std::chrono::seconds patience{60};
};

/// Times of one version, in milliseconds.
struct CommitTimes {
  double whole = 0;      // the first report is sent → the last agent has the commit
  double decided = 0;    // the last report is sent → the first agent has the commit
  double announced = 0;  // the last report is sent → the last agent has the commit
};

/// Telemetry of all agents.
struct TelemetryLoad {
  uint64_t digests = 0;
  uint64_t messages = 0;
};

/// All simulated agents of a job, on gRPC's threads and one more that lets time pass for them.
/// Thread-compatible.
class SimulatedNodes : private LoadObserver {
 public:
  /// The agents are distributed evenly over the endpoints.
  SimulatedNodes(const std::vector<Endpoint>& endpoints, const LoadOptions& options);
  ~SimulatedNodes() override;
  SimulatedNodes(const SimulatedNodes&) = delete;
  SimulatedNodes& operator=(const SimulatedNodes&) = delete;

  /// Waits until all agents are attached. DeadlineExceeded: how many are not.
  Status AwaitAttached();
  /// Waits until at least one agent has lost its stream.
  Status AwaitDetached();
  /// Joins all ranks and waits for them.
  Status Join();
  /// All ranks save this step: every node sends one report. Waits until every agent has the commit.
  Result<CommitTimes> Commit(uint64_t step);
  /// All ranks save this step. Does not wait.
  void Save(uint64_t step);
  Status AwaitCommit(uint64_t step);
  /// Each agent makes this many telemetry digests a second for the time, and sends them as often as
  /// the coordinator asks for.
  TelemetryLoad Observe(double per_second, std::chrono::milliseconds time);
  uint32_t world() const { return options_.nodes * options_.ranks_per_node; }

 private:
  void OnAttached() override;
  void OnDetached() override;
  void OnJoined() override;
  void OnCommitted(uint64_t step) override;
  void OnReportSent(uint64_t step) override;
  void OnRefused(const std::string& what) override;
  void Run();
  /// DeadlineExceeded, with `what`, the counts and the last refusal, when `done` stays false.
  template <typename Done>
  Status Await(const std::string& what, const Done& done);

  const LoadOptions options_;
  std::mutex mutex_;
  std::condition_variable changed_;
  uint32_t attached_ = 0;
  uint32_t joined_ = 0;
  uint64_t step_ = 0;       // the newest that was saved
  uint32_t sent_ = 0;       // agents that have sent the report of step_
  uint32_t committed_ = 0;  // agents that have the commit of step_
  std::chrono::steady_clock::time_point last_sent_;
  std::chrono::steady_clock::time_point first_committed_;
  std::chrono::steady_clock::time_point last_committed_;
  std::string refused_;
  bool stopping_ = false;

  std::vector<std::unique_ptr<SimulatedAgent>> agents_;
  std::thread thread_;
};

}  // namespace holdfast::bench
