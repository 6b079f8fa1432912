#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "testing/cluster/cluster.h"
#include "testing/cluster/process.h"

namespace holdfast::local {

struct TrainingOptions {
  std::string job = "charlm";
  int world = 4;
  uint64_t steps = 60;
  uint64_t params = 20'000;
  uint64_t seed = 1;
  uint64_t step_sleep_ms = 0;
  std::vector<std::string> flags;  // further flags for every rank
};

/// The restore that a rank reported when it started.
struct Restored {
  int rank = 0;
  uint64_t step = 0;  // the step after which the training continues; 0 = a fresh start
  std::string tier;   // "memory", "disk", "none"
};

/// One training job of the example trainer, with its ranks spread over a cluster's nodes. Start()
/// starts and restarts it as a launcher would. The trainers report through event files.
/// Thread-compatible.
class Training {
 public:
  Training(Cluster* cluster, TrainingOptions options);  // no cluster: trains without checkpoints
  ~Training();
  Training(const Training&) = delete;
  Training& operator=(const Training&) = delete;

  /// Starts all ranks with a new run ID. `crash` arms a crash point in the trainer of `crash_rank`.
  Status Start(const std::string& crash = "", int crash_rank = -1);
  /// Applies to later starts.
  void SetStepSleep(uint64_t ms) { options_.step_sleep_ms = ms; }
  void KillRank(int rank);
  void KillAll();

  /// Returns the highest step that any rank of the current start has finished; steps count from 1,
  /// 0 before the first.
  uint64_t newest_step();
  /// The same for one rank.
  uint64_t newest_step_of(int rank);
  /// Waits for `step`. Returns false when the timeout expired or a trainer ended before that step.
  bool AwaitStep(uint64_t step, std::chrono::milliseconds timeout);
  /// Waits until a rank has ended. Returns false when none did.
  bool AwaitFailure(std::chrono::milliseconds timeout);
  /// Waits until all ranks have ended with exit code 0.
  Status AwaitFinish(std::chrono::milliseconds timeout);
  bool AnyEnded();

  /// Returns each rank's restore in the current start; empty until all ranks have reported it.
  std::vector<Restored> restored();
  /// Returns the last reported loss of every finished step, over all starts.
  const std::map<uint64_t, double>& losses();
  /// Returns the milliseconds of every step of the current start, as rank 0 reported them.
  const std::vector<double>& step_ms();
  /// Returns the bytes of the final parameters, which the ranks write at the end of training.
  Result<std::string> FinalParameters() const;
  /// Returns the end of each log, for error messages.
  std::string LogTail() const;
  int start_count() const { return start_count_; }
  Process& rank(int index) { return ranks_[index]; }

 private:
  std::string EventPath(int rank) const;
  std::string FinalPath() const { return dir_ + "/final"; }
  /// Reads the new contents of the event files.
  void Poll();

  Cluster* cluster_;
  TrainingOptions options_;
  std::string own_root_;  // without a cluster: a temporary folder, which the destructor removes
  std::string dir_;
  std::vector<Process> ranks_;
  int start_count_ = 0;
  std::map<uint64_t, double> losses_;

  // Of the current start.
  std::vector<std::string> unread_;
  std::vector<uint64_t> offsets_;
  std::vector<std::optional<Restored>> restored_;
  std::vector<uint64_t> newest_steps_;  // by rank
  std::vector<double> step_ms_;
};

/// Trains the job of `options` without checkpoints or pauses. Returns its final parameters.
Result<std::string> UninterruptedParameters(TrainingOptions options,
                                            std::chrono::milliseconds timeout);

}  // namespace holdfast::local
