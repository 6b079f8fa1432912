#include "agent/workers/shim.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <climits>
#include <csignal>
#include <cstdio>
#include <cstring>

#include "agent/api/socket.h"
#include "agent/workers/worker_files.h"
#include "agent/workers/worker_user.h"
#include "base/fd.h"
#include "base/process.h"

namespace holdfast::agent {
namespace {
constexpr int kNotFound = 127;  // as in shells
constexpr int kNotExecutable = 126;
// How long the shim waits for further output of a dead worker's children.
constexpr int kDrainMs = 200;
// The log is rotated at this length; one earlier log stays, with the suffix .1.
constexpr off_t kLogBytesMax = 64LL << 20;

/// Writes the worker's output to its log and keeps the end of the output.
class Output {
 public:
  /// `uid`: the user that the log belongs to.
  Output(std::string path, std::optional<uint32_t> uid) : path_(std::move(path)), uid_(uid) {
    Open();
  }

  void Take(const char* data, size_t bytes) {
    last_.append(data, bytes);
    // Keep more than is reported, so that the report can begin at the start of a line.
    if (last_.size() > 4 * kLastLinesBytesMax)
      last_.erase(0, last_.size() - 2 * kLastLinesBytesMax);
    struct stat info {};
    if (::fstat(log_.get(), &info) == 0 && info.st_size >= kLogBytesMax) {
      std::rename(path_.c_str(), (path_ + ".1").c_str());
      Open();
    }
    while (bytes > 0 && log_.valid()) {
      const ssize_t written = ::write(log_.get(), data, bytes);
      if (written < 0 && errno == EINTR) continue;
      if (written <= 0) return;  // on a full disk only the log is lost, never the worker
      data += written;
      bytes -= static_cast<size_t>(written);
    }
  }

  /// Returns the end of the output, from the start of a line if possible.
  std::string LastLines() const {
    if (last_.size() <= kLastLinesBytesMax) return last_;
    const size_t start = last_.size() - kLastLinesBytesMax;
    const size_t line = last_.find('\n', start);
    return last_.substr(line == std::string::npos || line + 1 == last_.size() ? start : line + 1);
  }

 private:
  void Open() {
    auto log = OpenLog(path_, uid_);
    log_ = log ? *std::move(log) : UniqueFd();
  }

  const std::string path_;
  const std::optional<uint32_t> uid_;
  UniqueFd log_;
  std::string last_;
};

[[noreturn]] void ExitWithError(const char* what, const char* name, int code) {
  ::dprintf(2, "holdfast: cannot %s %s: %s\n", what, name, ::strerror(errno));
  ::_exit(code);
}

/// Runs in the child. All data was prepared before the fork, so that no code here takes a lock.
[[noreturn]] void BecomeWorker(const WorkerSpec& spec, char* const* arguments,
                               char* const* environment, int output, pid_t parent) {
  ::setsid();
  // A worker must not outlive its shim, which reports the worker's end.
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(kNotExecutable);
  for (const int signal : {SIGTERM, SIGINT, SIGHUP, SIGPIPE}) ::signal(signal, SIG_DFL);
  sigset_t none;
  ::sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  const int null = ::open("/dev/null", O_RDONLY);
  if (null >= 0) ::dup2(null, 0);
  ::dup2(output, 1);
  ::dup2(output, 2);
  ::syscall(SYS_close_range, 3U, UINT_MAX, 0U);
  ::umask(static_cast<mode_t>(spec.umask));
  if (spec.cores) RestoreCores(*spec.cores);
  // A worker of the agent's own user gets none of the capabilities that the agent needs for others.
  ::prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0);
  if (spec.uid) {
    if (!BecomeUser(*spec.uid, spec.gid, spec.groups.data(), spec.groups.size())) {
      ExitWithError("become the user of", spec.job.c_str(), kNotExecutable);
    }
    // The kernel forgot the signal when the user changed.
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != parent) ::_exit(kNotExecutable);
  }
  if (::chdir(spec.directory.c_str()) != 0) {
    ExitWithError("enter the folder", spec.directory.c_str(), kNotExecutable);
  }
  ::execvpe(arguments[0], arguments, environment);
  ExitWithError("run", arguments[0], errno == ENOENT ? kNotFound : kNotExecutable);
}

std::vector<char*> Pointers(const std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  for (const std::string& text : texts) pointers.push_back(const_cast<char*>(text.c_str()));
  pointers.push_back(nullptr);
  return pointers;
}

/// Copies the output until the worker has ended and its output is drained. Returns the time of the
/// end (CLOCK_BOOTTIME, ns).
int64_t CopyOutput(int pid_fd, int output, Output& log) {
  std::array<char, 16384> buffer{};
  bool ended = false;
  int64_t ended_at = 0;
  for (;;) {
    std::array<pollfd, 2> waiting{{{output, POLLIN, 0}, {ended ? -1 : pid_fd, POLLIN, 0}}};
    const int ready = ::poll(waiting.data(), waiting.size(), ended ? kDrainMs : -1);
    if (ready < 0 && errno == EINTR) continue;
    if (ready <= 0) return ended_at;
    if (waiting[1].revents != 0) {
      ended = true;
      ended_at = BootNanos();
    }
    if (waiting[0].revents == 0) continue;
    const ssize_t bytes = ::read(output, buffer.data(), buffer.size());
    if (bytes > 0) {
      log.Take(buffer.data(), static_cast<size_t>(bytes));
    } else if (bytes == 0 || errno != EINTR) {
      if (ended) return ended_at;
      // The worker has closed its output and still runs.
      pollfd end{pid_fd, POLLIN, 0};
      while (::poll(&end, 1, -1) < 0 && errno == EINTR) {
      }
      return BootNanos();
    }
  }
}
}  // namespace

int RunShim(const std::string& folder) {
  for (const int signal : {SIGTERM, SIGINT, SIGHUP, SIGPIPE}) ::signal(signal, SIG_IGN);
  auto spec = ReadSpec(folder);
  if (!spec) {
    std::fprintf(stderr, "holdfast-shim: %s\n", spec.error().message().c_str());
    return 1;
  }
  Output log(spec->log, spec->uid);
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return 1;
  UniqueFd output(ends[0]);
  UniqueFd input(ends[1]);
  const std::vector<char*> arguments = Pointers(spec->command);
  const std::vector<char*> environment = Pointers(spec->environment);
  const pid_t shim = ::getpid();
  const pid_t worker = ::fork();
  if (worker < 0) return 1;
  if (worker == 0) {
    BecomeWorker(*spec, arguments.data(), environment.data(), input.get(), shim);
  }
  input.Reset();
  const Status written = WritePids(folder, {NameProcess(worker), NameProcess(shim)});
  auto pid_fd = PidFdOf(worker);
  // Without these no agent could stop the worker.
  if (!written.ok() || !pid_fd) ::kill(worker, SIGKILL);
  WorkerExit exit;
  exit.boot_ns = pid_fd ? CopyOutput(pid_fd->get(), output.get(), log) : BootNanos();
  // Until the worker is reaped no other group can have its ID.
  ::kill(-worker, SIGKILL);
  int status = 0;
  while (::waitpid(worker, &status, 0) < 0 && errno == EINTR) {
  }
  exit.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 0;
  exit.signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
  exit.last_lines = log.LastLines();
  return WriteExit(folder, exit).ok() ? 0 : 1;
}

}  // namespace holdfast::agent
