#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "storage/base/ids.h"
#include "storage/base/process.h"

namespace holdfast::agent {

/// The workers of a job that this node shall have; no ranks: none.
struct WorkersWanted {
  std::string job;
  std::string run_id;  // names the launch: workers of another one are stopped first
  Rank first_rank;
  uint32_t ranks = 0;
  uint32_t world = 0;
  uint32_t node_rank = 0;
  uint32_t nodes = 0;
  std::string master_address;
  uint32_t master_port = 0;
  uint32_t restarts = 0;
  uint32_t restarts_max = 0;
  std::vector<std::string> command;
  std::vector<std::string> environment;  // NAME=value
  std::string directory;
  int64_t grace_ms = 10'000;  // between SIGTERM and SIGKILL
};

/// What a shim needs to know to start one worker.
struct WorkerSpec {
  std::string job;
  std::string run_id;
  Rank rank;
  std::vector<std::string> command;
  std::vector<std::string> environment;  // all of it
  std::string directory;
  std::string log;  // path
  uint32_t umask = 022;  // what the agent was started with; its own files are for itself alone
};

/// How a worker ended.
struct WorkerExit {
  int exit_code = 0;
  int signal = 0;          // not 0: what ended it
  int64_t boot_ns = 0;     // when, by CLOCK_BOOTTIME
  std::string last_lines;  // at most kLastLinesBytes
};
inline constexpr size_t kLastLinesBytes = 4096;

/// Environment of one worker: what the agent has, what the user adds, and what torchrun's workers
/// are told (RANK, WORLD_SIZE, MASTER_ADDR, …), beside the names that Holdfast's client reads.
std::vector<std::string> EnvironmentOf(const WorkersWanted& wanted, uint32_t local_rank,
                                       const std::string& agent_socket,
                                       const std::string& error_file);

}  // namespace holdfast::agent
