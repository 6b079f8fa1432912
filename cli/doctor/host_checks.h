#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>

#include "cli/doctor/finding.h"

// Checks of the machine, without a network. None changes anything.

namespace holdfast::cli {

/// The process whose limits count: the agent that runs, or this process, which was started with the
/// limits of its shell.
struct LimitedProcess {
  std::optional<pid_t> agent;
  bool is_agent() const { return agent.has_value(); }
};
/// Returns the agent that has locked `run_dir`; without one, no pid.
LimitedProcess FindAgent(const std::string& run_dir);

Finding CheckKernel();
/// `wanted`: io.io_uring of the configuration.
Finding CheckIoUring(bool wanted);
Finding CheckHugePages();
/// The limit on locked memory, against the bytes that io_uring pins.
Finding CheckMemlock(const LimitedProcess& process, uint64_t arena_bytes);
Finding CheckOpenFiles(const LimitedProcess& process);
/// The memory that is available to this cgroup, against the arena.
Finding CheckMemory(const LimitedProcess& process, uint64_t arena_bytes);
/// Holdfast's memory is not in /dev/shm, but NCCL and the data loaders of PyTorch use it.
Finding CheckSharedMemory(const std::string& path = "/dev/shm");

}  // namespace holdfast::cli
