#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <csignal>
#include <cstring>

#include "coordinator/restart/supervisor.h"

// How launches fail, and the incidents that record it.

namespace holdfast::coord {
namespace {
constexpr size_t kEvidenceMax = 32;
constexpr size_t kShownLines = 8;
constexpr size_t kShownBytesMax = 1024;
constexpr auto kRepeatWindow = std::chrono::minutes(10);

std::string EndText(const WorkerState& worker) {
  if (worker.phase == WorkerPhase::kStuck) return "still exists after SIGKILL";
  if (worker.signal != 0) {
    const char* name = sigabbrev_np(worker.signal);
    return fmt::format("was killed by signal {} (SIG{})", worker.signal,
                       name == nullptr ? "?" : name);
  }
  return fmt::format("ended with exit code {}", worker.exit_code);
}

/// Returns how a worker ended if the program itself may be the cause; empty if it was killed.
std::string OwnExit(const WorkerState& worker) {
  if (worker.phase != WorkerPhase::kEnded) return "";
  switch (worker.signal) {
    case 0:
      return fmt::format("exit code {}", worker.exit_code);
    case SIGABRT:
    case SIGBUS:
    case SIGFPE:
    case SIGILL:
    case SIGSEGV:
    case SIGSYS:
    case SIGTRAP:
      return fmt::format("signal {}", worker.signal);
    default:
      return "";
  }
}

/// Returns the last lines of a worker's output, at most kShownLines and about kShownBytesMax bytes.
std::string TailOf(const std::string& text) {
  size_t begin = text.find_last_not_of('\n');
  if (begin == std::string::npos) return "";
  const size_t end = begin + 1;
  for (size_t lines = 0; begin > 0 && end - begin < kShownBytesMax; --begin) {
    if (text[begin - 1] == '\n' && ++lines == kShownLines) break;
  }
  return text.substr(begin, end - begin);
}

bool IsFailure(const WorkerState& worker) {
  return worker.phase == WorkerPhase::kStuck || worker.exit_code != 0 || worker.signal != 0;
}

int64_t Milliseconds(Clock::Duration time) {
  return std::chrono::duration_cast<std::chrono::milliseconds>(time).count();
}
}  // namespace

void Supervisor::FindFailure(Run& run) {
  std::optional<Failure> failure;
  if (at_.now >= grace_until_) failure = FindLostNode(run);
  if (!failure) {
    const bool died = std::any_of(run.ended.begin(), run.ended.end(),
                                  [](const auto& entry) { return IsFailure(entry.second); });
    if (died && !run.first_failure_at) run.first_failure_at = at_.now;
    // Ranks that lose a neighbour end too, so an unresponsive node is given time to count as lost.
    // A rank that a signal killed is the cause in any case.
    const bool killed = std::any_of(run.ended.begin(), run.ended.end(),
                                    [](const auto& entry) { return entry.second.signal != 0; });
    const bool settled = run.first_failure_at && at_.now - *run.first_failure_at >= options_.settle;
    if (killed || (settled && !AnyNodeUnresponsive(run))) {
      failure = FindWorkerFailure(run);
    }
  }
  if (failure) Fail(run, *std::move(failure));
}

/// Returns whether a node of the launch is silent or has lost its stream. Such a node may be the
/// cause why workers elsewhere exited.
bool Supervisor::AnyNodeUnresponsive(const Run& run) const {
  return std::any_of(run.record.nodes.begin(), run.record.nodes.end(), [&](const auto& name) {
    const Node& node = nodes_.at(name);
    return node.attached &&
           (node.stream_ended || at_.now - node.last_contact > options_.heartbeat_late_after);
  });
}

/// Marks nodes that were lost within one lease of each other: they share a cause and probably come
/// back. The mark stays on the other nodes when the first one is back.
void Supervisor::MarkLostTogether(Node& lost) {
  lost.lost_together = false;
  for (auto& [name, other] : nodes_) {
    const bool with_it = &other != &lost && !other.attached && other.attach != 0 &&
                         lost.state_since - other.state_since <= options_.node_lease;
    if (with_it) other.lost_together = lost.lost_together = true;
  }
}

Clock::Duration Supervisor::PatienceFor(const Node& node) const {
  return node.silent || node.lost_together ? options_.replace_silent_after : options_.replace_after;
}

/// Returns a failure if a node of the launch has been lost for too long, or has not started its
/// workers.
std::optional<Supervisor::Failure> Supervisor::FindLostNode(const Run& run) const {
  for (uint32_t i = 0; i < run.record.nodes.size(); ++i) {
    const std::string& name = run.record.nodes[i];
    const Node& node = nodes_.at(name);
    const uint32_t first = i * run.record.spec.ranks_per_node;
    uint32_t missing = 0;
    Failure failure;
    for (uint32_t k = 0; k < run.record.spec.ranks_per_node; ++k) {
      const Rank rank{first + k};
      const bool known =
          std::any_of(node.workers.begin(), node.workers.end(), [&](const WorkerState& worker) {
            return worker.rank == rank && worker.run_id == run.record.run_id() &&
                   worker.job == run.record.spec.job;
          });
      if (known || run.ended.count(rank) != 0) continue;
      ++missing;
      failure.ranks.push_back(rank);
    }
    if (missing == 0) continue;
    failure.nodes = {name};
    // Waiting for the node is pointless once the launch has failed.
    const auto last_seen = std::min(node.last_contact, node.state_since);
    const Clock::Duration away = at_.now - last_seen;
    const auto progress = progress_.find(run.record.spec.job);
    const bool moving = progress != progress_.end() &&
                        at_.now - progress->second.sealed_at < options_.replace_after &&
                        away < options_.replace_moving_after;
    const bool due = run.first_failure_at || (away >= PatienceFor(node) && !moving);
    if (!node.attached && due) {
      failure.kind = "node lost";
      failure.what = fmt::format("node {} is out of reach, with {} rank{} of the job", name,
                                 missing, missing == 1 ? "" : "s");
      failure.evidence.push_back(
          fmt::format("no message from its agent for {} ms", Milliseconds(away)));
      failure.healthy_until = last_seen;
      return failure;
    }
    const auto requested_at = std::max(run.launched_at, node.state_since);
    if (node.attached && at_.now - requested_at >= options_.launch_timeout) {
      failure.kind = "not started";
      failure.what = fmt::format("node {} has not started {} rank{} of the launch", name, missing,
                                 missing == 1 ? "" : "s");
      failure.evidence.push_back(
          fmt::format("{} ms since the directive", Milliseconds(at_.now - requested_at)));
      failure.healthy_until = requested_at;
      failure.avoid_nodes = true;
      return failure;
    }
  }
  return std::nullopt;
}

/// Returns the failure of the launch if a worker failed. The cause is the first worker that a
/// signal killed, or else the first to end; the others become evidence. The order of ends within a
/// millisecond is unreliable, but a worker that exits on its own needed time to do it, so a killed
/// one comes first.
std::optional<Supervisor::Failure> Supervisor::FindWorkerFailure(const Run& run) const {
  std::vector<const WorkerState*> failed;
  for (const auto& [rank, worker] : run.ended) {
    if (IsFailure(worker)) failed.push_back(&worker);
  }
  if (failed.empty()) return std::nullopt;
  // All ends were reported within the settle time; each node measures how long ago its workers
  // ended. A failed GPU takes precedence: it also explains workers that were killed because its
  // rank failed.
  const auto node_of = [&run](const WorkerState* worker) -> const std::string& {
    return run.record.nodes[worker->rank.value / run.record.spec.ranks_per_node];
  };
  std::stable_sort(failed.begin(), failed.end(), [&](const WorkerState* a, const WorkerState* b) {
    const bool reason = HardwareFailedRecently(node_of(a));
    if (reason != HardwareFailedRecently(node_of(b))) return reason;
    if ((a->signal != 0) != (b->signal != 0)) return a->signal != 0;
    return a->ended_ago_ms > b->ended_ago_ms;
  });
  const WorkerState& first = *failed.front();
  const std::string& node = node_of(&first);
  Failure failure;
  failure.kind = first.phase == WorkerPhase::kStuck ? "worker stuck" : "worker died";
  failure.what = fmt::format("rank {} on node {} {}", first.rank.value, node, EndText(first));
  failure.ranks = {first.rank};
  failure.nodes = {node};
  failure.avoid_nodes = first.phase == WorkerPhase::kStuck;
  failure.healthy_until = *run.first_failure_at -
                          std::chrono::milliseconds(std::min<int64_t>(first.ended_ago_ms, 60'000));
  failure.own_exit = OwnExit(first);
  failure.last_lines = TailOf(first.last_lines);
  if (!first.last_lines.empty()) {
    failure.evidence.push_back("its last lines:\n" + first.last_lines);
  }
  for (size_t i = 1; i < failed.size() && i < kEvidenceMax; ++i) {
    failure.evidence.push_back(
        fmt::format("rank {} {}, {} ms later", failed[i]->rank.value, EndText(*failed[i]),
                    std::max<int64_t>(first.ended_ago_ms - failed[i]->ended_ago_ms, 0)));
  }
  return failure;
}

void Supervisor::Fail(Run& run, Failure failure) {
  AddGpuErrors(run.record.nodes, failure);
  IncidentRecord& incident = OpenIncident(run.record.spec.job, failure);
  if (run.committed) run.own_exits.clear();
  if (!failure.own_exit.empty()) {
    run.own_exits.push_back({failure.nodes.front(), failure.own_exit, run.incarnation.value != 0});
  }
  Strike(run, failure);
  if (failure.avoid_nodes) run.avoid.insert(failure.nodes.begin(), failure.nodes.end());
  // Trying another node shows whether the node or the job is at fault.
  if (!run.record.saved) {
    for (const Run::OwnExit& end : run.own_exits) run.avoid.insert(end.node);
  }
  run.first_failure_at.reset();
  if (const std::string why = NoRestartLeft(run); !why.empty()) {
    incident.plan = "none: " + why;
    StoreIncident(incident, true);
    std::string text = failure.what + "; " + why;
    if (!failure.last_lines.empty()) text += "; its last lines:\n" + failure.last_lines;
    return End(run, RunPhase::kFailed, std::move(text));
  }
  ++run.record.budget_used;
  StoreIncident(incident, true);
  const bool stopping = run.record.phase == RunPhase::kStopping;
  run.record.phase = RunPhase::kWaiting;
  run.record.why = failure.what;
  run.not_before = at_.now;
  if (!run.committed && run.record.fruitless > 1) {
    const uint32_t doublings = std::min(run.record.fruitless - 2, 16U);
    run.not_before +=
        std::min<Clock::Duration>(options_.backoff_first * (1U << doublings), options_.backoff_max);
  }
  if (stopping) return End(run, RunPhase::kStopped, failure.what + " while the job was stopping");
  // A directive with a new run ID makes the nodes stop the old workers first. Without a new launch
  // they get a directive to stop.
  if (at_.now >= run.not_before) TryLaunch(run);
  if (run.record.phase != RunPhase::kWaiting) return;
  Store(run);
  SendWorkersToNodes(run);
}

/// Returns whether the job itself is the cause: several launches in a row exited on their own
/// before any progress, so another node would not help.
bool Supervisor::IsJobFault(const Run& run) const {
  if (run.own_exits.size() < options_.strikes_max) return false;
  if (!run.record.saved) return true;
  const std::span last(run.own_exits.end() - options_.strikes_max, run.own_exits.end());
  return std::all_of(last.begin(), last.end(),
                     [](const Run::OwnExit& end) { return !end.joined; }) &&
         std::any_of(last.begin(), last.end(),
                     [&last](const Run::OwnExit& end) { return end.node != last.front().node; });
}

/// Returns why the run must not restart; empty if it may.
std::string Supervisor::NoRestartLeft(const Run& run) const {
  const RunSpec& spec = run.record.spec;
  if (run.record.budget_used >= spec.restarts_max) {
    return fmt::format("all {} restarts are used up", spec.restarts_max);
  }
  if (!IsJobFault(run)) return "";
  std::set<std::string> nodes;
  for (const Run::OwnExit& end : run.own_exits) nodes.insert(end.node);
  return fmt::format(
      "{} launches in a row exited on their own on {} before {}: the cause is the "
      "job, no node is blamed",
      run.own_exits.size(), fmt::join(nodes, ", "),
      run.record.saved ? "a rank joined" : "anything was saved");
}

void Supervisor::Strike(Run& run, const Failure& failure) {
  if (run.committed) run.strikes.clear();
  if (!failure.own_exit.empty()) {
    if (!run.record.saved) return;
    // The same exit on several nodes is not the fault of any of them.
    const auto elsewhere = [&failure](const Run::OwnExit& end) {
      return end.node != failure.nodes.front() && end.how == failure.own_exit;
    };
    if (std::any_of(run.own_exits.begin(), run.own_exits.end(), elsewhere)) return;
  }
  for (const std::string& node : failure.nodes) {
    const bool stuck = failure.kind == "worker stuck";
    if (++run.strikes[node] < options_.strikes_max && !stuck) continue;
    if (quarantine_.count(node) != 0) continue;
    QuarantineRecord record{node, failure.what, at_.wall_nanos};
    quarantine_[node] = record;
    effects_.emplace_back(PutQuarantine{std::move(record)});
  }
}

// ---- incidents ----

IncidentRecord& Supervisor::OpenIncident(const std::string& job, const Failure& failure) {
  IncidentRecord incident;
  incident.id = next_incident_++;
  incident.job = job;
  incident.detect_ms = std::max<int64_t>(Milliseconds(at_.now - failure.healthy_until), 0);
  incident.wall_nanos = at_.wall_nanos - incident.detect_ms * 1'000'000;
  incident.kind = failure.kind;
  incident.what = failure.what;
  incident.evidence = failure.evidence;
  if (incident.evidence.size() > kEvidenceMax) incident.evidence.resize(kEvidenceMax);
  incident.ranks = failure.ranks;
  incident.nodes = failure.nodes;
  while (incidents_.size() >= options_.incidents_max) {
    effects_.emplace_back(EraseIncident{incidents_.begin()->first});
    incidents_.erase(incidents_.begin());
  }
  return incidents_[incident.id] = std::move(incident);
}

/// Records an incident that needs no action now. Ignores a repetition within kRepeatWindow.
void Supervisor::Note(const std::string& job, const Failure& failure, const std::string& plan) {
  for (auto it = incidents_.rbegin(); it != incidents_.rend(); ++it) {
    const IncidentRecord& incident = it->second;
    if (at_.wall_nanos - incident.wall_nanos > std::chrono::nanoseconds(kRepeatWindow).count())
      break;
    if (incident.job == job && incident.what == failure.what) return;
  }
  IncidentRecord& incident = OpenIncident(job, failure);
  incident.plan = plan;
  incident.state = IncidentState::kNoted;
  StoreIncident(incident, true);
}

void Supervisor::StoreIncident(const IncidentRecord& incident, bool opened) {
  effects_.emplace_back(PutIncident{incident, opened});
}

int64_t Supervisor::MsSince(const IncidentRecord& incident) const {
  return std::max<int64_t>((at_.wall_nanos - incident.wall_nanos) / 1'000'000, 0);
}

/// Sets `time` of the job's open incidents, unless it is set: the event that they waited for has
/// happened.
void Supervisor::MarkIncidents(const std::string& job, int64_t IncidentRecord::*time) {
  for (auto& [id, incident] : incidents_) {
    if (incident.job != job || incident.state != IncidentState::kOpen || incident.*time >= 0) {
      continue;
    }
    incident.*time = MsSince(incident);
    StoreIncident(incident, false);
  }
}

void Supervisor::CloseIncidents(const std::string& job, IncidentState state) {
  for (auto& [id, incident] : incidents_) {
    if (incident.job != job || incident.state != IncidentState::kOpen) continue;
    incident.state = state;
    StoreIncident(incident, false);
  }
}

bool Supervisor::OldWorkersRun(const Run& run) const {
  const std::string run_id = run.record.run_id();
  for (const auto& [name, node] : nodes_) {
    for (const WorkerState& worker : node.workers) {
      const bool old = run.record.phase == RunPhase::kWaiting || worker.run_id != run_id;
      if (worker.job == run.record.spec.job && old && worker.phase != WorkerPhase::kEnded) {
        return true;
      }
    }
  }
  return false;
}

}  // namespace holdfast::coord
