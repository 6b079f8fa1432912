#include "coordinator/server/metrics.h"

#include <algorithm>
#include <future>
#include <map>
#include <set>
#include <string>

#include "coordinator/api/node_warning.h"

namespace holdfast::coord {
namespace {
// The applier answers after the current batch; only a store that hangs makes this take longer.
constexpr auto kQueryTimeout = std::chrono::seconds(2);

using Kind = MetricKind;
constexpr MetricSpec kEpoch{"holdfast_coordinator_epoch", Kind::kGauge,
                            "Starts of a coordinator on this store."};
constexpr MetricSpec kLoaded{
    "holdfast_coordinator_loaded", Kind::kGauge,
    "1: the state is loaded; 0: the store is loading or does not answer, or a violated invariant "
    "stopped the coordinator, and the series below are missing."};
constexpr MetricSpec kNodeUp{
    "holdfast_node_up", Kind::kGauge, "1: the node's agent is attached.", {"node"}};
constexpr MetricSpec kNodeHeld{"holdfast_node_held_bytes",
                               Kind::kGauge,
                               "Shards that the node holds; tier `parity` is parity in memory.",
                               {"node", "tier"}};
constexpr MetricSpec kDiskFree{"holdfast_node_disk_free_ratio",
                               Kind::kGauge,
                               "Free share of the node's data directories, from 0 to 1.",
                               {"node"}};
constexpr MetricSpec kWarnings{
    "holdfast_node_warnings",
    Kind::kGauge,
    "Conditions that the node's agent reports, by health code: `DISK_FULL`, `DISK_FAILED`, "
    "`QUARANTINED_FILES`, `IO_URING_REFUSED`, `KEEPER_LOST`, `KEEPER_SHARED`, `CLOCK_SKEWED`, "
    "`INVARIANT_VIOLATED` or `NODE_WARNING`.",
    {"node", "code"}};
constexpr MetricSpec kOtherLife{
    "holdfast_node_other_life_shards",
    Kind::kGauge,
    "Replicas of the node that belong to another life of the coordinator's store.",
    {"node"}};
constexpr MetricSpec kRefused{"holdfast_coordinator_refused_nodes", Kind::kGauge,
                              "Nodes whose agents the coordinator refuses."};
constexpr MetricSpec kQuarantined{
    "holdfast_node_quarantined", Kind::kGauge, "1: the node gets no workers.", {"node"}};
constexpr MetricSpec kDrained{"holdfast_node_drained",
                              Kind::kGauge,
                              "1: the node is drained ahead of maintenance.",
                              {"node"}};
constexpr MetricSpec kGpuSuspect{
    "holdfast_node_gpu_suspect",
    Kind::kGauge,
    "1: a GPU of the node reported an error that needs a reset or a repair; the node gets workers "
    "only if no other node is available.",
    {"node"}};
constexpr MetricSpec kIncarnation{
    "holdfast_job_incarnation", Kind::kGauge, "Starts of the job so far.", {"holdfast_job"}};
constexpr MetricSpec kJobPhase{
    "holdfast_job_phase",
    Kind::kGauge,
    "1 for the phase that the job is in, 0 for the others: `running`; `ended`: no trainer is left; "
    "`finished`: also, each ended with a goodbye, or the run ended.",
    {"holdfast_job", "phase"}};
constexpr MetricSpec kRanks{
    "holdfast_job_ranks", Kind::kGauge, "Ranks of the job.", {"holdfast_job"}};
constexpr MetricSpec kJoined{"holdfast_job_ranks_joined",
                             Kind::kGauge,
                             "Ranks of the current incarnation that have joined.",
                             {"holdfast_job"}};
constexpr MetricSpec kNewestStep{"holdfast_job_newest_step",
                                 Kind::kGauge,
                                 "Newest step that any rank of the current incarnation has saved.",
                                 {"holdfast_job"}};
constexpr MetricSpec kCommittedStep{"holdfast_job_committed_step",
                                    Kind::kGauge,
                                    "Step of the newest version that is committed at the tier.",
                                    {"holdfast_job", "tier"}};
constexpr MetricSpec kCommittedAge{"holdfast_job_committed_age_seconds",
                                   Kind::kGauge,
                                   "Age of the newest version that is committed at the tier.",
                                   {"holdfast_job", "tier"}};
constexpr MetricSpec kRestorable{"holdfast_job_restorable",
                                 Kind::kGauge,
                                 "1: the newest committed version can be restored now.",
                                 {"holdfast_job"}};
constexpr MetricSpec kRestorableStep{"holdfast_job_restorable_step",
                                     Kind::kGauge,
                                     "Step that a restart would continue from; missing: none.",
                                     {"holdfast_job"}};
constexpr MetricSpec kDurable{
    "holdfast_job_durable",
    Kind::kGauge,
    "0: the newest committed version lacks a tier and no newer version follows; 1: else.",
    {"holdfast_job"}};
constexpr MetricSpec kUnderProtected{
    "holdfast_job_under_protected_versions",
    Kind::kGauge,
    "Versions on disk that lack shards which their parity groups should keep there.",
    {"holdfast_job"}};
constexpr MetricSpec kPending{"holdfast_job_pending_versions",
                              Kind::kGauge,
                              "Versions that are not complete yet.",
                              {"holdfast_job"}};
constexpr MetricSpec kCommitted{"holdfast_job_versions_committed_total",
                                Kind::kCounter,
                                "Versions committed since the coordinator's start.",
                                {"holdfast_job"}};
constexpr MetricSpec kAborted{"holdfast_job_versions_aborted_total",
                              Kind::kCounter,
                              "Versions aborted since the coordinator's start.",
                              {"holdfast_job"}};
constexpr MetricSpec kParityNodes{"holdfast_job_parity_nodes",
                                  Kind::kGauge,
                                  "Nodes that keep parity for the job; 0: no protection.",
                                  {"holdfast_job"}};
constexpr MetricSpec kRunPhase{"holdfast_run_phase",
                               Kind::kGauge,
                               "1 for the phase that the job's newest run is in, 0 for the others.",
                               {"holdfast_job", "phase"}};
constexpr MetricSpec kRestarts{"holdfast_run_restarts_total",
                               Kind::kCounter,
                               "Launches of the newest run after its first.",
                               {"holdfast_job"}};
constexpr MetricSpec kSpares{"holdfast_run_spare_nodes",
                             Kind::kGauge,
                             "Nodes that could replace a node of the run now.",
                             {"holdfast_job"}};
constexpr MetricSpec kWorkers{"holdfast_run_workers",
                              Kind::kGauge,
                              "Workers of the current launch that run.",
                              {"holdfast_job"}};
constexpr MetricSpec kIncidents{"holdfast_incidents",
                                Kind::kGauge,
                                "Stored incidents (the newest 1000). A gauge, since incidents "
                                "change their state and old ones are removed.",
                                {"holdfast_job", "kind", "state"}};
constexpr MetricSpec kDetect{"holdfast_incident_detect_seconds",
                             Kind::kSummary,
                             "Time from the last sign of health to the detection, of the stored "
                             "incidents that led to an action.",
                             {"holdfast_job"}};
constexpr MetricSpec kRecover{"holdfast_incident_recover_seconds",
                              Kind::kSummary,
                              "Time from the last sign of health to the first version committed "
                              "afterwards, of the stored incidents that are over.",
                              {"holdfast_job"}};
constexpr MetricSpec kLostSteps{"holdfast_incident_lost_steps",
                                Kind::kSummary,
                                "Steps that were trained again, of the stored incidents.",
                                {"holdfast_job"}};
constexpr MetricSpec kWatchedJobs{"holdfast_detector_jobs", Kind::kGauge,
                                  "Jobs whose telemetry is watched for faults."};
constexpr MetricSpec kDigests{"holdfast_detector_digests_total", Kind::kCounter,
                              "Telemetry digests accepted from agents."};
constexpr MetricSpec kFaults{"holdfast_detector_faults_total", Kind::kCounter,
                             "Faults detected, each counted once per incarnation."};
constexpr MetricSpec kSuspicions{"holdfast_detector_suspicions_total", Kind::kCounter,
                                 "Hangs suspected, each counted once per incarnation."};
constexpr MetricSpec kSuspected{"holdfast_detector_suspected", Kind::kGauge,
                                "Hangs suspected now: faults if they last."};

constexpr const MetricSpec* kMetricSpecs[] = {
    &kEpoch,        &kLoaded,         &kNodeUp,       &kNodeHeld,    &kDiskFree,
    &kWarnings,     &kOtherLife,      &kRefused,      &kQuarantined, &kDrained,
    &kGpuSuspect,   &kIncarnation,    &kJobPhase,     &kRanks,       &kJoined,
    &kNewestStep,   &kCommittedStep,  &kCommittedAge, &kRestorable,  &kRestorableStep,
    &kDurable,      &kUnderProtected, &kPending,      &kCommitted,   &kAborted,
    &kParityNodes,  &kRunPhase,       &kRestarts,     &kSpares,      &kWorkers,
    &kIncidents,    &kDetect,         &kRecover,      &kLostSteps,   &kWatchedJobs,
    &kDigests,      &kFaults,         &kSuspicions,   &kSuspected,   &kInvariantViolations,
    &kDroppedSeries};

template <typename Number>
double Value(Number number) {
  return static_cast<double>(number);
}

double Seconds(int64_t ms) { return static_cast<double>(ms) / 1e3; }

void ShowNodes(const State& state, MetricsPage& page) {
  page.Set(kRefused, Value(state.Refused().size()));
  for (const NodeStatus& node : state.Nodes()) {
    page.Set(kNodeUp, node.alive ? 1 : 0, {node.name});
    page.Set(kDrained, node.drain ? 1 : 0, {node.name});
    page.Set(kNodeHeld, Value(node.held_memory_bytes), {node.name, "memory"});
    page.Set(kNodeHeld, Value(node.held_parity_bytes), {node.name, "parity"});
    page.Set(kNodeHeld, Value(node.held_disk_bytes), {node.name, "disk"});
    if (!node.alive) continue;  // the agent's last report may be out of date
    std::map<std::string_view, uint64_t> by_code;
    for (const std::string& warning : node.health.warnings) ++by_code[NodeWarningCode(warning)];
    for (const std::string_view code : kNodeWarningCodes) {
      page.Set(kWarnings, Value(by_code[code]), {node.name, code});
    }
    // 0 without a warning: the agent has no data directories.
    if (node.health.disk_free_percent > 0 || by_code["DISK_FULL"] > 0) {
      page.Set(kDiskFree, Value(node.health.disk_free_percent) / 100, {node.name});
    }
    uint64_t others = 0;
    for (const OtherLifeStatus& other : node.other_lives) others += other.shards;
    page.Set(kOtherLife, Value(others), {node.name});
  }
}

void Show(const JobStatus& job, int64_t now_wall_nanos, MetricsPage& page) {
  page.Set(kIncarnation, Value(job.incarnation.value), {job.name});
  page.Set(kJobPhase, job.phase == JobPhase::kRunning ? 1 : 0, {job.name, "running"});
  page.Set(kJobPhase, job.phase == JobPhase::kEnded ? 1 : 0, {job.name, "ended"});
  page.Set(kJobPhase, job.phase == JobPhase::kFinished ? 1 : 0, {job.name, "finished"});
  page.Set(kRanks, job.world, {job.name});
  page.Set(kJoined, job.ranks_joined, {job.name});
  page.Set(kNewestStep, Value(job.newest_seen.value), {job.name});
  for (const TierTraits& traits : kTierTable) {
    const std::optional<VersionId> version = job.committed[traits.tier];
    if (!version) continue;
    const int64_t age = std::max<int64_t>(now_wall_nanos - job.wall_nanos[traits.tier], 0);
    page.Set(kCommittedStep, Value(version->step.value), {job.name, traits.name});
    page.Set(kCommittedAge, Value(age) / 1e9, {job.name, traits.name});
  }
  page.Set(kRestorable, job.restorable && job.not_restorable_why.empty() ? 1 : 0, {job.name});
  if (job.restorable) page.Set(kRestorableStep, Value(job.restorable->step.value), {job.name});
  page.Set(kDurable, job.not_durable_why.empty() ? 1 : 0, {job.name});
  page.Set(kUnderProtected, Value(job.under_protected.size()), {job.name});
  page.Set(kPending, Value(job.pending_versions), {job.name});
  page.Set(kCommitted, Value(job.committed_total), {job.name});
  page.Set(kAborted, Value(job.aborted_total), {job.name});
  page.Set(kParityNodes, job.peer_members, {job.name});
}

void Show(const RunStatus& run, MetricsPage& page) {
  const std::string& job = run.record.spec.job;
  for (auto phase = RunPhase::kWaiting; phase <= RunPhase::kStopped;
       phase = static_cast<RunPhase>(static_cast<uint8_t>(phase) + 1)) {
    page.Set(kRunPhase, run.record.phase == phase ? 1 : 0, {job, ToString(phase)});
  }
  page.Set(kRestarts, run.record.restarts(), {job});
  page.Set(kSpares, Value(run.spares.size()), {job});
  const auto runs = [](const auto& worker) { return worker.second.phase == WorkerPhase::kRunning; };
  page.Set(kWorkers, Value(std::count_if(run.workers.begin(), run.workers.end(), runs)), {job});
}

void ShowIncidents(const Supervisor& supervisor, MetricsPage& page) {
  struct Times {
    std::vector<double> detect;
    std::vector<double> recover;
    std::vector<double> lost_steps;
  };
  std::map<std::string, Times> by_job;
  std::map<std::array<std::string, 3>, uint64_t> counts;
  for (const IncidentRecord& incident : supervisor.Incidents("", 0)) {
    ++counts[{incident.job, incident.kind, std::string(ToString(incident.state))}];
    if (incident.state == IncidentState::kNoted) continue;
    Times& times = by_job[incident.job];
    if (incident.detect_ms) times.detect.push_back(Seconds(*incident.detect_ms));
    if (incident.first_step_ms) times.recover.push_back(Seconds(*incident.first_step_ms));
    if (incident.lost_steps) times.lost_steps.push_back(Value(*incident.lost_steps));
  }
  for (const auto& [labels, count] : counts) {
    page.Set(kIncidents, Value(count), {labels[0], labels[1], labels[2]});
  }
  for (auto& [job, times] : by_job) {
    page.SetSummary(kDetect, std::move(times.detect), {job});
    page.SetSummary(kRecover, std::move(times.recover), {job});
    page.SetSummary(kLostSteps, std::move(times.lost_steps), {job});
  }
}

/// Shows which nodes get no workers: for each of `nodes`, and for all other quarantined or suspect
/// nodes.
void ShowExcluded(const Supervisor& supervisor, std::set<std::string> nodes, MetricsPage& page) {
  std::set<std::string> quarantined;
  for (const QuarantineRecord& record : supervisor.Quarantined()) quarantined.insert(record.node);
  const auto& names = supervisor.Suspects();
  const std::set<std::string> suspects(names.begin(), names.end());
  nodes.insert(quarantined.begin(), quarantined.end());
  nodes.insert(suspects.begin(), suspects.end());
  for (const std::string& node : nodes) {
    page.Set(kQuarantined, quarantined.contains(node) ? 1 : 0, {node});
    page.Set(kGpuSuspect, suspects.contains(node) ? 1 : 0, {node});
  }
}

/// Queries the metrics of the state.
std::future<MetricsPage> QueryApplier(Applier& applier, int64_t now_wall_nanos) {
  struct Answer {
    MetricsPage page{CoordinatorMetrics()};
    std::promise<MetricsPage> promise;
    std::set<std::string> nodes;
  };
  // Shared with the queries, which may be answered after the caller has stopped waiting.
  auto answer = std::make_shared<Answer>();
  const bool accepted =
      applier.Query([answer, now_wall_nanos, &applier](const State* state, Epoch) {
        // A store that hangs leaves the state readable, and nothing is committed.
        const bool works =
            state != nullptr && applier.stopped_why().empty() && applier.busy_for() < kQueryTimeout;
        answer->page.Set(kLoaded, works ? 1 : 0);
        if (!works) return;
        ShowNodes(*state, answer->page);
        for (const NodeStatus& node : state->Nodes()) answer->nodes.insert(node.name);
        const auto jobs = state->Jobs("");
        if (!jobs) return;
        for (const JobStatus& job : *jobs) Show(job, now_wall_nanos, answer->page);
      });
  const bool both = accepted && applier.Query([answer, &applier](const Supervisor* supervisor) {
    if (supervisor != nullptr && applier.stopped_why().empty()) {
      for (const RunStatus& run : supervisor->Runs("")) Show(run, answer->page);
      ShowExcluded(*supervisor, std::move(answer->nodes), answer->page);
      ShowIncidents(*supervisor, answer->page);
    }
    answer->promise.set_value(std::move(answer->page));
  });
  std::future<MetricsPage> known = answer->promise.get_future();
  if (!both) {
    MetricsPage page(CoordinatorMetrics());
    page.Set(kLoaded, 0);
    answer->promise.set_value(std::move(page));
  }
  return known;
}
}  // namespace

MetricSpecs CoordinatorMetrics() { return kMetricSpecs; }

MetricsPage CollectMetrics(Applier& applier, Watcher& watcher, Clock& clock) {
  std::future<MetricsPage> known = QueryApplier(applier, clock.WallNanos());
  MetricsPage page(CoordinatorMetrics());
  if (known.wait_for(kQueryTimeout) == std::future_status::ready) {
    page = known.get();
  } else {
    page.Set(kLoaded, 0);
  }
  page.Set(kEpoch, Value(applier.epoch().value));
  const Watcher::Counts counts = watcher.counts();
  page.Set(kWatchedJobs, Value(counts.jobs));
  page.Set(kDigests, Value(counts.digests));
  page.Set(kFaults, Value(counts.faults));
  page.Set(kSuspicions, Value(counts.suspicions));
  page.Set(kSuspected, Value(counts.suspected));
  return page;
}

}  // namespace holdfast::coord
