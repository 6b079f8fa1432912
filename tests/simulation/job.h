#pragma once

#include <memory>
#include <string>
#include <vector>

#include "tests/simulation/trainer.h"

namespace holdfast::simulation {

/// A job's launcher: starts runs of changing sizes, ends them, and starts the next one when a rank
/// has died.
class Job {
 public:
  Job(World& world, std::string name, uint64_t tensor_bytes);

  /// Starts the launcher's thread.
  void Start();
  /// No further run is started, and the current one ends.
  void Stop();
  bool stopped() const { return stopped_ && AllEnded(); }
  /// Starts one last run. Call it after Stop().
  std::shared_ptr<Run> StartLast();
  /// Kills a random rank. Returns false when no rank runs.
  bool KillOne();
  Trainer* AnyTrainer();
  const std::string& name() const { return name_; }
  bool AllEnded() const;
  /// An operator removes the job, whose versions are all lost. Blocks.
  void Forget();
  const Run* run() const { return run_.get(); }
  uint64_t runs() const { return next_run_ - 1; }

 private:
  void Main();
  void StartRun(uint32_t world, uint64_t steps, bool reshards);
  void EndRun(bool in_order);
  uint32_t ChooseWorld();

  World& world_;
  const std::string name_;
  const uint64_t tensor_bytes_;
  SimProcess process_;
  bool stopping_ = false;
  bool stopped_ = false;
  uint64_t next_run_ = 1;
  uint32_t last_world_ = 0;
  std::shared_ptr<Run> run_;
  std::vector<std::unique_ptr<Trainer>> trainers_;  // of all runs
  size_t first_ = 0;                                // trainer of the current run
};

}  // namespace holdfast::simulation
