#include "faults/injector/order_book.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <spawn.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <filesystem>

#include "base/log.h"

extern char** environ;

namespace holdfast::faults {
namespace {
namespace fs = std::filesystem;
using std::chrono::milliseconds;
constexpr int64_t kStartTimeoutMs = 10'000;
constexpr int64_t kEndTimeoutMs = 10'000;
constexpr int64_t kPollMs = 5;
constexpr const char* kTemporary = ".tmp";

/// Starts this program in a new session, so that a signal to the terminal does not end it. SIGTERM
/// and SIGINT are blocked from the beginning: the program waits for them.
Result<pid_t> Spawn(const std::string& program, std::vector<std::string> arguments) {
  std::vector<char*> pointers;
  for (std::string& argument : arguments) pointers.push_back(argument.data());
  pointers.push_back(nullptr);
  posix_spawn_file_actions_t files;
  posix_spawnattr_t attributes;
  ::posix_spawn_file_actions_init(&files);
  ::posix_spawnattr_init(&attributes);
  ::posix_spawn_file_actions_addclosefrom_np(&files, STDERR_FILENO + 1);
  sigset_t ends;
  ::sigemptyset(&ends);
  ::sigaddset(&ends, SIGTERM);
  ::sigaddset(&ends, SIGINT);
  sigset_t defaults;
  ::sigemptyset(&defaults);
  ::sigaddset(&defaults, SIGPIPE);
  ::posix_spawnattr_setsigmask(&attributes, &ends);
  ::posix_spawnattr_setsigdefault(&attributes, &defaults);
  ::posix_spawnattr_setflags(&attributes,
                             POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETSID);
  pid_t pid = 0;
  const int failed =
      ::posix_spawn(&pid, program.c_str(), &files, &attributes, pointers.data(), environ);
  ::posix_spawnattr_destroy(&attributes);
  ::posix_spawn_file_actions_destroy(&files);
  if (failed != 0) return Fail(ErrnoStatus(failed, "start holdfast-fault"));
  return pid;
}
}  // namespace

Result<std::unique_ptr<OrderBook>> OrderBook::Open(std::string folder, Clock& clock,
                                                   std::string program) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) return Fail(ErrnoStatus(error.value(), "create " + folder));
  // Orders have the environments of servers, which may contain keys.
  if (::chmod(folder.c_str(), 0700) != 0) return Fail(ErrnoStatus(errno, "chmod " + folder));
  return std::unique_ptr<OrderBook>(new OrderBook(std::move(folder), clock, std::move(program)));
}

std::vector<OrderBook::Entry> OrderBook::Entries() const {
  std::vector<Entry> entries;
  std::error_code ignored;
  for (const auto& file : fs::directory_iterator(folder_, ignored)) {
    const std::string name = file.path().filename();
    if (name.ends_with(kTemporary)) continue;
    entries.push_back({file.path(), name.substr(0, name.rfind('.')), HolderOf(file.path())});
  }
  return entries;
}

Status OrderBook::CheckFreeLocked(const std::string& drill) const {
  for (const Entry& entry : Entries()) {
    if (entry.drill == drill) continue;
    return FailedPreconditionError(fmt::format(
        "another drill ({}) is in force on this machine: try again after its end", entry.drill));
  }
  return Status::Ok();
}

Status OrderBook::CheckFree(const std::string& drill) {
  MutexLock lock(mutex_);
  return CheckFreeLocked(drill);
}

Status OrderBook::Begin(const std::string& drill, const Order& order) {
  MutexLock lock(mutex_);
  HOLDFAST_RETURN_IF_ERROR(CheckFreeLocked(drill));
  const std::string path = fmt::format("{}/{}.{}", folder_, drill, NameOf(order.action));
  HOLDFAST_RETURN_IF_ERROR(WriteOrder(path, order));
  const Status started = Start("--carry-out", path);
  // The process may have been killed after the fault began: the fault is undone like any other.
  if (!started.ok()) WatchLocked();
  return started;
}

Status OrderBook::Start(const char* mode, const std::string& path) {
  HOLDFAST_ASSIGN_OR_RETURN(const pid_t pid, Spawn(program_, {"holdfast-fault", mode, path}));
  const auto until = clock_.Now() + milliseconds(kStartTimeoutMs);
  while (HolderOf(path).pid != pid) {
    int result = 0;
    if (::waitpid(pid, &result, WNOHANG) == pid) {
      return result == 0 ? Status::Ok() : InternalError("holdfast-fault failed; see its log");
    }
    if (clock_.Now() > until) {
      ::kill(pid, SIGKILL);
      children_.insert(pid);
      return DeadlineExceededError("a process of holdfast-fault does not start");
    }
    // A brief fault may have ended, and its file with it. The process is then about to end.
    clock_.SleepFor(milliseconds(kPollMs));
  }
  children_.insert(pid);
  return Status::Ok();
}

Status OrderBook::End(const std::string& drill) {
  const auto until = clock_.Now() + milliseconds(kEndTimeoutMs);
  for (;;) {
    bool left = false;
    {
      MutexLock lock(mutex_);
      for (const Entry& entry : Entries()) {
        if (entry.drill != drill) continue;
        left = true;
        if (entry.holder.pid != 0) static_cast<void>(SignalProcess(entry.holder, SIGTERM).ok());
      }
      WatchLocked();
    }
    if (!left) return Status::Ok();
    if (clock_.Now() > until) break;
    clock_.SleepFor(milliseconds(kPollMs));
  }
  return DeadlineExceededError(fmt::format("a fault of drill {} does not end", drill));
}

void OrderBook::Watch() {
  MutexLock lock(mutex_);
  WatchLocked();
}

void OrderBook::WatchLocked() {
  std::erase_if(children_, [](pid_t child) { return ::waitpid(child, nullptr, WNOHANG) != 0; });
  for (const Entry& entry : Entries()) {
    // The process may have removed the file, or got the lock, since the folder was read.
    if (entry.holder.pid != 0 || HolderOf(entry.path).pid != 0) continue;
    if (::access(entry.path.c_str(), F_OK) != 0) continue;
    const Status undone = Start("--undo", entry.path);
    Log(LogLevel::kWarn, "FaultUndoneByWatchdog",
        {Kv("order", entry.path), Kv("result", undone.ToString())});
  }
}

}  // namespace holdfast::faults
