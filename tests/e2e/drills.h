#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "deploy/local/cluster.h"
#include "deploy/local/training.h"
#include "storage/base/status.h"

namespace holdfast::local {

/// A live job to do harm to. All members are borrowed.
struct Scene {
  Cluster& cluster;
  Training& training;
  std::string job;
  /// One line an event, for a person.
  std::function<void(const std::string&)> say;
};

/// What a drill did to the job and how the job came back.
struct DrillReport {
  std::string name;
  bool skipped = false;  // this machine cannot do it; `note` says why
  std::string note;
  std::string tier;  // the ranks came back from: "memory", "disk", "mixed"; "none": no rank had to
  double detect_ms = 0;     // injection → noticed (a trainer ended, a process ended)
  double recover_ms = 0;    // injection → the first new step, or the first new commit
  uint64_t lost_steps = 0;  // finished before the failure and trained again
};

struct Drill {
  std::string name;
  std::string what;  // a sentence for people
  std::function<Result<DrillReport>(Scene&)> run;
};

/// All drills. Each leaves a cluster that is whole and a
/// job that trains.
const std::vector<Drill>& AllDrills();

/// The node whose data directory is a SmallDisk in clusters made for the full-disk drill.
inline constexpr int kSmallDiskNode = 3;

}  // namespace holdfast::local
