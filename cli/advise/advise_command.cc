#include <fmt/format.h>

#include <algorithm>

#include "cli/advise/advice.h"
#include "cli/advise/commands.h"
#include "cli/cluster/coordinator_client.h"
#include "cli/core/command.h"
#include "cli/core/text.h"
#include "cli/core/version_json.h"
#include "coordinator/view/impact_json.h"

namespace holdfast::cli {

namespace {

constexpr const char* kAdviseFooter = R"(
Computes from the incidents of a run that `holdfast run` launched: the share of its time in which it
made progress (ETTR), how often to save to each tier, and how many spare nodes it needs.
docs/advice.md has the arithmetic. Only the trainers measure the cost of a save: guard_ns / saves of
holdfast_get_stats.

With --without: shows whether each job could continue from its newest version if these nodes were
lost, with their memory and disks. The exit code is 2 if not.

Examples:
  holdfast advise
  holdfast advise lm --stall 40ms --repair-time 8h
  holdfast advise --stall memory=40ms --stall disk=10ms -o json
  holdfast advise --without n7            can n7 be taken out?
  holdfast advise lm --without n3,n7
)";

constexpr Tier kTiers[] = {Tier::kMemory, Tier::kPeer, Tier::kDisk};
using Stalls = std::array<std::optional<double>, 3>;

/// Parses "40ms" (for memory) or "disk=10ms".
Status ReadStall(const std::string& text, Stalls* stalls) {
  const size_t equals = text.find('=');
  const std::string tier = equals == std::string::npos ? "memory" : text.substr(0, equals);
  const std::string duration = equals == std::string::npos ? text : text.substr(equals + 1);
  HOLDFAST_ASSIGN_OR_RETURN(const int64_t ms, ParseDurationMs(duration));
  for (size_t i = 0; i < stalls->size(); ++i) {
    if (ToString(kTiers[i]) != tier) continue;
    (*stalls)[i] = static_cast<double>(ms) / 1e3;
    return Status::Ok();
  }
  return InvalidArgumentError("--stall " + text +
                              ": write TIER=DURATION, with memory, peer or disk");
}

CLI::Validator StallCheck() {
  return CLI::Validator(
      [](std::string& text) {
        Stalls stalls;
        return ReadStall(text, &stalls).message();
      },
      "", "stall");
}

/// Measures the duration of a step and the time between versions on disk, from adjacent versions.
void Measure(const coordinator::ListVersionsReply& reply, ObservedRun* run) {
  const coordinator::VersionInfo* newer = nullptr;
  const auto least = [](std::optional<double>& value, double one) {
    value = value ? std::min(*value, one) : one;
  };
  for (const coordinator::VersionInfo& one : reply.versions()) {
    if ((one.committed_tiers() & TierBit(Tier::kDisk)) == 0) continue;
    const bool neighbours = newer != nullptr && !newer->abandoned() &&
                            newer->version().incarnation() == one.version().incarnation() &&
                            newer->version().step() > one.version().step() &&
                            newer->wall_nanos() > one.wall_nanos();
    if (neighbours) {
      const double seconds = static_cast<double>(newer->wall_nanos() - one.wall_nanos()) / 1e9;
      least(run->disk_every_seconds, seconds);
      least(run->step_seconds,
            seconds / static_cast<double>(newer->version().step() - one.version().step()));
    }
    newer = &one;
  }
}

bool HasEnded(const coordinator::RunStatus& run) {
  return run.phase() == "finished" || run.phase() == "failed" || run.phase() == "stopped";
}

ObservedRun ObserveRun(const coordinator::RunStatus& run, const coordinator::JobStatus* job,
                       const coordinator::ListIncidentsReply& incidents, int64_t now) {
  ObservedRun seen;
  seen.started_wall_nanos = run.started_wall_nanos();
  seen.until_wall_nanos = HasEnded(run) && job != nullptr ? job->committed_wall_nanos() : now;
  seen.has_peers = job != nullptr && job->peer_members() != 0;
  for (const coordinator::Incident& incident : incidents.incidents()) {
    const bool of_this_run =
        incident.job() == run.spec().job() && incident.wall_nanos() >= run.started_wall_nanos();
    if (!of_this_run || incident.state() == "noted") continue;
    seen.failures.push_back({incident.wall_nanos(), AnyNumber(incident.first_step_ms()),
                             AnyNumber(incident.lost_steps()), incident.kind() == "node lost"});
  }
  return seen;
}

/// "40 ms", "31 s", "1h44m"
std::string Span(double seconds) {
  if (seconds < 1) return fmt::format("{:.0f} ms", seconds * 1e3);
  if (seconds < 120) return fmt::format("{:.1f} s", seconds);
  return FormatAge(static_cast<int64_t>(seconds * 1e9));
}

std::string FailuresText(const Rate& rate) {
  const std::string seen = fmt::format("{} in {}", rate.count, Span(rate.observed_seconds));
  if (rate.observed_seconds <= 0) return "not observed yet";
  const std::string least =
      fmt::format("at least {} apart with 95 % confidence", Span(rate.least_mean_seconds()));
  if (!rate.measured()) return fmt::format("{}: not enough incidents yet, {}", seen, least);
  return fmt::format("{}: one in {}, {}", seen, Span(rate.mean_seconds()), least);
}

std::string IntervalText(const TierAdvice& tier, const ObservedRun& seen) {
  if (!tier.interval_seconds) return tier.why_not;
  if (*tier.interval_seconds > 0) {
    std::string text = "every " + Span(*tier.interval_seconds);
    if (tier.interval_steps) text += fmt::format(" ({})", Count(*tier.interval_steps, "step"));
    return text;
  }
  std::string text = "as often as possible: it costs training nothing";
  if (tier.tier == Tier::kDisk && seen.disk_every_seconds) {
    text += ", now every " + Span(*seen.disk_every_seconds);
  }
  return text;
}

std::string EttrText(const RunAdvice& advice) {
  if (!advice.ettr) return "not observed yet";
  std::string text = fmt::format("{:.4f} of {}: {} without progress, {} of steps trained again",
                                 *advice.ettr, Span(advice.observed_seconds),
                                 Span(advice.down_seconds), Span(advice.again_seconds));
  if (advice.again_unknown) text += ", and an unknown number of others";
  return text;
}

/// Returns whether the number of spares is meaningful. With few incidents the bound may exceed the
/// number of nodes; it is then meaningless.
bool HasSpareEstimate(const RunAdvice& advice, const coordinator::RunStatus& run) {
  if (advice.observed_seconds <= 0) return false;
  return advice.node_losses.measured() || advice.spares <= run.spec().nodes();
}

std::string SparesText(const RunAdvice& advice, const ObservedRun& seen,
                       const coordinator::RunStatus& run) {
  const size_t n = advice.node_losses.count;
  const std::string few = fmt::format("not enough incidents yet (n = {})", n);
  const std::string now = fmt::format("{} available now", Count(run.spares_size(), "spare"));
  if (!HasSpareEstimate(advice, run)) return few + "; " + now;
  const std::string suffice =
      fmt::format("{} for 99 % of repairs of {}; {}", Count(advice.spares, "spare"),
                  Span(seen.repair_seconds), now);
  if (advice.node_losses.measured()) return fmt::format("{} lost: {}", Count(n, "node"), suffice);
  return fmt::format("{}; at most {}", few, suffice);
}

std::string Page(const coordinator::RunStatus& run, const RunAdvice& advice,
                 const ObservedRun& seen) {
  std::string text = fmt::format("job {}\n", Printable(run.spec().job()));
  const auto line = [&text](std::string_view name, const std::string& value) {
    text += fmt::format("  {:<18}{}\n", name, value);
  };
  line("goodput (ETTR)", EttrText(advice));
  line("failures", FailuresText(advice.failures));
  if (advice.recover_median_seconds) {
    line("recovery", fmt::format("{} (median), {} at worst", Span(*advice.recover_median_seconds),
                                 Span(*advice.recover_worst_seconds)));
  }
  for (const TierAdvice& tier : advice.tiers) {
    if (tier.tier == Tier::kPeer && !seen.has_peers) continue;
    line(fmt::format("save to {}", ToString(tier.tier)), IntervalText(tier, seen));
  }
  if (advice.expected_ettr) {
    line("then expected", fmt::format("{:.4f} (ETTR)", *advice.expected_ettr));
  }
  line("spare nodes", SparesText(advice, seen, run));
  return text;
}

template <typename Number>
Json OrNull(const std::optional<Number>& value) {
  return value ? Json(*value) : Json(nullptr);
}

Json ToJson(const Rate& rate) {
  const bool any = rate.observed_seconds > 0;
  return {{"count", rate.count},
          {"measured", rate.measured()},
          {"mean_seconds", rate.measured() ? Json(rate.mean_seconds()) : Json(nullptr)},
          {"least_mean_seconds", any ? Json(rate.least_mean_seconds()) : Json(nullptr)}};
}

Json ToJson(const coordinator::RunStatus& run, const RunAdvice& advice, const ObservedRun& seen) {
  Json tiers = Json::array();
  for (size_t i = 0; i < advice.tiers.size(); ++i) {
    const TierAdvice& tier = advice.tiers[i];
    tiers.push_back({{"tier", std::string(ToString(tier.tier))},
                     {"stall_seconds", OrNull(seen.stall_seconds[i])},
                     {"failures", ToJson(tier.failures)},
                     {"interval_seconds", OrNull(tier.interval_seconds)},
                     {"interval_steps", OrNull(tier.interval_steps)},
                     {"why_not", tier.why_not}});
  }
  return {{"job", run.spec().job()},
          {"observed_seconds", advice.observed_seconds},
          {"down_seconds", advice.down_seconds},
          {"again_seconds", advice.again_seconds},
          {"again_unknown", advice.again_unknown},
          {"ettr", OrNull(advice.ettr)},
          {"expected_ettr", OrNull(advice.expected_ettr)},
          {"failures", ToJson(advice.failures)},
          {"recover_median_seconds", OrNull(advice.recover_median_seconds)},
          {"recover_worst_seconds", OrNull(advice.recover_worst_seconds)},
          {"step_seconds", OrNull(seen.step_seconds)},
          {"disk_every_seconds", OrNull(seen.disk_every_seconds)},
          {"tiers", tiers},
          {"node_losses", ToJson(advice.node_losses)},
          {"repair_seconds", seen.repair_seconds},
          {"spares", HasSpareEstimate(advice, run) ? Json(advice.spares) : Json(nullptr)},
          {"spares_now", run.spares_size()}};
}

class AdviseCommand : public Command {
 public:
  CLI::App* AddTo(CLI::App& app) override {
    CLI::App* command =
        app.add_subcommand("advise", "Goodput, save intervals, spares; effect of losing nodes");
    command->footer(kAdviseFooter);
    command->add_option("JOB", job_, "Only this job")->check(NameCheck("job"));
    command->add_option("--without", without_, "Show whether jobs survive the loss of these nodes")
        ->type_name("NODE,…")
        ->delimiter(',')
        ->check(NameCheck("node"));
    command
        ->add_option("--stall", stalls_,
                     "Time that a save to the tier costs training; without TIER: to memory")
        ->type_name("[TIER=]DURATION")
        ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
        ->check(StallCheck());
    command->add_option("--repair-time", repair_, "Time until a lost node is repaired")
        ->type_name("DURATION")
        ->check(DurationCheck())
        ->capture_default_str();
    return command;
  }

