#include "bench/fault_matrix_keep.h"

#include <fmt/format.h>

#include <functional>
#include <sstream>

namespace holdfast::bench {
namespace {

std::string ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

std::string RunName(const MatrixCell& cell, uint64_t seed) {
  return fmt::format("{}\t{}\t{}\t{}", cell.name, ToString(cell.scenario.shape),
                     cell.scenario.world, seed);
}

std::string LineOf(const std::string& run, const sim::Outcome& outcome) {
  std::string wrong;
  for (const detect::FaultClass fault : outcome.wrong) {
    wrong += fmt::format(" {}", static_cast<int>(fault));
  }
  return fmt::format("{}\t{:d} {:d} {} {} {}{}\n", run, outcome.detected, outcome.exact,
                     outcome.latency_s, outcome.latency_iterations, outcome.job_s, wrong);
}

bool Parse(const std::string& line, std::string* run, sim::Outcome* outcome) {
  const size_t tab = line.rfind('\t');
  if (tab == std::string::npos) return false;
  *run = line.substr(0, tab);
  std::istringstream fields(line.substr(tab + 1));
  fields >> outcome->detected >> outcome->exact >> outcome->latency_s >>
      outcome->latency_iterations >> outcome->job_s;
  if (!fields) return false;
  for (int fault = 0; fields >> fault;) {
    outcome->wrong.push_back(static_cast<detect::FaultClass>(fault));
  }
  return fields.eof();
}

}  // namespace

KeptOutcomes::KeptOutcomes(KeptOutcomes&& other) noexcept
    : outcomes_(std::move(other.outcomes_)), file_(std::move(other.file_)) {}

Result<KeptOutcomes> KeptOutcomes::Open(const std::string& path) {
  const std::string program =
      fmt::format("program {:016x}", std::hash<std::string>()(ReadFile("/proc/self/exe")));
  KeptOutcomes kept;
  std::istringstream lines(ReadFile(path));
  std::string line;
  const bool exists = static_cast<bool>(std::getline(lines, line));
  if (exists && line != program) {
    return Fail(FailedPreconditionError(
        path + " contains runs of a different program; delete it or name another file"));
  }
  while (std::getline(lines, line)) {
    if (lines.eof()) break;  // an incomplete line: its writer was interrupted
    std::string run;
    sim::Outcome outcome;
    if (Parse(line, &run, &outcome)) kept.outcomes_[run] = std::move(outcome);
  }
  kept.file_.open(path, std::ios::app);
  if (!exists) kept.file_ << program << '\n';
  if (!kept.file_.flush()) return Fail(IoErrorError("cannot write " + path));
  return kept;
}

bool KeptOutcomes::Find(const MatrixCell& cell, uint64_t seed, sim::Outcome* outcome) const {
  const auto found = outcomes_.find(RunName(cell, seed));
  if (found == outcomes_.end()) return false;
  *outcome = found->second;
  return true;
}

void KeptOutcomes::Add(const MatrixCell& cell, uint64_t seed, const sim::Outcome& outcome) {
  MutexLock lock(mutex_);
  file_ << LineOf(RunName(cell, seed), outcome) << std::flush;
}

}  // namespace holdfast::bench
