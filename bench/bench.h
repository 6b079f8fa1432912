#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/status.h"

namespace holdfast::bench {

/// One figure: Holdfast compared with a reference that alternates with it in the same run.
struct BenchResult {
  std::string name;
  double ratio = 0;
  double ours = 0;
  double reference = 0;
  std::string unit;
  std::string goal;  // ">=0.95", "<=1.15", or "" without a goal
  std::string note;  // what was compared, or the cost of each stage
  uint32_t repetitions = 1;
  double least = 0;  // the smallest ratio of all repetitions
  double most = 0;   // the largest ratio of all repetitions
};

struct BenchOptions {
  bool quick = false;
  uint32_t repeat = 5;
  std::string dir;     // on the disk to measure; exists and is empty
  uint64_t bytes = 0;  // gpu: of the state; 0: its default
  std::string into;    // Markdown file whose table is updated; empty: none
  std::string ranks;   // for the programs: sizes of jobs, "8,64"; empty: their default
  uint32_t steps = 0;
  uint32_t seeds = 0;
  std::string keep;
  std::vector<std::string> programs;  // further arguments of the fault matrix
};

struct Bench {
  std::string name;
  std::string what;
  std::function<Result<std::vector<BenchResult>>(const BenchOptions&)> run;
  bool repeats_itself = false;  // repeats `repeat` times; the front end repeats the others
  bool only_named = false;      // slow: runs only when it is named
};

/// Each of these has its own file.
Result<std::vector<BenchResult>> RunChecksum(const BenchOptions& options);
Result<std::vector<BenchResult>> RunAllocation(const BenchOptions& options);
Result<std::vector<BenchResult>> RunFirstSave(const BenchOptions& options);
Result<std::vector<BenchResult>> RunErasure(const BenchOptions& options);
Result<std::vector<BenchResult>> RunTransport(const BenchOptions& options);
Result<std::vector<BenchResult>> RunParity(const BenchOptions& options);
Result<std::vector<BenchResult>> RunRebuild(const BenchOptions& options);
Result<std::vector<BenchResult>> RunGrowth(const BenchOptions& options);
Result<std::vector<BenchResult>> RunSlowdown(const BenchOptions& options);
Result<std::vector<BenchResult>> RunDisk(const BenchOptions& options);
Result<std::vector<BenchResult>> RunDiskStages(const BenchOptions& options);
Result<std::vector<BenchResult>> RunStreaming(const BenchOptions& options);
Result<std::vector<BenchResult>> RunStall(const BenchOptions& options);
Result<std::vector<BenchResult>> RunRestore(const BenchOptions& options);
Result<std::vector<BenchResult>> RunReshard(const BenchOptions& options);
Result<std::vector<BenchResult>> RunPlan(const BenchOptions& options);
Result<std::vector<BenchResult>> RunMemory(const BenchOptions& options);
Result<std::vector<BenchResult>> RunRecord(const BenchOptions& options);
Result<std::vector<BenchResult>> RunTelemetry(const BenchOptions& options);
Result<std::vector<BenchResult>> RunRecovery(const BenchOptions& options);
Result<std::vector<BenchResult>> RunSlowRank(const BenchOptions& options);
Result<std::vector<BenchResult>> RunCoordinator(const BenchOptions& options);
Result<std::vector<BenchResult>> RunCommit1024(const BenchOptions& options);
Result<std::vector<BenchResult>> RunCommit16384(const BenchOptions& options);
Result<std::vector<BenchResult>> RunCommit98352(const BenchOptions& options);
Result<std::vector<BenchResult>> RunAttach2048(const BenchOptions& options);
Result<std::vector<BenchResult>> RunAbsentCoordinator(const BenchOptions& options);
/// Built only with CUDA's headers. Without a device it prints a message and returns no figure.
Result<std::vector<BenchResult>> RunGpu(const BenchOptions& options);

/// Returns the seconds that `work` takes.
double SecondsOf(const std::function<void()>& work);
double Median(std::vector<double> values);
/// Fills `bytes` at `into` with reproducible pseudo-random data.
void FillRandom(void* into, uint64_t bytes, uint64_t seed);

}  // namespace holdfast::bench