  Result<ExitCode> Run(Context& context) override {
    HOLDFAST_ASSIGN_OR_RETURN(CoordinatorClient client,
                              CoordinatorClient::Open(context.options, context.clock));
    return without_.empty() ? Advise(context, client) : Without(context, client);
  }

 private:
  Result<ExitCode> Advise(Context& context, CoordinatorClient& client) const {
    const int64_t now = context.clock.WallNanos();
    HOLDFAST_ASSIGN_OR_RETURN(auto runs, client.GetRuns(job_));
    HOLDFAST_ASSIGN_OR_RETURN(auto status, client.GetStatus(""));
    HOLDFAST_ASSIGN_OR_RETURN(auto incidents, client.ListIncidents(job_, 0));
    HOLDFAST_ASSIGN_OR_RETURN(const int64_t repair_ms, ParseDurationMs(repair_));
    Json list = Json::array();
    std::string text;
    for (const coordinator::RunStatus& run : runs.runs()) {
      const std::string& name = run.spec().job();
      const coordinator::JobStatus* job = nullptr;
      for (const auto& one : status.jobs()) job = one.job() == name ? &one : job;
      ObservedRun seen = ObserveRun(run, job, incidents, now);
      seen.repair_seconds = static_cast<double>(repair_ms) / 1e3;
      for (const std::string& stall : stalls_) {
        HOLDFAST_RETURN_IF_ERROR(ReadStall(stall, &seen.stall_seconds));
      }
      if (job != nullptr) {
        HOLDFAST_ASSIGN_OR_RETURN(const auto versions, client.ListVersions(name, false));
        Measure(versions, &seen);
      }
      const RunAdvice advice = cli::Advise(seen);
      list.push_back(ToJson(run, advice, seen));
      text += (text.empty() ? "" : "\n") + Page(run, advice, seen);
    }
    if (text.empty()) text = "no job was started with `holdfast run`: there are no measurements\n";
    if (context.output.json()) {
      context.output.WriteJson("advice", {{"time", FormatUtc(now)}, {"jobs", list}});
    } else {
      context.output.Write(text);
    }
    return ExitCode::kOk;
  }

