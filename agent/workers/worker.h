#pragma once

#include <cstdint>
#include <string>
#include <vector>

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
};

/// How a worker ended.
struct WorkerExit {
  int exit_code = 0;
  int signal = 0;          // not 0: the signal that ended the worker
  int64_t boot_ns = 0;     // time of the end, CLOCK_BOOTTIME
  std::string last_lines;  // at most kLastLinesBytesMax
};

/// Returns the environment of one worker: the agent's variables, the user's, those of torchrun's
/// workers (RANK, WORLD_SIZE, MASTER_ADDR, …) and those of Holdfast's client. Later ones win.
std::vector<std::string> EnvironmentOf(const SetWorkers& wanted, uint32_t local_rank,
                                       const std::string& agent_socket,
                                       const std::string& error_file);

}  // namespace holdfast::agent
