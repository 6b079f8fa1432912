#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>

#include "base/config.h"
#include "base/random.h"
#include "cli/cluster/coordinator_client.h"
#include "cli/core/command.h"
#include "cli/core/interrupt.h"
#include "cli/core/text.h"
#include "cli/drill/commands.h"
#include "faults/drill/drill.h"
#include "faults/drill/report.h"
#include "faults/drill/runner.h"

namespace holdfast::cli {
using faults::AllDrills;
using faults::DrillKind;
using faults::DrillObjective;
using faults::DrillPlan;
using faults::DrillReport;
using faults::DrillRequest;
using faults::DrillRunner;
using faults::DrillTraits;
using faults::InjectorAddresses;
using faults::ParseDrillKind;
using faults::TraitsOf;

namespace {

constexpr const char* kDrillFooter = R"(
Injects a real failure into a running job and measures the recovery: the time until the failure is
detected, the time until a new version is committed, the number of steps trained again, and whether
the restored bytes equal the saved ones. The servers cannot do this: the program holdfast-fault of
the package holdfast-drills must run on each machine that the drill affects, with drills.enabled.

  kill-rank         SIGKILL to a trainer
  hang-rank         SIGSTOP to a trainer; the job is restarted when the hang has lasted for the time
                    in the coordinator's [detect] section, or for --hang-after of `holdfast run`
  slow-rank         a trainer runs half of the time
  kill-agent        SIGKILL to an agent; it starts again after --duration
  kill-node         agent, keeper and workers of a node die at once, and its memory is lost; the
                    agent starts again after --duration, with its disks unchanged
  kill-coordinator  SIGKILL to the coordinator; it starts again after --duration
  corrupt-shard     one bit of a shard on disk flips
  fill-disk         a node's data directories are full for --duration
  power-loss        all nodes and the coordinator die at once
  partition         packets between a node and all other nodes and the coordinator are lost for
                    --duration
  slow-link         the rate between a node and all others is limited to --rate; --target n1,n2
                    limits partition and slow-link to the link between two nodes
  lose-store        SIGKILL to the coordinator, whose store is renamed: it starts after --duration
                    with an empty store. This command then adopts what the nodes have, compares
                    each byte, and starts the run again; pins, incidents and tokens are lost
  random            a kind that the job would survive, chosen by the seed (not slow-rank, fill-disk,
                    partition, slow-link, lose-store)

A drill is refused when no version of the job would survive it, unless --force is given. The fault
is undone, also when the drill is interrupted or this command is killed. The exit code is 2 when the
job did not recover, recovered with other bytes, or missed an objective.

Examples:
  holdfast drill kill-rank --job gpt --dry-run
  holdfast drill hang-rank --job gpt --target rank 3 --objective detect=10s,recover=60s,lost-steps=1
  holdfast drill kill-node --job gpt --target n2 --yes --html drill.html
  holdfast drill random --job gpt --seed 7 --repeat 20 --yes -o json
)";

constexpr std::chrono::seconds kReplanTimeout(30);

class DrillCommand : public Command {
 public:
  CLI::App* AddTo(CLI::App& app) override {
    CLI::App* command =
        app.add_subcommand("drill", "Cause a failure in a running job and measure the recovery");
    command->footer(kDrillFooter);
    command->add_option("KIND", kind_, "The kind of failure, see below")->required();
    command->add_option("--job", job_, "The job")->required()->check(NameCheck("job"));
    command
        ->add_option("--target", target_,
                     "\"rank 3\", a node, or two nodes (n1,n2) [chosen by the seed]")
        ->expected(1, 2)
        ->type_name("TARGET")
        ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
    command->add_option("--seed", seed_, "Seed of random choices [random]");
    command->add_option("--repeat", repeat_, "Number of drills in a row")
        ->check(CLI::Range(1, 10'000).description(""))
        ->capture_default_str();
    command->add_option("--objective", objective_,
                        "Limits to meet, e.g. detect=10s,recover=60s,lost-steps=1");
    command->add_option("--duration", duration_, "Duration of the fault [depends on the kind]")
        ->type_name("DURATION")
        ->check(DurationCheck());
    command->add_option("--rate", rate_, "slow-link: bytes per second in each direction")
        ->type_name("BYTES")
        ->capture_default_str();
    command->add_option("--give-up", give_up_, "Maximum wait for the recovery")
        ->type_name("DURATION")
        ->check(DurationCheck())
        ->capture_default_str();
    command
        ->add_option("--injector", injectors_,
                     "Address of a node's fault injector [port 7079 of its agent's host]")
        ->type_name("NODE=ADDRESS");
    command
        ->add_option("--coordinator-injector", coordinator_injector_,
                     "Address of the fault injector on the coordinator's machine")
        ->type_name("ADDRESS");
    command->add_option("--html", html_, "Write an HTML page with a timeline")->type_name("FILE");
    command->add_flag("--dry-run", dry_run_, "Show what the drill would do, and do nothing");
    command->add_flag("-y,--yes", yes_, "Do not ask for confirmation (asked only on a terminal)");
    command->add_flag("--force", force_, "Run the drill even if the job would not survive it");
    return command;
  }

  Result<ExitCode> Run(Context& context) override {
    auto objective = faults::ParseDrillObjective(objective_);
    auto target = faults::ParseDrillTarget(target_);
    if (kind_ != "random") {
      auto kind = ParseDrillKind(kind_);
      if (!kind) return Usage(kind.error());
    }
    const auto rate = ParseBytes(rate_);
    if (!rate) return Usage(rate.error().WithContext("--rate"));
    if (!objective) return Usage(objective.error());
    if (!target) return Usage(target.error());
    const auto injectors = InjectorAddresses::Parse(injectors_, coordinator_injector_);
    if (!injectors) return Usage(injectors.error());
    DrillRequest request;
    request.target = *target;
    request.bytes_per_s = *rate;
    request.force = force_;
    if (!duration_.empty()) request.duration_ms = ParseDurationMs(duration_).value_or(0);
    if (!seed_) seed_ = RandomSeed() >> 32;
    HOLDFAST_ASSIGN_OR_RETURN(CoordinatorClient client,
                              CoordinatorClient::Open(context.options, context.clock));
    DrillRunner runner(context, client, *injectors, job_);
    std::vector<DrillReport> reports;
    Random seeds(*seed_);
    for (uint32_t i = 0; i < repeat_; ++i) {
      // The first of several drills equals a single drill with the same seed.
      const uint64_t seed = i == 0 ? *seed_ : seeds.Next() >> 32;
      auto report = Once(context, runner, request, i, seed);
      if (!report && reports.empty()) return Fail(report.error());
      if (!report) {
        // The results so far are printed in any case.
        PrintError(report.error().WithContext(fmt::format("drill {} of {}", i + 1, repeat_)));
        failed_ = ExitCodeOf(report.error());
        break;
      }
      if (!*report && dry_run_) continue;
      if (!*report) {
        PrintMessage("cancelled: nothing was done");
        return ExitCode::kError;
      }
      faults::Judge(*objective, &**report);
      reports.push_back(std::move(**report));
    }
    if (dry_run_) return ExitCode::kOk;
    return WriteReport(context, *objective, reports);
  }

 private:
  static Result<ExitCode> Usage(const Status& error) {
    PrintError(error);
    return ExitCode::kUsage;
  }

  /// Runs one drill. Returns nothing for a dry run, or when the user did not confirm.
  Result<std::optional<DrillReport>> Once(Context& context, DrillRunner& runner,
                                          const DrillRequest& request, uint32_t i,
                                          uint64_t seed) const {
    auto plan = Choose(runner, request, seed);
    // After a drill, the job may need some time until it is protected again.
    const auto until = context.clock.Now() + kReplanTimeout;
    while (i > 0 && !plan && context.clock.Now() < until && Interrupt::SleepFor(100).ok()) {
      plan = Choose(runner, request, seed);
    }
    if (!plan) return Fail(plan.error());
    HOLDFAST_ASSIGN_OR_RETURN(const std::string what, runner.Rehearse(&*plan));
    if (dry_run_) {
      ShowPlan(context, *plan, what);
      return std::optional<DrillReport>();
    }
    if (i == 0 && !Confirmed(context, *plan, what)) return std::optional<DrillReport>();
    PrintMessage(fmt::format("drill {} of {}: {} ({}), seed {}", i + 1, repeat_,
                             TraitsOf(plan->kind).name, plan->Target(), seed));
    HOLDFAST_ASSIGN_OR_RETURN(DrillReport report,
                              runner.Run(*plan, ParseDurationMs(give_up_).value_or(180'000)));
    return std::optional<DrillReport>(std::move(report));
  }

  /// Plans a drill. With `random`, skips kinds that the job would not survive now.
  Result<DrillPlan> Choose(DrillRunner& runner, DrillRequest request, uint64_t seed) const {
    if (kind_ != "random") {
      request.kind = ParseDrillKind(kind_).value_or(DrillKind::kKillRank);
      return runner.Plan(request, seed);
    }
    request.force = false;
    std::vector<DrillKind> kinds;
    for (const DrillTraits& traits : AllDrills()) {
      if (traits.random) kinds.push_back(traits.kind);
    }
    Random random(seed);
    Result<DrillPlan> plan = Fail(InternalError("there are no drills"));
    while (!kinds.empty()) {
      const auto chosen = kinds.begin() + static_cast<ptrdiff_t>(random.Below(kinds.size()));
      request.kind = *chosen;
      plan = runner.Plan(request, seed);
      if (plan || plan.error().code() == ErrorCode::kUnavailable) return plan;
      kinds.erase(chosen);
    }
    return plan;
  }

  bool Confirmed(Context& context, const DrillPlan& plan, const std::string& what) const {
    const bool asked = ::isatty(STDIN_FILENO) == 1 && ::isatty(STDERR_FILENO) == 1;
    if (yes_ || context.output.json() || !asked) return true;
    std::fprintf(stderr, "%s on %s of job %s: %s. Do it? [y/N] ", TraitsOf(plan.kind).name,
                 plan.Target().c_str(), job_.c_str(), Printable(what).c_str());
    std::fflush(stderr);
    char answer[16] = {};
    if (std::fgets(answer, sizeof(answer), stdin) == nullptr) return false;
    return answer[0] == 'y' || answer[0] == 'Y';
  }

  void ShowPlan(Context& context, const DrillPlan& plan, const std::string& what) const {
    if (context.output.json()) {
      context.output.set_json_lines(repeat_ > 1);
      context.output.WriteJson("drill-plan", {{"job", job_},
                                              {"drill", TraitsOf(plan.kind).name},
                                              {"target", plan.Target()},
                                              {"seed", plan.seed},
                                              {"what", what}});
    } else {
      context.output.Write(fmt::format("{} on {} (seed {}): {}\n", TraitsOf(plan.kind).name,
                                       plan.Target(), plan.seed, Printable(what)));
    }
  }

  Result<ExitCode> WriteReport(Context& context, const DrillObjective& objective,
                               const std::vector<DrillReport>& reports) const {
    bool passed = true;
    Json list = Json::array();
    for (const DrillReport& report : reports) {
      passed = passed && report.missed.empty();
      list.push_back(faults::DrillJson(report));
    }
    if (context.output.json()) {
      context.output.WriteJson("drill",
                               {{"job", job_}, {"passed", passed}, {"drills", std::move(list)}});
    } else {
      context.output.WriteTable(faults::DrillTable(reports));
      context.output.Write("\n" + faults::DrillNotes(reports));
    }
    if (!html_.empty()) {
      std::ofstream page(html_, std::ios::trunc);
      page << faults::DrillPage(job_, objective, reports);
      if (!page.flush()) return Fail(IoErrorError("cannot write " + html_));
    }
    return Worse(failed_, passed ? ExitCode::kOk : ExitCode::kFinding);
  }

  std::string kind_;
  std::string job_;
  std::vector<std::string> target_;
  std::optional<uint64_t> seed_;
  uint32_t repeat_ = 1;
  std::string objective_;
  std::string duration_;
  std::string rate_ = "1MB";
  std::string give_up_ = "3m";
  std::string html_;
  std::vector<std::string> injectors_;
  std::string coordinator_injector_;
  bool dry_run_ = false;
  bool yes_ = false;
  bool force_ = false;
  ExitCode failed_ = ExitCode::kOk;  // of the error that ended a series early
};

}  // namespace

std::unique_ptr<Command> MakeDrillCommand() { return std::make_unique<DrillCommand>(); }

}  // namespace holdfast::cli
