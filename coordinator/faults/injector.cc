#include "coordinator/faults/injector.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <optional>

#include "base/clock.h"
#include "base/fd.h"

extern char** environ;

namespace holdfast::coord {
namespace {
namespace fs = std::filesystem;
using std::chrono::milliseconds;
constexpr int kPollMs = 100;
constexpr int64_t kEndTimeoutMs = 10'000;
constexpr int kRehearsalTimeoutMs = 10'000;
constexpr size_t kErrorBytesMax = 4096;

constexpr InjectedFault kActions[] = {InjectedFault::kRestart, InjectedFault::kStop,
                                      InjectedFault::kFill, InjectedFault::kCut};
std::string NameOf(InjectedFault action) {
  constexpr const char* kNames[] = {"restart", "stop", "fill", "cut"};
  return kNames[static_cast<size_t>(action)];
}

std::vector<std::string> ArgumentsOf(const FaultRequest& request) {
  std::vector<std::string> arguments = {
      "action=" + NameOf(request.action),
      "record=" + request.record,
      fmt::format("start_in_ms={}", request.start_in_ms),
      fmt::format("duration_ms={}", request.duration_ms),
      fmt::format("pid={}", request.process.pid),
      fmt::format("start_ticks={}", request.process.start_ticks),
      fmt::format("stopped_percent={}", request.stopped_percent),
      "node_run_dir=" + request.node_run_dir,
  };
  for (const std::string& file : request.files) arguments.push_back("file=" + file);
  if (request.action != InjectedFault::kCut) return arguments;
  arguments.push_back("drill=" + request.cut.drill);
  arguments.push_back(fmt::format("bytes_per_s={}", request.cut.bytes_per_s));
  for (const std::string& address : request.cut.addresses) {
    arguments.push_back("address=" + address);
  }
  return arguments;
}

template <typename Number>
bool ReadNumber(const std::string& text, Number* number) {
  const char* end = text.data() + text.size();
  const auto read = std::from_chars(text.data(), end, *number);
  return read.ec == std::errc() && read.ptr == end;
}

Status TakeArgument(const std::string& argument, FaultRequest* request) {
  const size_t equals = argument.find('=');
  const std::string key = argument.substr(0, equals);
  const std::string value = equals == std::string::npos ? "" : argument.substr(equals + 1);
  bool good = true;
  if (key == "action") {
    for (const InjectedFault action : kActions) {
      if (value == NameOf(action)) request->action = action;
    }
    good = value == NameOf(request->action);
  } else if (key == "record") {
    request->record = value;
  } else if (key == "start_in_ms") {
    good = ReadNumber(value, &request->start_in_ms);
  } else if (key == "duration_ms") {
    good = ReadNumber(value, &request->duration_ms);
  } else if (key == "pid") {
    good = ReadNumber(value, &request->process.pid);
  } else if (key == "start_ticks") {
    good = ReadNumber(value, &request->process.start_ticks);
  } else if (key == "stopped_percent") {
    good = ReadNumber(value, &request->stopped_percent) && request->stopped_percent <= 100;
  } else if (key == "node_run_dir") {
    request->node_run_dir = value;
  } else if (key == "file") {
    request->files.push_back(value);
  } else if (key == "drill") {
    request->cut.drill = value;
  } else if (key == "bytes_per_s") {
    good = ReadNumber(value, &request->cut.bytes_per_s);
  } else if (key == "address") {
    request->cut.addresses.push_back(value);
  } else {
    good = false;
  }
  return good ? Status::Ok() : InvalidArgumentError("invalid argument '" + argument + "'");
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

/// Starts a process from its arguments. Its stderr goes to `errors`, or to the caller's stderr
/// (-1).
Result<pid_t> Spawn(std::vector<std::string> arguments, int errors) {
  std::vector<char*> pointers;
  for (std::string& argument : arguments) pointers.push_back(argument.data());
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
  if (failed != 0) return Fail(ErrnoStatus(failed, "start " + arguments[0]));
  return pid;
}

/// Reads `fd` until its end, until kErrorBytesMax, or until the timeout.
std::string ReadToEnd(int fd) {
  const auto until = Clock::Real().Now() + milliseconds(kRehearsalTimeoutMs);
  std::string text;
  char piece[512];
  pollfd waiting{fd, POLLIN, 0};
  while (text.size() < kErrorBytesMax && Clock::Real().Now() < until) {
    if (::poll(&waiting, 1, kPollMs) == 0) continue;
    const ssize_t got = ::read(fd, piece, sizeof(piece));
    if (got == 0 || (got < 0 && errno != EINTR)) break;
    if (got > 0) text.append(piece, static_cast<size_t>(got));
  }
  return text;
}
}  // namespace

Result<FaultRequest> ParseFaultRequest(std::span<const std::string> arguments) {
  FaultRequest request;
  for (const std::string& argument : arguments) {
    HOLDFAST_RETURN_IF_ERROR(TakeArgument(argument, &request));
  }
  if (request.record.empty()) return Fail(InvalidArgumentError("record= is missing"));
  return request;
}

Result<pid_t> StartInjector(const FaultRequest& request) {
  HOLDFAST_ASSIGN_OR_RETURN(std::string program, SiblingProgram("holdfast-fault"));
  const auto before = ReadRecord(request.record);
  if (before && IsAlive(*before)) {
    return Fail(AlreadyExistsError("this drill is already running on this node"));
  }
  std::error_code error;
  fs::create_directories(fs::path(request.record).parent_path(), error);
  if (error) return Fail(ErrnoStatus(error.value(), "create the folder of " + request.record));
  std::vector<std::string> arguments = ArgumentsOf(request);
  arguments.insert(arguments.begin(), program);
  HOLDFAST_ASSIGN_OR_RETURN(const pid_t pid, Spawn(std::move(arguments), -1));
  HOLDFAST_RETURN_IF_ERROR(WriteRecord(request.record, NameProcess(pid)));
  return pid;
}

Status RehearseInjector(const FaultRequest& request) {
  HOLDFAST_ASSIGN_OR_RETURN(std::string program, SiblingProgram("holdfast-fault"));
  std::vector<std::string> arguments = ArgumentsOf(request);
  arguments.insert(arguments.begin(), {program, "rehearse=1"});
  int ends[2] = {-1, -1};
  if (::pipe2(ends, O_CLOEXEC) != 0) return ErrnoStatus(errno, "pipe");
  const UniqueFd reader(ends[0]);
  UniqueFd writer(ends[1]);
  HOLDFAST_ASSIGN_OR_RETURN(const pid_t pid, Spawn(std::move(arguments), writer.get()));
  writer.Reset();
  std::string text = ReadToEnd(reader.get());
  // The injector has closed its stderr, or exceeded the timeout.
  ::kill(pid, SIGKILL);
  int result = 0;
  while (::waitpid(pid, &result, 0) < 0 && errno == EINTR) {
  }
  if (result == 0) return Status::Ok();
  while (!text.empty() && text.back() == '\n') text.pop_back();
  if (text.rfind(kInjectorPrefix, 0) == 0) text.erase(0, std::string(kInjectorPrefix).size());
  return FailedPreconditionError(text.empty() ? "holdfast-fault failed without a message" : text);
}

Status StopInjector(const std::string& record) {
  const auto injector = ReadRecord(record);
  if (!injector) return Status::Ok();
  const auto until = Clock::Real().Now() + milliseconds(kEndTimeoutMs);
  if (!SignalProcess(*injector, SIGTERM).ok()) {
    ::unlink(record.c_str());
    return Status::Ok();
  }
  while (IsAlive(*injector) && Clock::Real().Now() < until) Clock::Real().SleepFor(milliseconds(5));
  if (!IsAlive(*injector)) return Status::Ok();
  return DeadlineExceededError(
      fmt::format("the fault injector (process {}) does not end", injector->pid));
}

}  // namespace holdfast::coord
