#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "deploy/local/cluster.h"
#include "deploy/local/process.h"

namespace holdfast::local {

struct TrainingOptions {
  std::string job = "charlm";
  int world = 4;
  uint64_t steps = 60;
  uint64_t params = 20'000;
  uint64_t seed = 1;
  uint64_t step_sleep_ms = 0;
  std::vector<std::string> flags;  // further ones for every rank
};

/// What a rank said when it came back.
struct Restored {
  int rank = 0;
  uint64_t step = 0;  // the step its training goes on after; 0 = fresh
  std::string tier;   // "memory", "disk", "none"
};

/// One training job of the example trainer, ranks spread over a cluster's nodes, started and
/// started again as a launcher would. The trainers report through event files. Thread-compatible.
class Training {
 public:
  Training(Cluster* cluster, TrainingOptions options);  // no cluster: trains without checkpoints
  ~Training();
  Training(const Training&) = delete;
  Training& operator=(const Training&) = delete;

  /// Starts all ranks with a fresh run id. `crash` arms a crash point in the trainer of
  /// `crash_rank`.
  Status Start(const std::string& crash = "", int crash_rank = -1);
  /// For the starts to come.
  void SetStepSleep(uint64_t ms) { options_.step_sleep_ms = ms; }
  void KillRank(int rank);
  void KillAll();

  /// Highest step any rank of the current start has finished; counts from 1, 0 before the first.
  uint64_t newest_step();
  /// False when the time ran out or a trainer ended before.
  bool AwaitStep(uint64_t step, std::chrono::milliseconds timeout);
  /// Waits until some rank has ended; false when none did.
  bool AwaitFailure(std::chrono::milliseconds timeout);
  /// Waits until all ranks have ended with exit code 0.
  Status AwaitFinish(std::chrono::milliseconds timeout);
  bool AnyEnded();

  /// What each rank restored from in the current start; empty until all have said so.
  std::vector<Restored> restored();
  /// Loss of every finished step as it was last reported, over all starts.
  const std::map<uint64_t, double>& losses();
  /// Milliseconds of every step of the current start, as rank 0 reported them.
  const std::vector<double>& step_ms();
  /// Final parameters as bytes, written by the ranks at the end of training.
  Result<std::string> FinalParameters() const;
  /// The logs' last lines, for error messages.
  std::string LogTail() const;
  int start_count() const { return start_count_; }
  Process& rank(int index) { return ranks_[index]; }

 private:
  std::string EventPath(int rank) const;
  std::string FinalPath() const { return dir_ + "/final"; }
  /// Reads what the event files gained.
  void Poll();

  Cluster* cluster_;
  TrainingOptions options_;
  std::string own_root_;  // without a cluster: made here, and removed with the object
  std::string dir_;
  std::vector<Process> ranks_;
  int start_count_ = 0;
  std::map<uint64_t, double> losses_;

  // Of the current start.
  std::vector<std::string> unread_;
  std::vector<uint64_t> offsets_;
  std::vector<std::optional<Restored>> restored_;
  uint64_t newest_step_ = 0;
  std::vector<double> step_ms_;
};

/// The final parameters of the job as `options` have it, trained without checkpoints or pauses.
Result<std::string> UninterruptedParameters(TrainingOptions options,
                                            std::chrono::milliseconds timeout);

}  // namespace holdfast::local
