#include "agent/arena/keeper_client.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <climits>
#include <cstring>

#include "agent/api/messages.h"
#include "agent/api/socket.h"
#include "base/clock.h"

namespace holdfast::agent {
namespace {
constexpr int kAnswerMs = 5000;
constexpr auto kStartTimeout = std::chrono::seconds(10);
// An exiting keeper holds its lock a little longer than its socket, so starting one may fail:
// retry.
constexpr auto kStartRetryInterval = std::chrono::milliseconds(500);
constexpr unsigned kCloseRangeCloexec = 1U << 2;

bool NoKeeperRuns(ErrorCode code) {
  return code == ErrorCode::kNotFound || code == ErrorCode::kUnavailable;
}

/// What the new process needs. It is made before fork(): after fork() only async-signal-safe calls
/// are allowed, since other threads may hold any lock.
struct Launch {
  UniqueFd input;
  UniqueFd output;
  UniqueFd failure;  // carries errno when exec fails
  std::array<char*, 4> arguments{};
};

[[noreturn]] void ReportAndExit(const Launch& launch) {
  int error = errno;
  ssize_t written = ::write(launch.failure.get(), &error, sizeof(error));
  ::_exit(written == sizeof(error) ? 127 : 126);
}

[[noreturn]] void BecomeKeeper(const Launch& launch) {
  if (::setsid() < 0) ReportAndExit(launch);
  // The second fork makes the keeper an orphan: init reaps it, and it cannot acquire a terminal.
  pid_t pid = ::fork();
  if (pid < 0) ReportAndExit(launch);
  if (pid > 0) ::_exit(0);
  if (::dup2(launch.input.get(), 0) < 0 || ::dup2(launch.output.get(), 1) < 0 ||
      ::dup2(launch.output.get(), 2) < 0 || ::chdir("/") != 0) {
    ReportAndExit(launch);
  }
  ::syscall(SYS_close_range, 3U, UINT_MAX, kCloseRangeCloexec);
  ::execv(launch.arguments[0], launch.arguments.data());
  ReportAndExit(launch);
}

Result<UniqueFd> OpenLog(const std::string& run_dir) {
  std::string path = run_dir + "/keeper.log";
  UniqueFd log(::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!log.valid()) return Fail(ErrnoStatus(errno, "open " + path));
  return log;
}

Status StartKeeper(const std::string& run_dir, std::string binary) {
  if (::access(binary.c_str(), X_OK) != 0) {
    return ErrnoStatus(errno, "start the keeper " + binary +
                                  " (install holdfast-keeper in the folder of holdfast-agent)");
  }
  std::string option = "--run-dir";
  std::string value = run_dir;
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return ErrnoStatus(errno, "pipe2");
  UniqueFd failure(ends[0]);
  Launch launch;
  launch.failure = UniqueFd(ends[1]);
  launch.input = UniqueFd(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  if (!launch.input.valid()) return ErrnoStatus(errno, "open /dev/null");
  HOLDFAST_ASSIGN_OR_RETURN(launch.output, OpenLog(run_dir));
  launch.arguments = {binary.data(), option.data(), value.data(), nullptr};

  pid_t child = ::fork();
  if (child < 0) return ErrnoStatus(errno, "fork for the keeper");
  if (child == 0) BecomeKeeper(launch);
  launch.failure.Reset();
  while (::waitpid(child, nullptr, 0) < 0 && errno == EINTR) {
  }
  int error = 0;
  ssize_t bytes = 0;
  do {
    bytes = ::read(failure.get(), &error, sizeof(error));
  } while (bytes < 0 && errno == EINTR);
  if (bytes == sizeof(error)) return ErrnoStatus(error, "start the keeper " + binary);
  return Status::Ok();
}

Result<KeeperRequest> RequestFor(KeeperOp op, std::string_view name) {
  if (name.size() >= kKeptNameBytes) {
    return Fail(InvalidArgumentError(fmt::format("an entry's name has {} bytes; the limit is {}",
                                                 name.size(), kKeptNameBytes - 1)));
  }
  KeeperRequest request;
  request.op = op;
  PutText(request.name, name);
  return request;
}
}  // namespace

Result<KeeperClient> KeeperClient::Connect(const std::string& run_dir, Clock& clock) {
  HOLDFAST_ASSIGN_OR_RETURN(UniqueFd socket, ConnectUnix(KeeperSocketPath(run_dir)));
  KeeperClient client(std::move(socket), clock);
  auto usage = client.Usage();
  if (!usage) return Fail(usage.error().WithContext(KeeperSocketPath(run_dir)));
  return client;
}

Result<KeeperClient> KeeperClient::ConnectOrStart(const std::string& run_dir,
                                                  const std::string& binary, Clock& clock) {
  const auto deadline = clock.Now() + kStartTimeout;
  auto start_at = clock.Now();
  for (;;) {
    auto client = Connect(run_dir, clock);
    if (client || !NoKeeperRuns(client.error().code())) return client;
    if (clock.Now() >= deadline) {
      return Fail(UnavailableError(
          fmt::format("the keeper {} does not answer: see {}/keeper.log", binary, run_dir)));
    }
    if (clock.Now() >= start_at) {
      HOLDFAST_RETURN_IF_ERROR(StartKeeper(run_dir, binary));
      start_at = clock.Now() + kStartRetryInterval;
    }
    clock.SleepFor(std::chrono::milliseconds(5));
  }
}

Result<KeeperClient> KeeperClient::Await(const std::string& run_dir,
                                         std::chrono::milliseconds patience, Clock& clock) {
  const auto deadline = clock.Now() + patience;
  for (;;) {
    auto client = Connect(run_dir, clock);
    if (client || !NoKeeperRuns(client.error().code())) return client;
    if (clock.Now() >= deadline) {
      return Fail(UnavailableError(
          fmt::format("no keeper answers at {}, and arena.start_keeper is false: start "
                      "holdfast-keeper --run-dir {}",
                      KeeperSocketPath(run_dir), run_dir)));
    }
    clock.SleepFor(std::chrono::milliseconds(20));
  }
}

Result<KeeperClient::Answer> KeeperClient::Call(const KeeperRequest& request,
                                                std::span<const int> fds) {
  if (!socket_.valid()) return Fail(UnavailableError("the connection to the keeper is closed"));
  // A keeper that refuses a client replies and closes the connection before it reads the request,
  // so the reply may be there although sending failed.
  Status sent = SendPacket(socket_.get(), std::as_bytes(std::span(&request, 1)), fds);
  if (!sent.ok() && sent.code() != ErrorCode::kUnavailable) return Fail(std::move(sent));
  auto packet = AwaitPacket(socket_.get(), sizeof(KeeperReply), kAnswerMs, *clock_);
  Answer answer;
  if (packet && packet->bytes.size() == sizeof(KeeperReply)) {
    std::memcpy(&answer.reply, packet->bytes.data(), sizeof(KeeperReply));
    if (answer.reply.magic == kKeeperMagic && answer.reply.note_bytes <= kKeptNoteBytes) {
      answer.fds = std::move(packet->fds);
      return answer;
    }
  }
  socket_.Reset();
  if (packet && packet->bytes.empty()) {
    return Fail(UnavailableError("the keeper closed the connection"));
  }
  if (packet) return Fail(InternalError("the keeper's reply does not follow the protocol"));
  return Fail(packet.error().WithContext("waiting for the keeper's reply"));
}

Status KeeperClient::CallForStatus(const KeeperRequest& request, std::span<const int> fds) {
  HOLDFAST_ASSIGN_OR_RETURN(Answer answer, Call(request, fds));
  if (answer.reply.code == 0) return Status::Ok();
  return {ErrorFromNumber(answer.reply.code), "the keeper replied: " + GetText(answer.reply.text)};
}

Status KeeperClient::Put(const std::string& name, std::string_view note, std::span<const int> fds) {
  HOLDFAST_ASSIGN_OR_RETURN(KeeperRequest request, RequestFor(KeeperOp::kPut, name));
  if (note.size() > kKeptNoteBytes) return InvalidArgumentError("an entry's note is too long");
  request.note_bytes = static_cast<uint32_t>(note.size());
  std::memcpy(request.note, note.data(), note.size());
  return CallForStatus(request, fds);
}

Result<std::optional<KeptEntry>> KeeperClient::Next(const std::string& after) {
  HOLDFAST_ASSIGN_OR_RETURN(KeeperRequest request, RequestFor(KeeperOp::kNext, after));
  HOLDFAST_ASSIGN_OR_RETURN(Answer answer, Call(request));
  ErrorCode code = ErrorFromNumber(answer.reply.code);
  if (code == ErrorCode::kNotFound) return std::optional<KeptEntry>();
  if (code != ErrorCode::kOk) {
    return Fail(Status(code, "the keeper replied: " + GetText(answer.reply.text)));
  }
  const char* note = reinterpret_cast<const char*>(answer.reply.note);
  return std::optional<KeptEntry>(KeptEntry{.name = GetText(answer.reply.name),
                                            .note = std::string(note, answer.reply.note_bytes),
                                            .fds = std::move(answer.fds)});
}

Status KeeperClient::Drop(const std::string& name) {
  HOLDFAST_ASSIGN_OR_RETURN(KeeperRequest request, RequestFor(KeeperOp::kDrop, name));
  return CallForStatus(request);
}

Result<KeeperUsage> KeeperClient::Usage() {
  HOLDFAST_ASSIGN_OR_RETURN(Answer answer, Call(KeeperRequest{.op = KeeperOp::kUsage}));
  if (answer.reply.code != 0) {
    return Fail(Status(ErrorFromNumber(answer.reply.code),
                       "the keeper replied: " + GetText(answer.reply.text)));
  }
  return KeeperUsage{.pid = static_cast<pid_t>(answer.reply.pid),
                     .entries = answer.reply.entries,
                     .bytes = answer.reply.bytes};
}

Status KeeperClient::Shutdown() { return CallForStatus(KeeperRequest{.op = KeeperOp::kShutdown}); }

}  // namespace holdfast::agent
