#include "cli/cluster/run_follower.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <utility>

#include "cli/core/interrupt.h"
#include "cli/core/text.h"

namespace holdfast::cli {

namespace {
constexpr int64_t kPauseMs = 200;
constexpr size_t kLineBytesMax = 64 << 10;

bool HasEnded(const std::string& phase) {
  return phase == "finished" || phase == "failed" || phase == "stopped";
}
}  // namespace

Result<ExitCode> RunFollower::Follow(bool stop_on_signal, int64_t stop_deadline_ms) {
  DeferInterrupt defer;
  bool stopping = false;
  bool unreachable = false;  // the coordinator
  for (;;) {
    auto runs = client_.GetRuns(job_);
    if (!runs) {
      // A restart of the coordinator ends neither the job nor this command.
      HOLDFAST_RETURN_IF_ERROR(Interrupt::Check());
      if (runs.error().code() != ErrorCode::kUnavailable) return Fail(runs.error());
      if (!std::exchange(unreachable, true)) PrintError(runs.error());
    } else if (runs->runs_size() == 1) {
      if (std::exchange(unreachable, false)) PrintMessage("the coordinator is reachable again");
      const coordinator::RunStatus& run = runs->runs(0);
      ShowChanges(run);
      ShowIncidents();
      const bool ended = HasEnded(run.phase());
      ReadLogs(run, ended);
      HOLDFAST_RETURN_IF_ERROR(context_.output.Flush());
      if (ended) return run.phase() == "failed" ? ExitCode::kError : ExitCode::kOk;
    }
    if (DeferInterrupt::seen() && !stopping && !unreachable) {
      if (!stop_on_signal) {
        PrintMessage(fmt::format("job '{}' continues; `holdfast stop {}` ends it", job_, job_));
        return ExitCode::kInterrupted;
      }
      Status requested = client_.StopRun(job_, stop_deadline_ms);
      stopping = requested.ok();
      if (stopping) {
        PrintMessage(
            "stopping: a last version goes to disk first; interrupt again to leave at once");
      }
      if (!stopping && requested.code() != ErrorCode::kUnavailable) return Fail(requested);
    }
    HOLDFAST_RETURN_IF_ERROR(Interrupt::SleepFor(kPauseMs));
  }
}

void RunFollower::ShowChanges(const coordinator::RunStatus& run) {
  std::string now = run.phase();
  if (run.phase() == "starting" || run.phase() == "running") {
    now += fmt::format(" {} on {}", run.run_id(), fmt::join(run.nodes(), ", "));
  }
  if (!run.why().empty()) now += ": " + run.why();
  if (now == shown_) return;
  shown_ = now;
  // The reason why a run ended may contain its last lines of output.
  for (size_t begin = 0; begin < now.size();) {
    const size_t end = std::min(now.find('\n', begin), now.size());
    PrintMessage(fmt::format("{}: {}", job_, Printable(now.substr(begin, end - begin))));
    begin = end + 1;
  }
}

void RunFollower::ShowIncidents() {
  auto incidents = client_.ListIncidents(job_, 0);
  if (!incidents) return;
  for (int i = incidents->incidents_size(); i-- > 0;) {
    const coordinator::Incident& incident = incidents->incidents(i);
    std::string now = incident.state();
    std::string& printed = incidents_[incident.id()];
    if (printed == now) continue;
    const bool is_new = printed.empty();
    printed = now;
    if (first_poll_) continue;  // older than this command
    if (is_new) {
      PrintMessage(fmt::format("incident {}: {}", incident.id(), Printable(incident.what())));
    }
    if (now == "recovered") {
      const std::optional<int64_t> ms = AnyNumber(incident.first_step_ms());
      const std::optional<int64_t> lost = AnyNumber(incident.lost_steps());
      // A run that ends with success recovers without a new version.
      const std::string after =
          ms ? fmt::format(" {:.1f} s after the failure", static_cast<double>(*ms) / 1000) : "";
      PrintMessage(fmt::format("incident {}: recovered{}, {} steps lost", incident.id(), after,
                               lost ? std::to_string(*lost) : "?"));
    }
  }
  first_poll_ = false;
}

void RunFollower::RefreshAddresses() {
  auto status = client_.GetStatus("");
  if (!status) return;
  for (const auto& node : status->nodes()) addresses_[node.node()] = node.data_address();
}

void RunFollower::ReadLogs(const coordinator::RunStatus& run, bool last) {
  for (const coordinator::RunWorker& worker : run.workers()) {
    const LogKey key(worker.state().run_id(), worker.rank());
    if (nodes_.emplace(key, worker.node()).second) RefreshAddresses();
  }
  for (const auto& [key, node] : nodes_) {
    // The last output of an older launch is read once more.
    const bool over = last || key.first != run.run_id();
    auto address = addresses_.find(node);
    if (address != addresses_.end()) ReadLog(address->second, node, key, over);
  }
  std::erase_if(nodes_, [&](const auto& entry) { return entry.first.first != run.run_id(); });
}

void RunFollower::ReadLog(const std::string& address, const std::string& node, const LogKey& key,
                          bool last) {
  auto agent = agents_.find(address);
  if (agent == agents_.end()) {
    auto opened = AgentClient::Open(node, address, context_.options, context_.clock);
    if (!opened) return;
    agent = agents_.emplace(address, *std::move(opened)).first;
  }
  Log& log = logs_[key];
  for (;;) {
    auto data = agent->second.ReadWorkerLog(job_, key.first, Rank{key.second}, log.offset);
    if (!data || data->empty()) break;
    log.offset += data->size();
    Print(key, *data, false);
  }
  if (last) Print(key, "", true);
}

void RunFollower::Print(const LogKey& key, const std::string& data, bool last) {
  Log& log = logs_[key];
  const auto print = [&](std::string_view line) {
    context_.output.Write(fmt::format("[rank {}] {}\n", key.second, Printable(line)));
  };
  log.line += data;
  size_t begin = 0;
  for (size_t end = 0; (end = log.line.find('\n', begin)) != std::string::npos; begin = end + 1) {
    print(std::string_view(log.line).substr(begin, end - begin));
  }
  log.line.erase(0, begin);
  if (log.line.empty() || (!last && log.line.size() < kLineBytesMax)) return;
  print(log.line);
  log.line.clear();
}

}  // namespace holdfast::cli
