#pragma once

#include <sys/types.h>

#include <memory>

#include "agent/server/config.h"
#include "storage/base/status.h"

namespace holdfast::agent {

/// The agent of a node, put together from its rooms.
class Application {
 public:
  virtual ~Application() = default;

  /// Takes the run directory (AlreadyExists when another agent has it), opens disks and arena,
  /// checks what they hold, and serves trainers, readers and the coordinator. Everything runs once
  /// this returns, whether or not the coordinator can be reached.
  /// Workers get `worker_umask`.
  static Result<std::unique_ptr<Application>> Start(const AgentConfig& config,
                                                    mode_t worker_umask = 022);

  /// What has to be done every second or so.
  virtual void Tick() = 0;
  /// Where ReadShard is served, with the port that was bound.
  virtual const std::string& data_address() const = 0;
  /// Orderly end: trainers are let go, writes under way are given up, and what is sealed in memory
  /// stays with the keeper.
  virtual void Stop() = 0;
};

/// Everything main does after its arguments are parsed; returns the exit code. Runs until SIGTERM
/// or SIGINT.
int RunAgent(const AgentConfig& config);

}  // namespace holdfast::agent
