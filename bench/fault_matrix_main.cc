// Runs the fault matrix on simulated jobs and prints its tables, or writes them into a Markdown
// page.

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>

#include "bench/fault_matrix.h"
#include "bench/fault_matrix_keep.h"
#include "bench/program_matrix.h"
#include "bench/report.h"

namespace holdfast::bench {
namespace {

constexpr uint64_t kTuningSeed = 1;
/// The family of jobs without overlap: rounds of computing and communication (testing/sim/trace.h).
constexpr std::string_view kRounds = "rounds";
/// Defaults for rank programs and for rounds, together about 40 minutes of one core.
constexpr double kMinutes = 30;
constexpr uint32_t kRoundsSeeds = 5;
constexpr uint32_t kCostRanks = 10'240;

/// Replaces the text between the lines `<!-- NAME -->` and `<!-- end of NAME -->` of a page.
Status WriteInto(const std::string& path, std::string_view name, const std::string& text) {
  std::ifstream file(path);
  std::string page{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  const std::string begin_mark = fmt::format("<!-- {} -->\n", name);
  const size_t begin = page.find(begin_mark);
  const size_t end = page.find(fmt::format("<!-- end of {} -->", name));
  if (begin == std::string::npos || end == std::string::npos || end < begin) {
    return NotFoundError(
        fmt::format("{} has no lines <!-- {} --> and <!-- end of {} -->", path, name, name));
  }
  const size_t from = begin + begin_mark.size();
  page.replace(from, end - from, text);
  if (!(std::ofstream(path) << page)) return IoErrorError("cannot write " + path);
  return Status::Ok();
}

void PrintFailures(const std::vector<MatrixCell>& cells, uint64_t first_seed) {
  for (const MatrixCell& cell : cells) {
    for (size_t i = 0; i < cell.outcomes.size(); ++i) {
      const sim::Outcome& outcome = cell.outcomes[i];
      if (outcome.wrong.empty() && (cell.negative || outcome.exact)) continue;
      fmt::print(stderr, "{} {} {} seed {}: found {} exact {} wrong {}\n", cell.name,
                 ToString(cell.scenario.shape), cell.scenario.world, first_seed + i,
                 outcome.detected, outcome.exact, outcome.wrong.size());
      for (const detect::Verdict& verdict : outcome.reported) {
        fmt::print(stderr, "    {}: {}\n", ToString(verdict.fault),
                   fmt::join(verdict.evidence, "; "));
      }
    }
  }
}

void AddProgramOptions(CLI::App& app, ProgramMatrixOptions& options) {
  app.add_option("--family", options.families,
                 "families of jobs (default: all): rounds, ddp, fsdp, tp-dp, 1f1b, interleaved, "
                 "3d, moe, accumulation, local-sgd, send-receive, steps-only")
      ->delimiter(',');
  app.add_option("--fault", options.faults,
                 "faults of rank programs (sigkill, sigstop, gpu-10%, …), all for all faults, none "
                 "for healthy jobs (default: all and none)")
      ->delimiter(',');
  app.add_option("--behaviour", options.behaviours,
                 "legitimate behaviours: base, all, random, or by name (\"evaluation unmarked\", "
                 "…)")
      ->delimiter(',');
  app.add_option("--healthy-s", options.healthy_s,
                 "simulated seconds of a healthy job (default: 1,800)");
  app.add_option("--minutes", options.minutes,
                 "start no run of rank programs after this many minutes (default without --seeds: "
                 "30)");
  app.add_flag_callback(
      "--table-order", [&options] { options.rule = sim::program::FlightRule::kTableOrder; },
      "agents report operations in flight as earlier releases do");
}

int Main(int argc, char** argv) {
  MatrixOptions options;
  ProgramMatrixOptions programs;
  std::string into;
  std::string keep;
  std::string rows;
  std::vector<std::string> seeds_of;
  bool quick = false;
  bool tuning = false;
  std::optional<uint64_t> first_seed;
  bool verbose = false;
  bool no_cost = false;
  uint32_t cost_ranks = 0;
  CLI::App app("Runs the detector on simulated faults and scores its verdicts.");
  app.add_flag("--quick", quick,
               "jobs of 8 and 64 ranks with 5 seeds, unless --ranks or --seeds is given");
  app.add_option("--seeds", options.seeds, "runs of each cell")->capture_default_str();
  app.add_option("--seeds-of", seeds_of, "RANKS=N: N seeds for jobs of RANKS ranks")
      ->delimiter(',');
  app.add_option("--ranks", options.worlds, "sizes of jobs")->delimiter(',');
  app.add_option("--only", options.only, "run only cells whose name contains this");
  app.add_option("--jobs", options.jobs, "threads; the outcomes do not depend on them");
  app.add_option("--into", into, "write the tables into this Markdown file");
  app.add_option("--keep", keep, "file of outcomes: runs in it are not repeated");
  app.add_option("--rows", rows, "also write the results to this JSON file, for bench/run.sh");
  app.add_option("--first-seed", first_seed,
                 "the first seed of each cell (default: the seeds for reports)");
  app.add_flag("--tuning", tuning, "use the seeds for tuning the detector, not those for reports");
  app.add_flag("--verbose", verbose, "print every run with a missed fault or a false verdict");
  app.add_flag("--no-cost", no_cost, "do not measure the time of an evaluation");
  app.add_option("--cost-ranks", cost_ranks,
                 "also measure the time of an evaluation in rank programs of this size");
  AddProgramOptions(app, programs);
  CLI11_PARSE(app, argc, argv);
  if (quick && app.count("--seeds") == 0) options.seeds = 5;
  if (quick && app.count("--ranks") == 0) options.worlds = {8, 64};
  for (const std::string& pair : seeds_of) {
    unsigned ranks = 0;
    unsigned seeds = 0;
    if (std::sscanf(pair.c_str(), "%u=%u", &ranks, &seeds) != 2) {
      fmt::print(stderr, "--seeds-of {}: expected RANKS=N\n", pair);
      return 64;
    }
    options.seeds_of[ranks] = seeds;
  }
  if (tuning) options.first_seed = kTuningSeed;
  if (first_seed) options.first_seed = *first_seed;
  std::optional<KeptOutcomes> kept;
  if (!keep.empty()) {
    Result<KeptOutcomes> opened = KeptOutcomes::Open(keep);
    if (!opened) {
      fmt::print(stderr, "{}\n", opened.error().ToString());
      return 1;
    }
    options.kept = &kept.emplace(std::move(*opened));
  }
  // Rounds and rank programs are separate matrices with different defaults.
  const bool all_families = programs.families.empty();
  const bool rounds = std::erase(programs.families, kRounds) > 0 || all_families;
  std::string report;  // of rank programs
  std::string rounds_report;
  nlohmann::ordered_json results = nlohmann::ordered_json::array();
  if (all_families || !programs.families.empty()) {
    if (app.count("--ranks") > 0 || quick) programs.worlds = options.worlds;
    const bool limited = app.count("--seeds") == 0 && !quick;
    programs.seeds = options.seeds;
    if (limited && programs.minutes == 0) programs.minutes = kMinutes;
    if (limited && !no_cost && cost_ranks == 0) cost_ranks = kCostRanks;
    programs.first_seed = options.first_seed;
    programs.jobs = options.jobs;
    const auto cells = RunProgramMatrix(programs);
    if (!cells) {
      fmt::print(stderr, "{}\n", cells.error().ToString());
      return 64;
    }
    report += ProgramReport(*cells);
    if (verbose) fmt::print(stderr, "{}", ProgramFailures(*cells, options.first_seed));
    for (const BenchResult& result : ProgramResults(*cells)) results.push_back(ToJson(result));
    if (cost_ranks > 0) {
      for (const BenchResult& row : MeasureProgramEvaluations(programs.families, cost_ranks)) {
        results.push_back(ToJson(row));
        report += fmt::format("\n{}: {:.2f} ms; {}: {:.1f} ms\n", row.name, row.ours, row.note,
                              row.reference);
      }
    }
  }
  if (rounds) {
    if (all_families && app.count("--seeds") == 0) options.seeds = kRoundsSeeds;
    if (all_families && app.count("--ranks") == 0) options.worlds = {8, 64};
    const auto cells = RunMatrix(options);
    rounds_report = MatrixReport(cells, options);
    if (!no_cost) rounds_report += "\n" + CostTable(MeasureEvaluations(quick));
    if (verbose) PrintFailures(cells, options.first_seed);
    for (const BenchResult& result : MatrixResults(cells)) results.push_back(ToJson(result));
  }
  if (!rows.empty()) {
    if (!(std::ofstream(rows) << results.dump() << "\n")) {
      fmt::print(stderr, "cannot write {}\n", rows);
      return 1;
    }
  }
  if (into.empty()) {
    fmt::print("{}{}{}", report, report.empty() || rounds_report.empty() ? "" : "\n",
               rounds_report);
    return 0;
  }
  Status status = Status::Ok();
  if (!report.empty()) status = WriteInto(into, "rank programs", report);
  if (status.ok() && rounds) status = WriteInto(into, "fault matrix", rounds_report);
  if (!status.ok()) fmt::print(stderr, "{}\n", status.ToString());
  return status.ok() ? 0 : 1;
}

}  // namespace
}  // namespace holdfast::bench

// An exception may end this program.  NOLINTNEXTLINE(bugprone-exception-escape)
int main(int argc, char** argv) { return holdfast::bench::Main(argc, argv); }
