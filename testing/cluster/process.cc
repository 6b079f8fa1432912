#include "testing/cluster/process.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "base/fd.h"

namespace holdfast::local {
namespace {

/// Runs in the child between fork and exec: async-signal-safe calls only.
[[noreturn]] void Exec(pid_t parent, int log_fd, int error_fd, char* const* argv,
                       char* const* envp) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(127);  // the parent ended before the prctl call
  ::dup2(log_fd, STDOUT_FILENO);
  ::dup2(error_fd, STDERR_FILENO);
  int null_fd = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
  ::dup2(null_fd, STDIN_FILENO);
  ::execve(argv[0], argv, envp);
  ::_exit(127);
}

Result<UniqueFd> OpenLog(const std::string& path) {
  UniqueFd fd(::open(path.empty() ? "/dev/null" : path.c_str(),
                     O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
  if (!fd.valid()) return Fail(ErrnoStatus(errno, "open " + path));
  return fd;
}

std::vector<char*> Pointers(std::vector<std::string>& strings) {
  std::vector<char*> pointers;
  for (std::string& s : strings) pointers.push_back(s.data());
  pointers.push_back(nullptr);
  return pointers;
}

std::vector<std::string> MergedEnvironment(const std::map<std::string, std::string>& extra) {
  std::vector<std::string> merged;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    std::string text = *entry;
    if (extra.count(text.substr(0, text.find('='))) == 0) merged.push_back(std::move(text));
  }
  for (const auto& [key, value] : extra) merged.push_back(key + "=" + value);
  return merged;
}

}  // namespace

Result<Process> Process::Start(const ProcessOptions& options) {
  if (::access(options.argv[0].c_str(), X_OK) != 0) {
    return Fail(ErrnoStatus(errno, "cannot run " + options.argv[0]));
  }
  std::vector<std::string> args = options.argv;
  std::vector<std::string> environment = MergedEnvironment(options.env);
  std::vector<char*> argv = Pointers(args);
  std::vector<char*> envp = Pointers(environment);
  HOLDFAST_ASSIGN_OR_RETURN(UniqueFd log, OpenLog(options.log_path));
  HOLDFAST_ASSIGN_OR_RETURN(
      UniqueFd errors, OpenLog(options.error_path.empty() ? options.log_path : options.error_path));
  pid_t parent = ::getpid();
  pid_t pid = ::fork();
  if (pid == 0) Exec(parent, log.get(), errors.get(), argv.data(), envp.data());
  if (pid < 0) return Fail(ErrnoStatus(errno, "fork"));
  return Process(pid);
}

Process::Process(Process&& other) noexcept
    : pid_(std::exchange(other.pid_, -1)), status_(std::exchange(other.status_, std::nullopt)) {}

Process& Process::operator=(Process&& other) noexcept {
  if (this != &other) {
    Kill();
    pid_ = std::exchange(other.pid_, -1);
    status_ = std::exchange(other.status_, std::nullopt);
  }
  return *this;
}

Process::~Process() { Kill(); }

bool Process::running() {
  if (pid_ <= 0 || status_) return false;
  int status = 0;
  if (::waitpid(pid_, &status, WNOHANG) == pid_) status_ = status;
  return !status_.has_value();
}

void Process::Signal(int signal) {
  if (running()) ::kill(pid_, signal);
}

void Process::Kill() {
  if (!running()) return;
  ::kill(pid_, SIGKILL);
  int status = 0;
  while (::waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
  }
  status_ = status;
}

std::optional<int> Process::WaitFor(std::chrono::milliseconds timeout) {
  WaitUntil([this] { return !running(); }, timeout);
  return status_;
}

std::optional<int> Process::exit_code() {
  if (running() || !status_) return std::nullopt;
  return WIFEXITED(*status_) ? WEXITSTATUS(*status_) : 128 + WTERMSIG(*status_);
}

std::string BinaryDir() {
  if (const char* dir = std::getenv("HOLDFAST_BIN_DIR")) return dir;
  char path[4096];
  ssize_t n = ::readlink("/proc/self/exe", path, sizeof path - 1);
  if (n <= 0) return ".";
  path[n] = '\0';
  char* slash = std::strrchr(path, '/');
  return std::string(path, slash);
}

}  // namespace holdfast::local
