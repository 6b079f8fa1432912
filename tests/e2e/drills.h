#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/status.h"
#include "testing/cluster/cluster.h"
#include "testing/cluster/training.h"

namespace holdfast::local {

/// The live job that a drill injects a failure into. The references must outlive the context.
struct DrillContext {
  Cluster& cluster;
  Training& training;
  std::string job;
  /// Prints one line per event, for people.
  std::function<void(const std::string&)> print;
};

/// The result of a drill: the effect on the job, and its recovery.
struct DrillReport {
  std::string name;
  bool skipped = false;  // this machine does not support the drill; `note` has the reason
  std::string note;
  // Where the ranks restored from: "memory", "disk", "mixed"; "none": no rank restored.
  std::string tier;
  double detect_ms = 0;     // injection → detection (a trainer or a process ended)
  double recover_ms = 0;    // injection → the first new step, or the first new commit
  uint64_t lost_steps = 0;  // steps finished before the failure and repeated
};

struct Drill {
  std::string name;
  std::string what;  // one sentence, for people
  std::function<Result<DrillReport>(DrillContext&)> run;
};

/// Returns all drills. After each drill the cluster is complete and the job trains.
const std::vector<Drill>& AllDrills();

/// The node whose data directory is a SmallDisk in clusters for the full-disk drill.
inline constexpr int kSmallDiskNode = 3;

}  // namespace holdfast::local
