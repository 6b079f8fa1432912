#include "faults/injector/carry_out.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <functional>

#include "agent/api/socket.h"
#include "agent/workers/worker_files.h"
#include "base/clock.h"
#include "base/fd.h"
#include "faults/api/order.h"
#include "faults/injector/network_cut.h"
#include "faults/injector/servers.h"

namespace holdfast::faults {
namespace {
namespace fs = std::filesystem;
using std::chrono::milliseconds;
constexpr int64_t kDutyPeriodMs = 100;
constexpr int64_t kRefillMs = 100;
constexpr int64_t kFillStepBytes = 1 << 20;
constexpr int kDeathTimeoutMs = 20'000;

/// Waits `ms` for SIGTERM or SIGINT, which are blocked otherwise. Returns true when one of them
/// arrived: the fault must end now.
bool WaitForEndRequest(int64_t ms, Clock& clock) {
  sigset_t ends;
  ::sigemptyset(&ends);
  ::sigaddset(&ends, SIGTERM);
  ::sigaddset(&ends, SIGINT);
  const auto until = clock.Now() + milliseconds(ms);
  for (;;) {
    const auto left = std::max<Clock::Duration>(until - clock.Now(), Clock::Duration(0));
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

std::vector<ProcessName> WorkersIn(const std::string& run_dir) {
  std::vector<ProcessName> found;
  std::error_code none;
  for (const auto& job : fs::directory_iterator(run_dir + "/workers", none)) {
    for (const auto& worker : fs::directory_iterator(job.path(), none)) {
      const auto pids = agent::ReadPids(worker.path());
      if (!pids) continue;
      found.push_back(pids->shim);
      found.push_back(pids->worker);
    }
  }
  return found;
}

/// Kills the agent first, which would otherwise restart the processes that die.
Status KillNode(const Order& order) {
  ProcessName keeper;
  if (auto socket = agent::ConnectUnix(order.node_run_dir + "/keeper.sock")) {
    if (auto credentials = agent::CredentialsOf(socket->get()))
      keeper = NameProcess(credentials->pid);
  }
  HOLDFAST_RETURN_IF_ERROR(SignalProcess(order.process, SIGKILL));
  static_cast<void>(SignalProcess(keeper, SIGKILL).ok());
  const std::vector<ProcessName> workers = WorkersIn(order.node_run_dir);
  for (const ProcessName& worker : workers) {
    static_cast<void>(SignalProcess(worker, SIGKILL).ok());
  }
  for (const ProcessName& worker : workers) {
    static_cast<void>(KillAndAwait(worker).ok());
  }
  if (keeper.pid != 0) static_cast<void>(KillAndAwait(keeper).ok());
  return Status::Ok();
}

bool SuccessorRuns(const Order& order) {
  const std::string program = fs::path(order.launch.program).filename();
  const auto server = ServerAt(order.endpoint, program);
  return server && !(*server == order.process);
}

/// Starts the server, unless it runs already. The server is a separate process, so that a signal to
/// this one never reaches it.
Status StartAgain(const Order& order) {
  if (!order.starts_again || SuccessorRuns(order)) return Status::Ok();
  int ends[2] = {-1, -1};
  if (::pipe2(ends, O_CLOEXEC) != 0) return ErrnoStatus(errno, "pipe");
  const UniqueFd reader(ends[0]);
  UniqueFd writer(ends[1]);
  const pid_t pid = ::fork();
  if (pid < 0) return ErrnoStatus(errno, "fork");
  if (pid == 0) {
    ::setsid();
    const std::string error = Become(order.launch).message();
    static_cast<void>(::write(writer.get(), error.data(), error.size()) > 0);
    ::_exit(1);
  }
  writer.Reset();
  // The pipe closes without a byte when the server's program runs.
  char error[512];
  const ssize_t got = ::read(reader.get(), error, sizeof(error));
  if (got <= 0) return Status::Ok();
  return UnavailableError(std::string(error, static_cast<size_t>(got)));
}

/// Renames the folder that the server loses.
Status LoseFolder(const Order& order) {
  if (order.lost_folder.empty()) return Status::Ok();
  if (::rename(order.lost_folder.c_str(), order.lost_as.c_str()) == 0) return Status::Ok();
  return ErrnoStatus(errno, fmt::format("rename {} to {}", order.lost_folder, order.lost_as));
}

Status Restart(const Order& order, Clock& clock) {
  HOLDFAST_ASSIGN_OR_RETURN(UniqueFd end, PidFdOf(order.process.pid));
  if (WaitForEndRequest(order.start_in_ms, clock)) return Status::Ok();
  HOLDFAST_RETURN_IF_ERROR(order.node_run_dir.empty() ? SignalProcess(order.process, SIGKILL)
                                                      : KillNode(order));
  pollfd waiting{end.get(), POLLIN, 0};
  while (::poll(&waiting, 1, -1) < 0 && errno == EINTR) {
  }
  const Status lost = LoseFolder(order);
  if (order.starts_again) WaitForEndRequest(order.duration_ms, clock);
  HOLDFAST_RETURN_IF_ERROR(StartAgain(order));
  return lost;
}

// ---- stop ----

Status StopAndContinue(const Order& order, Clock& clock) {
  if (WaitForEndRequest(order.start_in_ms, clock)) return Status::Ok();
  const int64_t stopped_ms = kDutyPeriodMs * order.stopped_percent / 100;
  const auto until = clock.Now() + milliseconds(order.duration_ms);
  bool end = false;
  while (!end && clock.Now() < until && SignalProcess(order.process, SIGSTOP).ok()) {
    end = WaitForEndRequest(stopped_ms, clock);
    if (stopped_ms == kDutyPeriodMs) continue;
    static_cast<void>(SignalProcess(order.process, SIGCONT).ok());
    end = end || WaitForEndRequest(kDutyPeriodMs - stopped_ms, clock);
  }
  // An error means that the process has ended meanwhile.
  static_cast<void>(SignalProcess(order.process, SIGCONT).ok());
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

Status Fill(const Order& order, Clock& clock) {
  if (WaitForEndRequest(order.start_in_ms, clock)) return Status::Ok();
  std::vector<UniqueFd> files;
  Status status;
  for (const std::string& path : order.files) {
    files.emplace_back(::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
    if (!files.back().valid()) status = ErrnoStatus(errno, "create " + path);
  }
  const auto until = clock.Now() + milliseconds(order.duration_ms);
  do {
    // Repeat: take the space that retention frees, too.
    for (const UniqueFd& file : files) TakeFreeSpace(file.get());
  } while (status.ok() && clock.Now() < until && !WaitForEndRequest(kRefillMs, clock));
  for (const std::string& path : order.files) ::unlink(path.c_str());
  return status;
}

// ---- cut ----

Status CutLinks(const Order& order, Clock& clock) {
  if (WaitForEndRequest(order.start_in_ms, clock)) return Status::Ok();
  HOLDFAST_ASSIGN_OR_RETURN(const NetworkCut cut, NetworkCut::Make(order.cut));
  WaitForEndRequest(order.duration_ms, clock);
  return Status::Ok();
}

Status Begin(const Order& order, Clock& clock) {
  switch (order.action) {
    case Action::kRestart:
      return Restart(order, clock);
    case Action::kStop:
      return StopAndContinue(order, clock);
    case Action::kFill:
      return Fill(order, clock);
    case Action::kCut:
      return CutLinks(order, clock);
  }
  return InternalError("unknown fault");
}

/// The kernel has removed the packet filter with its process.
Status End(const Order& order) {
  if (order.action == Action::kStop) static_cast<void>(SignalProcess(order.process, SIGCONT).ok());
  for (const std::string& file : order.files) ::unlink(file.c_str());
  const bool killed = order.action == Action::kRestart && !IsAlive(order.process);
  return killed ? StartAgain(order) : Status::Ok();
}

int WithOrder(const std::string& path, const std::function<Status(const Order&)>& work) {
  sigset_t ends;
  ::sigemptyset(&ends);
  ::sigaddset(&ends, SIGTERM);
  ::sigaddset(&ends, SIGINT);
  ::sigprocmask(SIG_SETMASK, &ends, nullptr);
  // The file must not be opened a second time: closing a descriptor of it releases the lock.
  const UniqueFd file(::open(path.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW));
  Status status = file.valid() ? LockOrder(file.get()) : ErrnoStatus(errno, "open " + path);
  if (status.code() == ErrorCode::kAlreadyExists) return 0;
  if (status.ok()) {
    const auto order = ReadOrder(file.get());
    status = order ? work(*order) : order.error().WithContext(path);
    ::unlink(path.c_str());
  }
  if (status.ok()) return 0;
  std::fprintf(stderr, "holdfast-fault: %s\n", status.message().c_str());
  return 1;
}
}  // namespace

int CarryOut(const std::string& path, Clock& clock) {
  return WithOrder(path, [&clock](const Order& order) { return Begin(order, clock); });
}
int Undo(const std::string& path) { return WithOrder(path, End); }

}  // namespace holdfast::faults
