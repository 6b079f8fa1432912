#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "agent/api/agent.pb.h"
#include "agent/pipeline/watched_ranks.h"
#include "base/ids.h"
#include "base/mutex.h"
#include "coordinator/faults/injector.h"
#include "storage/volume/volume.h"

namespace holdfast::agent {

struct InjectorOptions {
  bool enabled = false;  // false: every request is refused
  std::string run_dir;
  std::vector<std::string> data_dirs;
  std::string coordinator;  // address; a partition cuts the node off from the coordinator, too
};

/// Injects failures into this node for `holdfast drill`. A fault that lasts or that kills the agent
/// is carried out by a separate process, the fault injector (agent/faults). That process also
/// undoes the fault, even if the agent has ended. Thread-safe.
class Injector {
 public:
  /// `ranks` and `volume` must outlive the injector.
  Injector(InjectorOptions options, WatchedRanks& ranks, Volume& volume)
      : options_(std::move(options)), ranks_(ranks), volume_(volume) {}

  /// Begins the fault. With `dry_run`, only checks whether the fault is possible. Returns a
  /// sentence that describes the fault. FailedPrecondition: drills are not enabled on this node, or
  /// the fault would affect more than this node.
  Result<std::string> Inject(const InjectFaultRequest& request);
  /// Ends the drill's fault and undoes it; OK when there is none.
  Status End(const std::string& drill);
  /// Reaps the fault injectors that have exited. Call it from time to time.
  void Reap();

 private:
  Result<std::string> Kill(const InjectFaultRequest& request);
  Result<std::string> Stop(const InjectFaultRequest& request, coord::FaultRequest fault);
  Result<std::string> Restart(const InjectFaultRequest& request, coord::FaultRequest fault);
  Result<std::string> Fill(const InjectFaultRequest& request, coord::FaultRequest fault);
  Result<std::string> Cut(const InjectFaultRequest& request, coord::FaultRequest fault);
  Result<std::string> Corrupt(const InjectFaultRequest& request);
  Result<ProcessName> TrainerOf(const InjectFaultRequest& request);
  Status Start(const coord::FaultRequest& fault);
  std::string RecordOf(const std::string& drill) const;

  const InjectorOptions options_;
  WatchedRanks& ranks_;
  Volume& volume_;
  Mutex mutex_;
  std::set<pid_t> injectors_ HOLDFAST_GUARDED_BY(mutex_);  // children of this process
};

}  // namespace holdfast::agent
