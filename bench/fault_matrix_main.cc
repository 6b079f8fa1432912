// Runs the fault matrix over simulated jobs and prints its tables, or writes them into a page.

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
/// The family of jobs without overlap: rounds of computing and communication (tests/sim/trace.h).
constexpr std::string_view kRounds = "rounds";
/// Of rank programs, and of rounds, when nothing else is said: about 40 minutes of one core.
constexpr double kMinutes = 30;
constexpr uint32_t kRoundsSeeds = 5;
constexpr uint32_t kCostRanks = 10'240;

/// Puts `text` between the lines `<!-- NAME -->` and `<!-- end of NAME -->`.
Status WriteInto(const std::string& path, std::string_view name, const std::string& text) {
  std::ifstream file(path);
  std::string page{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  const std::string begin_mark = fmt::format("<!-- {} -->\n", name);
  const size_t begin = page.find(begin_mark);
  const size_t end = page.find(fmt::format("<!-- end of {} -->", name));
  if (begin == std::string::npos || end == std::string::npos || end < begin) {
    return NotFoundError(fmt::format("{} has no place for the {}", path, name));
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
      for (const detect::Verdict& verdict : outcome.said) {
        fmt::print(stderr, "    {}: {}\n", ToString(verdict.fault),
                   fmt::join(verdict.evidence, "; "));
      }
    }
  }
}

void AddProgramOptions(CLI::App& app, ProgramMatrixOptions& options) {
  app.add_option("--family", options.families,
                 "families of jobs, all without it: rounds, ddp, fsdp, tp-dp, 1f1b, interleaved, "
                 "3d, moe, accumulation, local-sgd, send-receive, steps-only")
      ->delimiter(',');
  app.add_option("--fault", options.faults,
                 "faults of rank programs (sigkill, sigstop, gpu-10%, …), none for healthy jobs, "
                 "all for all faults; all and none without it")
      ->delimiter(',');
  app.add_option("--behaviour", options.behaviours,
                 "legitimate behaviours: base, all, random, or one by name (\"evaluation "
                 "unmarked\", …)")
      ->delimiter(',');
  app.add_option("--healthy-s", options.healthy_s,
                 "simulated seconds of a healthy job, 1,800 without it");
  app.add_option("--minutes", options.minutes,
                 "begin no run of rank programs after these minutes; 30 where --seeds is not said");
  app.add_flag_callback(
      "--table-order", [&options] { options.rule = sim::program::FlightRule::kTableOrder; },
      "agents tell operations in flight as earlier releases do");
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
  bool verbose = false;
  bool no_cost = false;
  uint32_t cost_ranks = 0;
  CLI::App app("Feeds simulated faults to the detector and scores what it says.");
  app.add_flag("--quick", quick, "jobs of 8 and 64 ranks, 5 seeds, unless said otherwise");
  app.add_option("--seeds", options.seeds, "runs of each cell")->capture_default_str();
  app.add_option("--seeds-of", seeds_of, "RANKS=N: another number for jobs of that size")
      ->delimiter(',');
  app.add_option("--ranks", options.worlds, "sizes of jobs")->delimiter(',');
  app.add_option("--only", options.only, "cells whose name contains this");
  app.add_option("--jobs", options.jobs, "threads; the outcome does not depend on them");
  app.add_option("--into", into, "put the tables into this Markdown file");
  app.add_option("--keep", keep, "file of outcomes: runs that are in it are not made again");
  app.add_option("--rows", rows, "also write the results as JSON, for the front end");
  app.add_flag("--tuning", tuning, "the seeds for working on the detector, not for reporting");
  app.add_flag("--verbose", verbose, "print every run that was not right");
  app.add_flag("--no-cost", no_cost, "leave out the time of an evaluation");
  app.add_option("--cost-ranks", cost_ranks,
                 "also the time of an evaluation in rank programs of this size");
  AddProgramOptions(app, programs);
  CLI11_PARSE(app, argc, argv);
  if (quick && app.count("--seeds") == 0) options.seeds = 5;
  if (quick && app.count("--ranks") == 0) options.worlds = {8, 64};
  for (const std::string& pair : seeds_of) {
    unsigned ranks = 0;
    unsigned seeds = 0;
    if (std::sscanf(pair.c_str(), "%u=%u", &ranks, &seeds) != 2) {
      fmt::print(stderr, "--seeds-of {}: not RANKS=N\n", pair);
      return 64;
    }
    options.seeds_of[ranks] = seeds;
  }
  if (tuning) options.first_seed = kTuningSeed;
  std::optional<KeptOutcomes> kept;
  if (!keep.empty()) {
    Result<KeptOutcomes> opened = KeptOutcomes::Open(keep);
    if (!opened) {
      fmt::print(stderr, "{}\n", opened.error().ToString());
      return 1;
    }
    options.kept = &kept.emplace(std::move(*opened));
  }
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
