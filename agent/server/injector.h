#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "agent/api/agent.pb.h"
#include "agent/pipeline/watched_ranks.h"
#include "coordinator/hand/hand.h"
#include "storage/base/ids.h"
#include "storage/base/mutex.h"
#include "storage/volume/volume.h"

namespace holdfast::agent {

struct InjectorOptions {
  bool enabled = false;  // else everything is refused
  std::string run_dir;
  std::vector<std::string> data_dirs;
  std::string coordinator;  // its address: a partition cuts the node off from it, too
};

/// Causes failures on this node for `holdfast drill`. What lasts, or strikes the agent itself, is
/// done by a process of its own that undoes it in any case (agent/faults). Thread-safe.
class Injector {
 public:
  /// The arguments outlive it.
  Injector(InjectorOptions options, WatchedRanks& ranks, Volume& volume)
      : options_(std::move(options)), ranks_(ranks), volume_(volume) {}

  /// Begins the fault, or (dry_run) only looks whether it can be; returns what it is, as a
  /// sentence. FailedPrecondition: drills are not enabled here, or it would do harm beyond this
  /// node's part.
  Result<std::string> Inject(const InjectFaultRequest& request);
  Status End(const std::string& drill);
  /// Takes note of hands that have ended; now and then.
  void Reap();

 private:
  Result<std::string> Kill(const InjectFaultRequest& request);
  Result<std::string> Stop(const InjectFaultRequest& request, coord::HandOrder order);
  Result<std::string> Restart(const InjectFaultRequest& request, coord::HandOrder order);
  Result<std::string> Fill(const InjectFaultRequest& request, coord::HandOrder order);
  Result<std::string> Cut(const InjectFaultRequest& request, coord::HandOrder order);
  Result<std::string> Corrupt(const InjectFaultRequest& request);
  Result<ProcessName> TrainerOf(const InjectFaultRequest& request);
  Status Start(const coord::HandOrder& order);
  std::string RecordOf(const std::string& drill) const;

  const InjectorOptions options_;
  WatchedRanks& ranks_;
  Volume& volume_;
  Mutex mutex_;
  std::set<pid_t> hands_ HOLDFAST_GUARDED_BY(mutex_);  // our children
};

}  // namespace holdfast::agent
