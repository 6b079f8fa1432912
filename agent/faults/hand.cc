#include "agent/faults/hand.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <spawn.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <optional>

#include "agent/api/socket.h"
#include "agent/workers/worker_files.h"
#include "storage/base/clock.h"
#include "storage/base/fd.h"

extern char** environ;

namespace holdfast::agent {
namespace {
namespace fs = std::filesystem;
using std::chrono::milliseconds;
constexpr int64_t kDutyPeriodMs = 100;
constexpr int64_t kRefillMs = 100;
constexpr int64_t kEndTimeoutMs = 10'000;
constexpr int64_t kFillStepBytes = 1 << 20;
constexpr int kDeathTimeoutMs = 20'000;
constexpr int kRehearsalTimeoutMs = 10'000;
constexpr size_t kErrorBytesMax = 4096;
constexpr const char* kSays = "holdfast-fault: ";

constexpr HandAction kActions[] = {HandAction::kRestart, HandAction::kStop, HandAction::kFill,
                                   HandAction::kCut};
std::string NameOf(HandAction action) {
  constexpr const char* kNames[] = {"restart", "stop", "fill", "cut"};
  return kNames[static_cast<size_t>(action)];
}

std::vector<std::string> ArgumentsOf(const HandOrder& order) {
  std::vector<std::string> arguments = {
      "action=" + NameOf(order.action),
      "record=" + order.record,
      fmt::format("start_in_ms={}", order.start_in_ms),
      fmt::format("duration_ms={}", order.duration_ms),
      fmt::format("pid={}", order.process.pid),
      fmt::format("start_ticks={}", order.process.start_ticks),
      fmt::format("stopped_percent={}", order.stopped_percent),
      "node_run_dir=" + order.node_run_dir,
  };
  for (const std::string& file : order.files) arguments.push_back("file=" + file);
  if (order.action != HandAction::kCut) return arguments;
  arguments.push_back("drill=" + order.cut.drill);
  arguments.push_back(fmt::format("bytes_per_s={}", order.cut.bytes_per_s));
  for (const std::string& address : order.cut.addresses) arguments.push_back("address=" + address);
  return arguments;
}

template <typename Number>
bool ReadNumber(const std::string& text, Number* number) {
  const char* end = text.data() + text.size();
  const auto read = std::from_chars(text.data(), end, *number);
  return read.ec == std::errc() && read.ptr == end;
}

Status TakeArgument(const std::string& argument, HandOrder* order) {
  const size_t equals = argument.find('=');
  const std::string key = argument.substr(0, equals);
  const std::string value = equals == std::string::npos ? "" : argument.substr(equals + 1);
  bool good = true;
  if (key == "action") {
    for (const HandAction action : kActions) {
      if (value == NameOf(action)) order->action = action;
    }
    good = value == NameOf(order->action);
  } else if (key == "record") {
    order->record = value;
  } else if (key == "start_in_ms") {
    good = ReadNumber(value, &order->start_in_ms);
  } else if (key == "duration_ms") {
    good = ReadNumber(value, &order->duration_ms);
  } else if (key == "pid") {
    good = ReadNumber(value, &order->process.pid);
  } else if (key == "start_ticks") {
    good = ReadNumber(value, &order->process.start_ticks);
  } else if (key == "stopped_percent") {
    good = ReadNumber(value, &order->stopped_percent) && order->stopped_percent <= 100;
  } else if (key == "node_run_dir") {
    order->node_run_dir = value;
  } else if (key == "file") {
    order->files.push_back(value);
  } else if (key == "drill") {
    order->cut.drill = value;
  } else if (key == "bytes_per_s") {
    good = ReadNumber(value, &order->cut.bytes_per_s);
  } else if (key == "address") {
    order->cut.addresses.push_back(value);
  } else {
    good = false;
  }
  return good ? Status::Ok() : InvalidArgumentError("cannot use '" + argument + "'");
}

Result<HandOrder> ParseArguments(std::span<const std::string> arguments) {
  HandOrder order;
  for (const std::string& argument : arguments) {
    HOLDFAST_RETURN_IF_ERROR(TakeArgument(argument, &order));
  }
  if (order.record.empty()) return Fail(InvalidArgumentError("record= is missing"));
  return order;
}

/// SIGTERM and SIGINT are blocked and taken here. True: the fault is to end now.
bool ToldToEndWithin(int64_t ms) {
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

std::optional<ProcessName> ReadRecord(const std::string& path) {
  std::ifstream file(path);
  ProcessName process;
  if (file >> process.pid >> process.start_ticks) return process;
  return std::nullopt;
}

Status WriteRecord(const std::string& path, const ProcessName& process) {
  std::ofstream file(path, std::ios::trunc);
  file << process.pid << ' ' << process.start_ticks << '\n';
  return file.flush() ? Status::Ok() : IoErrorError("cannot write " + path);
}

Status KillAndAwait(const ProcessName& process) {
  HOLDFAST_ASSIGN_OR_RETURN(UniqueFd end, PidFdOf(process.pid));
  HOLDFAST_RETURN_IF_ERROR(SignalProcess(process, SIGKILL));
  pollfd waiting{end.get(), POLLIN, 0};
  int ready = 0;
  do {
    ready = ::poll(&waiting, 1, kDeathTimeoutMs);
  } while (ready < 0 && errno == EINTR);
  return ready > 0 ? Status::Ok()
                   : DeadlineExceededError(fmt::format("process {} does not end", process.pid));
}

// ---- restart ----

/// How a process was started.
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
  std::perror(("holdfast-fault: start again " + launch.program).c_str());
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

/// The agent first, which would start again whatever else ends.
Status KillNode(const HandOrder& order) {
  ProcessName keeper;
  if (auto socket = ConnectUnix(order.node_run_dir + "/keeper.sock")) {
    if (auto credentials = CredentialsOf(socket->get())) keeper = NameProcess(credentials->pid);
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

Status Restart(const HandOrder& order) {
  HOLDFAST_ASSIGN_OR_RETURN(Launch launch, LaunchOf(order.process));
  HOLDFAST_ASSIGN_OR_RETURN(UniqueFd end, PidFdOf(order.process.pid));
  if (ToldToEndWithin(order.start_in_ms)) return Status::Ok();
  HOLDFAST_RETURN_IF_ERROR(order.node_run_dir.empty() ? SignalProcess(order.process, SIGKILL)
                                                      : KillNode(order));
  pollfd waiting{end.get(), POLLIN, 0};
  while (::poll(&waiting, 1, -1) < 0 && errno == EINTR) {
  }
  ToldToEndWithin(order.duration_ms);
  ::unlink(order.record.c_str());
  Become(std::move(launch));
}

// ---- stop ----

Status StopAndContinue(const HandOrder& order) {
  if (ToldToEndWithin(order.start_in_ms)) return Status::Ok();
  const int64_t stopped_ms = kDutyPeriodMs * order.stopped_percent / 100;
  const auto until = Clock::Real().Now() + milliseconds(order.duration_ms);
  bool end = false;
  while (!end && Clock::Real().Now() < until && SignalProcess(order.process, SIGSTOP).ok()) {
    end = ToldToEndWithin(stopped_ms);
    if (stopped_ms == kDutyPeriodMs) continue;
    static_cast<void>(SignalProcess(order.process, SIGCONT).ok());
    end = end || ToldToEndWithin(kDutyPeriodMs - stopped_ms);
  }
  // One that has ended meanwhile needs no more.
  static_cast<void>(SignalProcess(order.process, SIGCONT).ok());
  return Status::Ok();
}

// ---- fill ----

void TakeAllRoom(int fd) {
  struct stat info {};
  for (int64_t step = kFillStepBytes << 10; step >= 4096;) {
    if (::fstat(fd, &info) != 0) return;
    if (::fallocate(fd, 0, info.st_size, step) != 0 && errno != EINTR) step /= 4;
  }
}

Status Fill(const HandOrder& order) {
  if (ToldToEndWithin(order.start_in_ms)) return Status::Ok();
  std::vector<UniqueFd> files;
  Status status;
  for (const std::string& path : order.files) {
    files.emplace_back(::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
    if (!files.back().valid()) status = ErrnoStatus(errno, "create " + path);
  }
  const auto until = Clock::Real().Now() + milliseconds(order.duration_ms);
  do {
    // Again and again: what retention frees is taken, too.
    for (const UniqueFd& file : files) TakeAllRoom(file.get());
  } while (status.ok() && Clock::Real().Now() < until && !ToldToEndWithin(kRefillMs));
  for (const std::string& path : order.files) ::unlink(path.c_str());
  return status;
}

// ---- cut ----

Status CutLinks(const HandOrder& order) {
  if (ToldToEndWithin(order.start_in_ms)) return Status::Ok();
  HOLDFAST_ASSIGN_OR_RETURN(const NetworkCut cut, NetworkCut::Make(order.cut));
  ToldToEndWithin(order.duration_ms);
  return Status::Ok();
}

Status CarryOut(const HandOrder& order) {
  switch (order.action) {
    case HandAction::kRestart:
      return Restart(order);
    case HandAction::kStop:
      return StopAndContinue(order);
    case HandAction::kFill:
      return Fill(order);
    case HandAction::kCut:
      return CutLinks(order);
  }
  return InternalError("no such action");
}

/// Runs `words`; what it says goes to `errors`, or where ours goes (-1).
Result<pid_t> Spawn(std::vector<std::string> words, int errors) {
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  posix_spawn_file_actions_t files;
  posix_spawnattr_t attributes;
  ::posix_spawn_file_actions_init(&files);
  ::posix_spawnattr_init(&attributes);
  if (errors >= 0) ::posix_spawn_file_actions_adddup2(&files, errors, STDERR_FILENO);
  ::posix_spawn_file_actions_addclosefrom_np(&files, 3);
  sigset_t ends;
  ::sigemptyset(&ends);
  ::sigaddset(&ends, SIGTERM);
  ::sigaddset(&ends, SIGINT);
  ::posix_spawnattr_setsigmask(&attributes, &ends);
  ::posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSID);
  pid_t pid = 0;
  const int failed =
      ::posix_spawn(&pid, pointers[0], &files, &attributes, pointers.data(), environ);
  ::posix_spawnattr_destroy(&attributes);
  ::posix_spawn_file_actions_destroy(&files);
  if (failed != 0) return Fail(ErrnoStatus(failed, "start " + words[0]));
  return pid;
}

/// What is written there until its end, or until the time is over.
std::string ReadToEnd(int fd) {
  const auto until = Clock::Real().Now() + milliseconds(kRehearsalTimeoutMs);
  std::string text;
  char piece[512];
  pollfd waiting{fd, POLLIN, 0};
  while (text.size() < kErrorBytesMax && Clock::Real().Now() < until) {
    if (::poll(&waiting, 1, kDutyPeriodMs) == 0) continue;
    const ssize_t got = ::read(fd, piece, sizeof(piece));
    if (got == 0 || (got < 0 && errno != EINTR)) break;
    if (got > 0) text.append(piece, static_cast<size_t>(got));
  }
  return text;
}
}  // namespace

Status SignalProcess(const ProcessName& process, int signal) {
  auto fd =
      process.pid > 1 ? PidFdOf(process.pid) : Fail(NotFoundError("there is no such process"));
  // While the descriptor is open its process is the one that is looked at.
  if (!fd || !IsAlive(process)) {
    return NotFoundError(fmt::format("process {} has ended", process.pid));
  }
  if (::syscall(SYS_pidfd_send_signal, fd->get(), signal, nullptr, 0) == 0) return Status::Ok();
  return ErrnoStatus(errno, fmt::format("signal process {}", process.pid));
}

Result<pid_t> StartHand(const HandOrder& order) {
  HOLDFAST_ASSIGN_OR_RETURN(std::string program, ProgramBeside("holdfast-fault"));
  const auto before = ReadRecord(order.record);
  if (before && IsAlive(*before)) {
    return Fail(AlreadyExistsError("this drill is under way here already"));
  }
  std::error_code error;
  fs::create_directories(fs::path(order.record).parent_path(), error);
  if (error) return Fail(ErrnoStatus(error.value(), "create the folder of " + order.record));
  std::vector<std::string> words = ArgumentsOf(order);
  words.insert(words.begin(), program);
  HOLDFAST_ASSIGN_OR_RETURN(const pid_t pid, Spawn(std::move(words), -1));
  HOLDFAST_RETURN_IF_ERROR(WriteRecord(order.record, NameProcess(pid)));
  return pid;
}

Status RehearseHand(const HandOrder& order) {
  HOLDFAST_ASSIGN_OR_RETURN(std::string program, ProgramBeside("holdfast-fault"));
  std::vector<std::string> words = ArgumentsOf(order);
  words.insert(words.begin(), {program, "rehearse=1"});
  int ends[2] = {-1, -1};
  if (::pipe2(ends, O_CLOEXEC) != 0) return ErrnoStatus(errno, "pipe");
  const UniqueFd reader(ends[0]);
  UniqueFd writer(ends[1]);
  HOLDFAST_ASSIGN_OR_RETURN(const pid_t pid, Spawn(std::move(words), writer.get()));
  writer.Reset();
  std::string text = ReadToEnd(reader.get());
  // One that says no more has ended, or is of no use.
  ::kill(pid, SIGKILL);
  int result = 0;
  while (::waitpid(pid, &result, 0) < 0 && errno == EINTR) {
  }
  if (result == 0) return Status::Ok();
  while (!text.empty() && text.back() == '\n') text.pop_back();
  if (text.rfind(kSays, 0) == 0) text.erase(0, std::string(kSays).size());
  return FailedPreconditionError(text.empty() ? "holdfast-fault gave no answer" : text);
}

Status EndHand(const std::string& record) {
  const auto hand = ReadRecord(record);
  if (!hand) return Status::Ok();
  const auto until = Clock::Real().Now() + milliseconds(kEndTimeoutMs);
  if (!SignalProcess(*hand, SIGTERM).ok()) {
    ::unlink(record.c_str());
    return Status::Ok();
  }
  while (IsAlive(*hand) && Clock::Real().Now() < until) Clock::Real().SleepFor(milliseconds(5));
  if (!IsAlive(*hand)) return Status::Ok();
  return DeadlineExceededError(fmt::format("process {} does not end its fault", hand->pid));
}

int RunHand(std::span<const std::string> arguments) {
  sigset_t ends;
  ::sigemptyset(&ends);
  ::sigaddset(&ends, SIGTERM);
  ::sigaddset(&ends, SIGINT);
  ::sigprocmask(SIG_SETMASK, &ends, nullptr);
  const bool rehearsal = !arguments.empty() && arguments[0] == "rehearse=1";
  auto order = ParseArguments(arguments.subspan(rehearsal ? 1 : 0));
  Status status = order ? Status::Ok() : order.error();
  if (order && rehearsal) {
    status = NetworkCut::Rehearse(order->cut);
  } else if (order) {
    status = CarryOut(*order);
    ::unlink(order->record.c_str());
  }
  if (status.ok()) return 0;
  std::fprintf(stderr, "%s%s\n", kSays, status.message().c_str());
  return 1;
}

}  // namespace holdfast::agent
