#pragma once

#include <sys/types.h>

#include <functional>
#include <memory>
#include <optional>

#include "agent/config/config.h"
#include "base/clock.h"
#include "base/cores.h"
#include "base/service_manager.h"
#include "base/status.h"

namespace holdfast::agent {

/// What workers get as it was at the agent's start, before the agent changed it for itself.
struct WorkerDefaults {
  mode_t umask = 022;
  std::optional<CoreSettings> cores = {};
};

/// The agent of a node with all its parts.
class Application {
 public:
  virtual ~Application() = default;

  /// Locks the run directory (AlreadyExists when another agent uses it), opens the disks and the
  /// arena, verifies their shards, and serves trainers and readers. When it returns, everything
  /// runs, whether or not the coordinator is reachable. Workers get `workers`. `clock` outlives the
  /// agent.
  static Result<std::unique_ptr<Application>> Start(const AgentConfig& config, Clock& clock,
                                                    const ServiceManager& manager = {},
                                                    const WorkerDefaults& workers = {});

  /// Periodic work: replaces a dead keeper. Call it about every second.
  /// Returns whether the node's loop has run since the last call.
  virtual bool Tick() = 0;
  /// Returns the address of the data service, with the bound port.
  virtual const std::string& data_address() const = 0;
  /// Ends in order: brings the newest versions to disk (`shutdown.grace_s` at most), disconnects
  /// trainers and cancels unfinished writes. Shards sealed in memory stay with the keeper.
  virtual void Stop() = 0;
  /// The same, but ends the process at once when `interrupted` returns true while versions are
  /// brought to disk.
  virtual void StopWithin(const std::function<bool()>& interrupted) = 0;
};

/// Runs the agent until SIGTERM or SIGINT and returns the exit code of the process. A second signal
/// ends the process at once.
int RunAgent(const AgentConfig& config, Clock& clock);

}  // namespace holdfast::agent
