#pragma once

#include <chrono>
#include <cstdint>

#include "base/invariant.h"
#include "base/life.h"
#include "coordinator/contract/runs.h"

namespace holdfast::coord {

struct SupervisorOptions {
  /// Records violations of the rules; outlives the supervisor.
  InvariantMonitor* invariants = &InvariantMonitor::Process();
  LifeId life;  // of the store; 0 (tests): run IDs do not contain it
  std::chrono::nanoseconds node_lease = std::chrono::seconds(3);
  /// How long after its last message a lost node is replaced: until then, its agent may only be
  /// restarting. If its ranks have ended too, other ranks end because of that, and the node is
  /// replaced at once.
  std::chrono::nanoseconds replace_after = std::chrono::seconds(4);
  /// The same limit for a silent node whose machine still acknowledges packets, since its agent may
  /// only be stopped, and for nodes that were lost together, since a network fault may be the
  /// cause.
  std::chrono::nanoseconds replace_silent_after = std::chrono::seconds(10);
  /// The same limit while other nodes still seal newer versions: the lost node's ranks then still
  /// run.
  std::chrono::nanoseconds replace_moving_after = std::chrono::seconds(60);
  /// A worker that ends within this time of the first counts as a consequence, unless a signal
  /// killed it.
  std::chrono::nanoseconds settle = std::chrono::milliseconds(150);
  /// A heartbeat of a healthy node is at most this late.
  std::chrono::nanoseconds heartbeat_late_after = std::chrono::milliseconds(700);
  /// A worker that its node does not report after this time counts as not started.
  std::chrono::nanoseconds launch_timeout = std::chrono::seconds(20);
  std::chrono::nanoseconds backoff_first = std::chrono::seconds(1);
  std::chrono::nanoseconds backoff_max = std::chrono::seconds(60);
  uint32_t strikes_max = 3;  // a node that broke this many launches in a row is quarantined
  uint32_t incidents_max = 1000;
  uint32_t port_seed = 0;
  bool has_restart_command = false;  // restart.command is set, for jobs of other launchers
  uint32_t command_attempts = 5;
  std::chrono::nanoseconds command_retry_first = std::chrono::seconds(10);
  std::chrono::nanoseconds command_retry_max = std::chrono::minutes(5);
  /// Minimum time between two runs of restart.command for one job.
  std::chrono::nanoseconds command_cooldown = std::chrono::seconds(30);
  DetectAction detect_action = DetectAction::kRestart;
  /// Patience for a hang in which every rank waits in communication: no progress is possible.
  std::chrono::nanoseconds restart_stuck_after = std::chrono::minutes(1);
  /// Patience for a hang in which ranks wait for others that are elsewhere: those may be
  /// evaluating, reading or compiling.
  std::chrono::nanoseconds restart_absent_after = std::chrono::minutes(10);
  uint32_t jobs_per_user = 0;  // jobs of a user other than root; 0: no limit
};

}  // namespace holdfast::coord
