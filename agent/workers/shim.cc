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
#include "storage/base/fd.h"
#include "storage/base/process.h"

namespace holdfast::agent {
namespace {
constexpr int kNotFound = 127;  // as shells have it
constexpr int kNotExecutable = 126;
// What a dead worker's children still say is waited for so long.
constexpr int kDrainMs = 200;
// A log that is longer is begun anew; the one before stays beside it.
constexpr off_t kLogBytesMax = 64LL << 20;

/// The worker's output: to its log, and the last of it kept.
class Output {
 public:
  explicit Output(std::string path) : path_(std::move(path)) { Open(); }

  void Take(const char* data, size_t bytes) {
    last_.append(data, bytes);
    // More than is shown, so that there is a line's beginning to show it from.
    if (last_.size() > 4 * kLastLinesBytes) last_.erase(0, last_.size() - 2 * kLastLinesBytes);
    struct stat info {};
    if (::fstat(log_.get(), &info) == 0 && info.st_size >= kLogBytesMax) {
      std::rename(path_.c_str(), (path_ + ".1").c_str());
      Open();
    }
    while (bytes > 0 && log_.valid()) {
      const ssize_t written = ::write(log_.get(), data, bytes);
      if (written < 0 && errno == EINTR) continue;
      if (written <= 0) return;  // a full disk costs the log, never the worker
      data += written;
      bytes -= static_cast<size_t>(written);
    }
  }

  /// Whole lines where there are any.
  std::string LastLines() const {
    if (last_.size() <= kLastLinesBytes) return last_;
    const size_t start = last_.size() - kLastLinesBytes;
    const size_t line = last_.find('\n', start);
    return last_.substr(line == std::string::npos || line + 1 == last_.size() ? start : line + 1);
  }

 private:
  void Open() {
    log_ = UniqueFd(
        ::open(path_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0600));
  }

  const std::string path_;
  UniqueFd log_;
  std::string last_;
};

[[noreturn]] void GiveUp(const char* what, const char* name, int code) {
  ::dprintf(2, "holdfast: cannot %s %s: %s\n", what, name, ::strerror(errno));
  ::_exit(code);
}

/// In the child. Everything was made before, so that nothing here takes a lock.
[[noreturn]] void BecomeWorker(const WorkerSpec& spec, char* const* arguments,
                               char* const* environment, int output, pid_t parent) {
  ::setsid();
  // A worker never outlives the one who would tell of its end.
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
  if (::chdir(spec.directory.c_str()) != 0) {
    GiveUp("enter the folder", spec.directory.c_str(), kNotExecutable);
  }
  ::execvpe(arguments[0], arguments, environment);
  GiveUp("run", arguments[0], errno == ENOENT ? kNotFound : kNotExecutable);
}

std::vector<char*> Pointers(const std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  for (const std::string& text : texts) pointers.push_back(const_cast<char*>(text.c_str()));
  pointers.push_back(nullptr);
  return pointers;
}

/// Copies until the worker has ended and its output is drained; returns when it ended.
int64_t Follow(int pid_fd, int output, Output& log) {
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
      // It closed its output and works on.
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
  Output log(spec->log);
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
  const Status told = WritePids(folder, {NameProcess(worker), NameProcess(shim)});
  auto pid_fd = PidFdOf(worker);
  if (!told.ok() || !pid_fd) ::kill(worker, SIGKILL);  // nobody could ever stop it
  WorkerExit exit;
  exit.boot_ns = pid_fd ? Follow(pid_fd->get(), output.get(), log) : BootNanos();
  // Before it is reaped its pid names nobody else's group.
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
