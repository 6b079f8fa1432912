#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "storage/base/fd.h"
#include "storage/base/status.h"

namespace holdfast {

/// When the process was started, in ticks since boot; 0 when there is none, or it has ended and
/// nobody has asked how.
uint64_t StartTicksOf(pid_t pid);

/// What /proc/<pid>/stat says.
struct ProcessStat {
  char state = 0;  // R S D T t Z X …
  uint64_t start_ticks = 0;
};
std::optional<ProcessStat> StatOf(pid_t pid);

/// A process, told from a later one with the same pid.
struct ProcessName {
  pid_t pid = 0;
  uint64_t start_ticks = 0;
  bool operator==(const ProcessName&) const = default;
};

inline ProcessName NameProcess(pid_t pid) { return {pid, StartTicksOf(pid)}; }
bool IsAlive(const ProcessName& process);
/// Becomes readable when that process is gone. NotFound: it is already.
Result<UniqueFd> PidFdOf(pid_t pid);
/// Not to another process that has got the same pid. NotFound: it has ended.
Status SignalProcess(const ProcessName& process, int signal);

/// The path of a program that is installed beside the one that runs.
Result<std::string> ProgramBeside(std::string_view name);

}  // namespace holdfast
