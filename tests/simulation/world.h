#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/random.h"
#include "testing/world/sim_scheduler.h"
#include "tests/simulation/checker.h"
#include "tests/simulation/coordinator_host.h"
#include "tests/simulation/network.h"
#include "tests/simulation/sim_processes.h"

namespace holdfast::simulation {

class NodeHost;
class Job;

/// The parts of one simulated system.
struct World {
  World(SimScheduler& scheduler_in, uint64_t seed, std::string dir_in, bool verbose_in);
  ~World();

  void Trace(const std::string& what);
  NodeHost* Find(const std::string& node);
  /// Virtual time since the start.
  double Seconds() const;

  SimScheduler& scheduler;
  Random random;
  SimClock clock;
  Network network;
  Checker checker;
  SimProcesses processes;
  CoordinatorHost coordinator;
  std::vector<std::unique_ptr<NodeHost>> nodes;
  std::vector<std::unique_ptr<Job>> jobs;
  SimProcess burial{"burial"};  // ends the objects of dead processes
  int burials = 0;              // in progress
  const std::string dir;
  const bool verbose;
  const Clock::TimePoint started;
};

}  // namespace holdfast::simulation
