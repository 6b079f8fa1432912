#pragma once

#include <span>
#include <string>
#include <vector>

#include "coordinator/restart/run_queries.h"
#include "coordinator/restart/run_table.h"

namespace holdfast::coord {

/// Runs jobs: places workers, detects lost workers and nodes, and restarts jobs after such a loss
/// or a hang. Pure like State: Supervisor receives the same events together with State's effects,
/// and its own effects are stored and sent with State's. Each launch has a run ID. State opens an
/// incarnation for it when the first rank joins, which fences the previous launch.
///
/// This class keeps the table and passes each event to the module that handles it; README.md lists
/// the modules. After an event to which runs may have to react, every run is advanced.
/// Thread-compatible.
class Supervisor {
 public:
  Supervisor(const SupervisorOptions& options, const Records& records, Instant at);

  /// Call after State::Apply(event), with the effects of that call.
  std::vector<Effect> Observe(const Event& event, std::span<const Effect> effects, Instant at);
  /// The same after State::FinishBatch().
  std::vector<Effect> Observe(std::span<const Effect> effects, Instant at);
  std::vector<Effect> Apply(const RunEvent& event, Instant at);

  /// Returns the runs of one job, or of all jobs if `job` is empty.
  std::vector<RunStatus> Runs(const std::string& job) const;
  /// Returns incidents, newest first. An empty `job` and `id` 0 match all.
  std::vector<IncidentRecord> Incidents(const std::string& job, uint64_t id) const;
  std::vector<QuarantineRecord> Quarantined() const;
  /// Returns, by node, the number of the self-test that precedes its release.
  const std::map<std::string, uint64_t>& SelfTests() const { return table_.self_tests; }
  /// Returns the scores of repeat offenders: BlamedNodes().
  std::map<std::string, uint32_t> Blamed() const;
  /// Returns the nodes with a GPU that needs a reset or a repair, unless an operator released them.
  std::vector<std::string> Suspects() const;

 private:
  SupervisorOptions options_;
  Instant at_;  // of the last event
  RunTable table_;
};

}  // namespace holdfast::coord
