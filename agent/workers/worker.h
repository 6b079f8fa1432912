#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "agent/workers/worker_user.h"
#include "base/cores.h"
#include "base/ids.h"
#include "base/process.h"
#include "coordinator/contract/directives.h"
#include "coordinator/contract/limits.h"

namespace holdfast::agent {

/// The specification from which a shim starts one worker.
struct WorkerSpec {
  std::string job;
  std::string run_id;
  Rank rank;
  std::vector<std::string> command;
  std::vector<std::string> environment;  // complete
  std::string directory;
  std::string log;       // path
  uint32_t umask = 022;  // of the agent's start, not the stricter one that it sets later
  std::optional<CoreSettings> cores;  // of the agent's start, likewise; absent: the agent's own
  /// The user that the shim starts the worker as. Absent: the agent's own.
  std::optional<uint32_t> uid;
  uint32_t gid = 0;
  std::vector<uint32_t> groups;
};

/// How a worker ended.
struct WorkerExit {
  int exit_code = 0;
  int signal = 0;          // not 0: the signal that ended the worker
  int64_t boot_ns = 0;     // time of the end, CLOCK_BOOTTIME
  std::string last_lines;  // at most kLastLinesBytesMax
};

/// Returns the environment of one worker: the variables of its login, those of the run, those of
/// torchrun's workers (RANK, WORLD_SIZE, MASTER_ADDR, …) and those of Holdfast's client. Later ones
/// win. The login is the agent's environment for the agent's own user, and otherwise the account of
/// `user`: the agent's variables may be secrets.
std::vector<std::string> EnvironmentOf(const SetWorkers& wanted, const WorkerUser& user,
                                       uint32_t local_rank, const std::string& agent_socket,
                                       const std::string& error_file);

}  // namespace holdfast::agent