  Result<ExitCode> Without(Context& context, CoordinatorClient& client) const {
    HOLDFAST_ASSIGN_OR_RETURN(auto reply, client.WhatIfLost(job_, without_));
    Table table({{"JOB", false, true},
                 {"NEWEST", false, false},
                 {"KEPT", false, false},
                 {"RESTART FROM", false, false},
                 {"LOST", true, false},
                 {"STOPS", false, false},
                 {"WHY NOT", false, true}});
    bool all = true;
    for (const coordinator::JobImpact& job : reply.jobs()) {
      all = all && job.keeps();
      const std::optional<uint64_t> steps = view::StepsLost(job);
      table.Add({{job.job()},
                 {VersionText(AnyVersion(job.newest()))},
                 {job.keeps() ? "yes" : "NO", job.keeps() ? Tone::kGood : Tone::kBad},
                 {VersionText(AnyVersion(job.fallback()))},
                 {steps ? std::to_string(*steps) : "-"},
                 {job.stops() ? "yes" : "no"},
                 {job.why_not().empty() ? "-" : job.why_not()}});
    }
    if (context.output.json()) {
      context.output.WriteJson("without", view::ImpactDocument(reply, without_));
    } else {
      context.output.Write(fmt::format("without {}: {}\n", Printable(Join(without_, ", ")),
                                       all ? "every newest version can still be restored"
                                           : "NOT every newest version can be restored"));
      if (!table.empty()) context.output.WriteTable(table);
    }
    return all ? ExitCode::kOk : ExitCode::kFinding;
  }

  std::string job_;
  std::vector<std::string> without_;
  std::vector<std::string> stalls_;
  std::string repair_ = "24h";
};

}  // namespace

std::unique_ptr<Command> MakeAdviseCommand() { return std::make_unique<AdviseCommand>(); }

}  // namespace holdfast::cli
