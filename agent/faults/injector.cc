#include "agent/faults/injector.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <optional>

#include "agent/api/socket.h"
#include "agent/faults/network_cut.h"
#include "agent/workers/worker_files.h"
#include "base/clock.h"
#include "base/fd.h"
#include "coordinator/faults/injector.h"

namespace holdfast::agent {
namespace {
using coord::FaultRequest;
using coord::InjectedFault;
namespace fs = std::filesystem;
using std::chrono::milliseconds;
constexpr int64_t kDutyPeriodMs = 100;
constexpr int64_t kRefillMs = 100;
constexpr int64_t kFillStepBytes = 1 << 20;
constexpr int kDeathTimeoutMs = 20'000;

/// Waits `ms` for SIGTERM or SIGINT, which are blocked otherwise. Returns true when one of them
/// arrived: the fault must end now.
bool WaitForEndRequest(int64_t ms) {
  sigset_t ends;
  ::sigemptyset(&ends);
  ::sigaddset(&ends, SIGTERM);
  ::sigaddset(&ends, SIGINT);
  const auto until = Clock::Real().Now() + milliseconds(ms);
  for (;;) {
    const auto left = std::max<Clock::Duration>(until - Clock::Real().Now(), Clock::Duration(0));
    const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(left);
    const auto nanos = std::chrono::duration_cast<std::chrono::nanoseconds>(left - seconds);
    const timespec timeout{seconds.count(), static_cast<long>(nanos.count())};
    if (::sigtimedwait(&ends, nullptr, &timeout) > 0) return true;
    if (errno != EINTR) return false;
  }
}

Status KillAndAwait(const ProcessName& process) {
  HOLDFAST_ASSIGN_OR_RETURN(UniqueFd end, PidFdOf(process.pid));
  HOLDFAST_RETURN_IF_ERROR(SignalProcess(process, SIGKILL));
  pollfd waiting{end.get(), POLLIN, 0};
  int ready = 0;
  do {
    ready = ::poll(&waiting, 1, kDeathTimeoutMs);
  } while (ready < 0 && errno == EINTR);
  if (ready > 0) return Status::Ok();
  return DeadlineExceededError(fmt::format("process {} did not end within {} s after SIGKILL",
                                           process.pid, kDeathTimeoutMs / 1000));
}

// ---- restart ----

/// The program, folder and arguments that a process was started with.
struct Launch {
  std::string program;
  std::string folder;
  std::vector<std::string> arguments;
};

Result<Launch> LaunchOf(const ProcessName& process) {
  const std::string proc = fmt::format("/proc/{}/", process.pid);
  Launch launch;
  std::error_code error;
  launch.program = fs::read_symlink(proc + "exe", error);
  if (!error) launch.folder = fs::read_symlink(proc + "cwd", error);
  if (error) return Fail(ErrnoStatus(error.value(), "read " + proc));
  std::ifstream file(proc + "cmdline", std::ios::binary);
  for (std::string argument; std::getline(file, argument, '\0');) {
    launch.arguments.push_back(argument);
  }
  if (launch.arguments.empty() || !IsAlive(process)) {
    return Fail(NotFoundError(fmt::format("process {} has ended", process.pid)));
  }
  return launch;
}

[[noreturn]] void Become(Launch launch) {
  std::vector<char*> pointers;
  for (std::string& argument : launch.arguments) pointers.push_back(argument.data());
  pointers.push_back(nullptr);
  sigset_t none;
  ::sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  if (::chdir(launch.folder.c_str()) == 0) ::execv(launch.program.c_str(), pointers.data());
  std::perror(("holdfast-fault: restart " + launch.program).c_str());
  ::_exit(1);
}

std::vector<ProcessName> WorkersIn(const std::string& run_dir) {
  std::vector<ProcessName> found;
  std::error_code none;
  for (const auto& job : fs::directory_iterator(run_dir + "/workers", none)) {
    for (const auto& worker : fs::directory_iterator(job.path(), none)) {
      const auto pids = ReadPids(worker.path());
      if (!pids) continue;
      found.push_back(pids->shim);
      found.push_back(pids->worker);
    }
  }
  return found;
}

/// Kills the agent first, which would otherwise restart the processes that die.
Status KillNode(const FaultRequest& request) {
  ProcessName keeper;
  if (auto socket = ConnectUnix(request.node_run_dir + "/keeper.sock")) {
    if (auto credentials = CredentialsOf(socket->get())) keeper = NameProcess(credentials->pid);
  }
  HOLDFAST_RETURN_IF_ERROR(SignalProcess(request.process, SIGKILL));
  static_cast<void>(SignalProcess(keeper, SIGKILL).ok());
  const std::vector<ProcessName> workers = WorkersIn(request.node_run_dir);
  for (const ProcessName& worker : workers) {
    static_cast<void>(SignalProcess(worker, SIGKILL).ok());
  }
  for (const ProcessName& worker : workers) {
    static_cast<void>(KillAndAwait(worker).ok());
  }
  if (keeper.pid != 0) static_cast<void>(KillAndAwait(keeper).ok());
  return Status::Ok();
}

Status Restart(const FaultRequest& request) {
  HOLDFAST_ASSIGN_OR_RETURN(Launch launch, LaunchOf(request.process));
  HOLDFAST_ASSIGN_OR_RETURN(UniqueFd end, PidFdOf(request.process.pid));
  if (WaitForEndRequest(request.start_in_ms)) return Status::Ok();
  HOLDFAST_RETURN_IF_ERROR(request.node_run_dir.empty() ? SignalProcess(request.process, SIGKILL)
                                                        : KillNode(request));
  pollfd waiting{end.get(), POLLIN, 0};
  while (::poll(&waiting, 1, -1) < 0 && errno == EINTR) {
  }
  WaitForEndRequest(request.duration_ms);
  ::unlink(request.record.c_str());
  Become(std::move(launch));
}

// ---- stop ----

Status StopAndContinue(const FaultRequest& request) {
  if (WaitForEndRequest(request.start_in_ms)) return Status::Ok();
  const int64_t stopped_ms = kDutyPeriodMs * request.stopped_percent / 100;
  const auto until = Clock::Real().Now() + milliseconds(request.duration_ms);
  bool end = false;
  while (!end && Clock::Real().Now() < until && SignalProcess(request.process, SIGSTOP).ok()) {
    end = WaitForEndRequest(stopped_ms);
    if (stopped_ms == kDutyPeriodMs) continue;
    static_cast<void>(SignalProcess(request.process, SIGCONT).ok());
    end = end || WaitForEndRequest(kDutyPeriodMs - stopped_ms);
  }
  // An error means that the process has ended meanwhile.
  static_cast<void>(SignalProcess(request.process, SIGCONT).ok());
  return Status::Ok();
}

// ---- fill ----

void TakeFreeSpace(int fd) {
  struct stat info {};
  for (int64_t step = kFillStepBytes << 10; step >= 4096;) {
    if (::fstat(fd, &info) != 0) return;
    if (::fallocate(fd, 0, info.st_size, step) != 0 && errno != EINTR) step /= 4;
  }
}

Status Fill(const FaultRequest& request) {
  if (WaitForEndRequest(request.start_in_ms)) return Status::Ok();
  std::vector<UniqueFd> files;
  Status status;
  for (const std::string& path : request.files) {
    files.emplace_back(::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
    if (!files.back().valid()) status = ErrnoStatus(errno, "create " + path);
  }
  const auto until = Clock::Real().Now() + milliseconds(request.duration_ms);
  do {
    // Repeat: take the space that retention frees, too.
    for (const UniqueFd& file : files) TakeFreeSpace(file.get());
  } while (status.ok() && Clock::Real().Now() < until && !WaitForEndRequest(kRefillMs));
  for (const std::string& path : request.files) ::unlink(path.c_str());
  return status;
}

// ---- cut ----

Status CutLinks(const FaultRequest& request) {
  if (WaitForEndRequest(request.start_in_ms)) return Status::Ok();
  HOLDFAST_ASSIGN_OR_RETURN(const NetworkCut cut, NetworkCut::Make(request.cut));
  WaitForEndRequest(request.duration_ms);
  return Status::Ok();
}

Status CarryOut(const FaultRequest& request) {
  switch (request.action) {
    case InjectedFault::kRestart:
      return Restart(request);
    case InjectedFault::kStop:
      return StopAndContinue(request);
    case InjectedFault::kFill:
      return Fill(request);
    case InjectedFault::kCut:
      return CutLinks(request);
  }
  return InternalError("unknown fault");
}

}  // namespace

int RunInjector(std::span<const std::string> arguments) {
  sigset_t ends;
  ::sigemptyset(&ends);
  ::sigaddset(&ends, SIGTERM);
  ::sigaddset(&ends, SIGINT);
  ::sigprocmask(SIG_SETMASK, &ends, nullptr);
  const bool rehearsal = !arguments.empty() && arguments[0] == "rehearse=1";
  auto request = coord::ParseFaultRequest(arguments.subspan(rehearsal ? 1 : 0));
  Status status = request ? Status::Ok() : request.error();
  if (request && rehearsal) {
    status = NetworkCut::Rehearse(request->cut);
  } else if (request) {
    status = CarryOut(*request);
    ::unlink(request->record.c_str());
  }
  if (status.ok()) return 0;
  std::fprintf(stderr, "%s%s\n", coord::kInjectorPrefix, status.message().c_str());
  return 1;
}

}  // namespace holdfast::agent
