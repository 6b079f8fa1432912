#include "base/process.h"

#include <fmt/format.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <climits>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

namespace holdfast {
namespace {
constexpr int kStartTimeField = 22;  // of /proc/<pid>/stat, see proc(5)
}  // namespace

std::optional<ProcessStat> StatOf(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string line;
  if (!std::getline(file, line)) return std::nullopt;
  // The name (field 2) is in parentheses and may hold anything.
  const size_t name_end = line.rfind(')');
  if (name_end == std::string::npos) return std::nullopt;
  std::istringstream fields(line.substr(name_end + 1));
  ProcessStat stat;
  fields >> stat.state;
  std::string field;
  for (int i = 4; i < kStartTimeField; ++i) fields >> field;
  fields >> stat.start_ticks;
  if (!fields) return std::nullopt;
  return stat;
}

std::optional<ProcessorTimes> ProcessorTimesOf(pid_t pid) {
  std::error_code error;
  std::optional<ProcessorTimes> times;
  const std::string tasks = "/proc/" + std::to_string(pid) + "/task";
  // Not a range-based loop: its increment throws if the kernel fails to list the threads.
  std::filesystem::directory_iterator task(tasks, error);
  for (; !error && task != std::filesystem::directory_iterator(); task.increment(error)) {
    std::ifstream file(task->path() / "schedstat");
    ProcessorTimes thread;
    if (!(file >> thread.ran_ns >> thread.waited_ns)) continue;
    if (!times) times.emplace();
    times->ran_ns += thread.ran_ns;
    times->waited_ns += thread.waited_ns;
  }
  return times;
}

uint64_t StartTicksOf(pid_t pid) {
  const std::optional<ProcessStat> stat = StatOf(pid);
  if (!stat || stat->state == 'Z' || stat->state == 'X') return 0;
  return stat->start_ticks;
}

bool IsAlive(const ProcessName& process) {
  return process.pid > 1 && process.start_ticks != 0 &&
         StartTicksOf(process.pid) == process.start_ticks;
}

Result<std::string> SiblingProgram(std::string_view name) {
  std::array<char, PATH_MAX> path{};
  const ssize_t bytes = ::readlink("/proc/self/exe", path.data(), path.size());
  if (bytes <= 0 || bytes == static_cast<ssize_t>(path.size())) {
    return Fail(ErrnoStatus(bytes < 0 ? errno : ENAMETOOLONG, "read /proc/self/exe"));
  }
  const std::string_view executable(path.data(), static_cast<size_t>(bytes));
  return std::string(executable.substr(0, executable.rfind('/') + 1)).append(name);
}

Result<UniqueFd> PidFdOf(pid_t pid) {
  UniqueFd fd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
  if (fd.valid()) return fd;
  if (errno == ESRCH) return Fail(NotFoundError(fmt::format("process {} has ended", pid)));
  return Fail(ErrnoStatus(errno, fmt::format("pidfd_open({})", pid)));
}

Status SignalProcess(const ProcessName& process, int signal) {
  auto fd =
      process.pid > 1 ? PidFdOf(process.pid) : Fail(NotFoundError("there is no such process"));
  // While the descriptor is open the pid cannot be reused, so IsAlive checks the same process.
  if (!fd || !IsAlive(process)) {
    return NotFoundError(fmt::format("process {} has ended", process.pid));
  }
  if (::syscall(SYS_pidfd_send_signal, fd->get(), signal, nullptr, 0) == 0) return Status::Ok();
  return ErrnoStatus(errno, fmt::format("signal process {}", process.pid));
}

}  // namespace holdfast
