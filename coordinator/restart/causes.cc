#include "coordinator/restart/causes.h"

#include <fmt/format.h>

#include <algorithm>
#include <csignal>
#include <cstring>

#include "coordinator/contract/pace.h"
#include "coordinator/restart/gpus.h"

namespace holdfast::coord {
namespace {
using std::chrono::milliseconds;
constexpr size_t kShownLines = 8;
constexpr size_t kShownBytesMax = 1024;

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

/// Returns whether a node of the launch is silent or its stream has ended. Such a node may be the
/// reason why workers on other nodes exited.
bool AnyNodeUnresponsive(const RunReadContext& context, const Run& run) {
  const auto agents = std::count_if(context.table.nodes.begin(), context.table.nodes.end(),
                                    [](const auto& node) { return node.second.attached; });
  const auto late_after = HeartbeatPause(static_cast<size_t>(agents), context.options.node_lease) +
                          context.options.heartbeat_late_after;
  return std::any_of(run.record.nodes.begin(), run.record.nodes.end(), [&](const auto& name) {
    const WorkerNode& node = context.table.nodes.at(name);
    return node.attached && (node.stream_ended || context.at.now - node.last_contact > late_after);
  });
}

Clock::Duration PatienceFor(const RunReadContext& context, const WorkerNode& node) {
  return node.silent || node.lost_together ? context.options.replace_silent_after
                                           : context.options.replace_after;
}

/// Returns a failure if a node of the launch has been lost for too long, or has not started its
/// workers.
std::optional<Failure> FindLostNode(const RunReadContext& context, const Run& run) {
  for (uint32_t i = 0; i < run.record.nodes.size(); ++i) {
    const std::string& name = run.record.nodes[i];
    const WorkerNode& node = context.table.nodes.at(name);
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
    // Once the launch has failed, there is no reason to wait for the node.
    const auto last_seen = std::min(node.last_contact, node.state_since);
    const Clock::Duration away = context.at.now - last_seen;
    const auto progress = context.table.progress.find(run.record.spec.job);
    const bool moving =
        progress != context.table.progress.end() && progress->second.sealed_at &&
        context.at.now - *progress->second.sealed_at < context.options.replace_after &&
        away < context.options.replace_moving_after;
    const bool due = run.first_failure_at || (away >= PatienceFor(context, node) && !moving);
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
    if (node.attached && context.at.now - requested_at >= context.options.launch_timeout) {
      failure.kind = "not started";
      failure.what = fmt::format("node {} has not started {} rank{} of the launch", name, missing,
                                 missing == 1 ? "" : "s");
      failure.evidence.push_back(
          fmt::format("{} ms since the directive", Milliseconds(context.at.now - requested_at)));
      failure.healthy_until = requested_at;
      failure.avoid_nodes = true;
      return failure;
    }
  }
  return std::nullopt;
}

/// Returns the failure of the launch if a worker failed. The cause is the first worker on a node
/// whose GPU failed, else the first that a signal killed, else the first to end; the others become
/// evidence. The order of ends within a millisecond is unreliable. A worker takes some time to exit
/// on its own, so a killed one is taken to have ended before it.
std::optional<Failure> FindWorkerFailure(const RunReadContext& context, const Run& run) {
  std::vector<const WorkerState*> failed;
  for (const auto& [rank, worker] : run.ended) {
    if (IsFailure(worker)) failed.push_back(&worker);
  }
  if (failed.empty()) return std::nullopt;
  // All ends were reported within the settle time; each node measures how long ago its workers
  // ended. A failed GPU takes precedence: it also explains workers that were killed because the
  // rank of that GPU failed.
  const auto node_of = [&run](const WorkerState* worker) -> const std::string& {
    return run.record.nodes[worker->rank.value / run.record.spec.ranks_per_node];
  };
  std::stable_sort(failed.begin(), failed.end(), [&](const WorkerState* a, const WorkerState* b) {
    const bool reason = HardwareFailedRecently(context, node_of(a));
    if (reason != HardwareFailedRecently(context, node_of(b))) return reason;
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
  failure.healthy_until =
      *run.first_failure_at - milliseconds(std::min<int64_t>(first.ended_ago_ms, 60'000));
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
}  // namespace

std::optional<Failure> FindFailure(RunContext& context, Run& run) {
  std::optional<Failure> failure;
  if (context.at.now >= context.table.grace_until) failure = FindLostNode(context, run);
  if (!failure) {
    const bool died = std::any_of(run.ended.begin(), run.ended.end(),
                                  [](const auto& entry) { return IsFailure(entry.second); });
    if (died && !run.first_failure_at) run.first_failure_at = context.at.now;
    // Ranks that lose a peer end too, so an unresponsive node gets time to be declared lost. A rank
    // that a signal killed is the cause in any case.
    const bool killed = std::any_of(run.ended.begin(), run.ended.end(),
                                    [](const auto& entry) { return entry.second.signal != 0; });
    const bool settled =
        run.first_failure_at && context.at.now - *run.first_failure_at >= context.options.settle;
    if (killed || (settled && !AnyNodeUnresponsive(context, run))) {
      failure = FindWorkerFailure(context, run);
    }
  }
  return failure;
}

}  // namespace holdfast::coord
