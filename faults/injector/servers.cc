#include "faults/injector/servers.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <grp.h>
#include <pwd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>

#include "base/endpoint.h"
#include "base/fd.h"

namespace holdfast::faults {
namespace {
namespace fs = std::filesystem;
constexpr const char* kDeleted = " (deleted)";
constexpr const char* kListening = "0A";  // in /proc/net/tcp

/// Returns the file that a link of /proc names. A program that was replaced by a newer one counts
/// as the newer one.
std::string LinkOf(const std::string& path) {
  std::error_code error;
  std::string target = fs::read_symlink(path, error);
  if (error) return "";
  if (target.ends_with(kDeleted)) target.resize(target.size() - std::strlen(kDeleted));
  return target;
}

bool Runs(pid_t pid, const std::string& program) {
  return fs::path(LinkOf(fmt::format("/proc/{}/exe", pid))).filename() == program;
}

/// Returns the process that listens on a unix socket of any type; 0: none.
pid_t UnixListener(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof(address.sun_path)) return 0;
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  for (const int type : {SOCK_SEQPACKET, SOCK_STREAM}) {
    const UniqueFd socket(::socket(AF_UNIX, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0)
      continue;
    ucred peer{};
    socklen_t bytes = sizeof(peer);
    if (::getsockopt(socket.get(), SOL_SOCKET, SO_PEERCRED, &peer, &bytes) == 0) return peer.pid;
  }
  return 0;
}

/// Returns the targets of the links in /proc/PID/fd of processes that listen at `port`.
std::set<std::string> ListeningSockets(uint16_t port) {
  std::set<std::string> sockets;
  for (const char* path : {"/proc/net/tcp", "/proc/net/tcp6"}) {
    std::ifstream file(path);
    std::string line;
    std::getline(file, line);  // the heading
    while (std::getline(file, line)) {
      std::istringstream words(line);
      std::string entry, local, remote, state, queues, timer, retransmits, uid, timeout, inode;
      words >> entry >> local >> remote >> state >> queues >> timer >> retransmits >> uid >>
          timeout >> inode;
      if (state == kListening && local.ends_with(fmt::format(":{:04X}", port))) {
        sockets.insert("socket:[" + inode + "]");
      }
    }
  }
  return sockets;
}

pid_t TcpListener(uint16_t port, const std::string& program) {
  const std::set<std::string> sockets = ListeningSockets(port);
  std::error_code ignored;
  for (const auto& process : fs::directory_iterator("/proc", ignored)) {
    const std::string name = process.path().filename();
    if (sockets.empty() || name.find_first_not_of("0123456789") != std::string::npos) continue;
    if (!Runs(std::stoi(name), program)) continue;
    for (const auto& fd : fs::directory_iterator(process.path() / "fd", ignored)) {
      if (sockets.count(LinkOf(fd.path())) != 0) return std::stoi(name);
    }
  }
  return 0;
}

std::vector<std::string> ReadStrings(const std::string& path) {
  std::vector<std::string> strings;
  std::ifstream file(path, std::ios::binary);
  for (std::string text; std::getline(file, text, '\0');) strings.push_back(text);
  return strings;
}

/// Returns the file to which a descriptor of the process refers; empty for a pipe or a socket.
std::string FileOf(const std::string& proc, int fd) {
  const std::string target = LinkOf(fmt::format("{}fd/{}", proc, fd));
  return target.starts_with('/') && ::access(target.c_str(), W_OK) == 0 ? target : "";
}

std::vector<std::string> LimitsOf(pid_t pid) {
  std::vector<std::string> limits;
  for (int resource = 0; resource < RLIM_NLIMITS; ++resource) {
    rlimit limit{};
    const auto which = static_cast<__rlimit_resource>(resource);
    if (::prlimit(pid, which, nullptr, &limit) != 0) continue;
    limits.push_back(fmt::format("{} {} {}", resource, limit.rlim_cur, limit.rlim_max));
  }
  return limits;
}

void Apply(const std::vector<std::string>& limits) {
  for (const std::string& text : limits) {
    int resource = 0;
    rlimit limit{};
    std::istringstream words(text);
    if (!(words >> resource >> limit.rlim_cur >> limit.rlim_max)) continue;
    // A limit above this process's own needs a privilege. The server then has the lower limit.
    static_cast<void>(::setrlimit(static_cast<__rlimit_resource>(resource), &limit));
  }
}

Status TakeUser(uid_t uid, gid_t gid) {
  if (::geteuid() == uid) return Status::Ok();
  const passwd* user = ::getpwuid(uid);
  const int grouped = user != nullptr ? ::initgroups(user->pw_name, gid) : ::setgroups(1, &gid);
  if (grouped != 0 || ::setgid(gid) != 0 || ::setuid(uid) != 0) {
    return ErrnoStatus(errno, fmt::format("become user {}", uid));
  }
  return Status::Ok();
}

void Redirect(const std::string& path, int fd) {
  if (path.empty()) return;
  const UniqueFd file(::open(path.c_str(), O_WRONLY | O_APPEND | O_CLOEXEC));
  if (file.valid()) ::dup2(file.get(), fd);
}

std::vector<char*> Pointers(std::vector<std::string>& strings) {
  std::vector<char*> pointers;
  for (std::string& text : strings) pointers.push_back(text.data());
  pointers.push_back(nullptr);
  return pointers;
}
}  // namespace

Result<ProcessName> ServerAt(const std::string& endpoint, const std::string& program) {
  HOLDFAST_ASSIGN_OR_RETURN(const Endpoint at, ParseEndpoint(endpoint));
  const pid_t pid =
      at.kind == Endpoint::Kind::kUnix ? UnixListener(at.path) : TcpListener(at.port, program);
  const ProcessName server = pid > 0 ? NameProcess(pid) : ProcessName{};
  if (server.start_ticks != 0 && Runs(pid, program)) return server;
  return Fail(NotFoundError(
      fmt::format("no {} listens at {} on this machine, or its user is not that of holdfast-fault",
                  program, endpoint)));
}

Result<Launch> LaunchOf(const ProcessName& process) {
  const std::string proc = fmt::format("/proc/{}/", process.pid);
  Launch launch;
  launch.program = LinkOf(proc + "exe");
  launch.folder = LinkOf(proc + "cwd");
  launch.arguments = ReadStrings(proc + "cmdline");
  launch.environment = ReadStrings(proc + "environ");
  launch.out = FileOf(proc, STDOUT_FILENO);
  launch.errors = FileOf(proc, STDERR_FILENO);
  launch.limits = LimitsOf(process.pid);
  struct stat info {};
  const bool known = ::stat(proc.c_str(), &info) == 0;
  launch.uid = info.st_uid;
  launch.gid = info.st_gid;
  if (known && IsAlive(process) && !launch.program.empty() && !launch.arguments.empty()) {
    return launch;
  }
  return Fail(NotFoundError(fmt::format(
      "process {} has ended, or holdfast-fault may not read how it was started", process.pid)));
}

Result<std::string> EmbeddedStoreOf(const ProcessName& coordinator) {
  constexpr std::string_view kLock = "/metadata/LOCK";
  std::error_code error;
  for (const auto& entry :
       fs::directory_iterator(fmt::format("/proc/{}/fd", coordinator.pid), error)) {
    const std::string target = LinkOf(entry.path());
    if (target.ends_with(kLock)) return fs::path(target).parent_path().string();
  }
  if (error) return Fail(ErrnoStatus(error.value(), "list the coordinator's files"));
  return Fail(FailedPreconditionError(
      "the coordinator has no embedded store: its records are in an etcd, which no drill removes"));
}

Status Become(const Launch& launch) {
  std::vector<std::string> arguments = launch.arguments;
  std::vector<std::string> environment = launch.environment;
  Apply(launch.limits);
  HOLDFAST_RETURN_IF_ERROR(TakeUser(launch.uid, launch.gid));
  ::umask(launch.umask);
  Redirect(launch.out, STDOUT_FILENO);
  Redirect(launch.errors, STDERR_FILENO);
  sigset_t none;
  ::sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  if (::chdir(launch.folder.c_str()) == 0) {
    ::execve(launch.program.c_str(), Pointers(arguments).data(), Pointers(environment).data());
  }
  return ErrnoStatus(errno, "start " + launch.program);
}

Status CheckMaySignal(const ProcessName& process) {
  const Status status = SignalProcess(process, 0);
  if (status.code() != ErrorCode::kPermissionDenied) return status;
  return FailedPreconditionError(
      fmt::format("holdfast-fault runs as user {} and may not signal process {}: run it as the "
                  "user of that process, or as root",
                  ::geteuid(), process.pid));
}

}  // namespace holdfast::faults
