#include <fcntl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <string>
#include <string_view>

#include "agent/arena/keeper.h"
#include "agent/arena/keeper_client.h"
#include "base/cores.h"
#include "base/service_manager.h"

// holdfast-keeper: see keeper.h. Reads no configuration but its arguments.

namespace {
constexpr int kUsageError = 64;
constexpr char kHelp[] =
    "usage: holdfast-keeper --run-dir DIR\n"
    "\n"
    "Holds the memory of a node's checkpoints while the agent restarts. The agent or a service\n"
    "manager starts it; SIGTERM ends it and frees the memory.\n"
    "\n"
    "  --run-dir DIR    where keeper.sock, keeper.lock (with the pid) and keeper.log are\n"
    "  --ping           exit with 0 if a keeper answers in DIR, and with 1 otherwise\n"
    "  --version        print version, commit, compiler and features\n"
    "  --print-config   print the effective configuration as TOML\n"
    "  --check-config   check the arguments and exit\n"
    "  --help           this text\n";

struct Arguments {
  std::string run_dir;
  bool version = false;
  bool help = false;
  bool print_config = false;
  bool check_config = false;
  bool ping = false;
};

/// Returns the first invalid argument, or an empty string.
std::string ParseArguments(int argc, char** argv, Arguments& arguments) {
  for (int i = 1; i < argc; ++i) {
    std::string_view argument = argv[i];
    if (argument == "--version") {
      arguments.version = true;
    } else if (argument == "--help" || argument == "-h") {
      arguments.help = true;
    } else if (argument == "--print-config") {
      arguments.print_config = true;
    } else if (argument == "--check-config") {
      arguments.check_config = true;
    } else if (argument == "--ping") {
      arguments.ping = true;
    } else if (argument == "--run-dir" && i + 1 < argc) {
      arguments.run_dir = argv[++i];
    } else {
      return std::string(argument);
    }
  }
  return {};
}

std::string BuildText() {
  std::string text = HOLDFAST_VERSION " (commit " HOLDFAST_COMMIT ", ";
#if defined(__clang__)
  text += "clang " __clang_version__;
#else
  text += "gcc " __VERSION__;
#endif
#if defined(HOLDFAST_CRASH_POINTS)
  text += ", crash points";
#endif
  return text + ")";
}

/// Closes all descriptors inherited from the process that started the keeper, which may run for as
/// long as the node is up.
void CloseInherited() {
  if (::syscall(SYS_close_range, 3U, UINT_MAX, 0U) == 0) return;
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  int end = static_cast<int>(std::min<rlim_t>(limit.rlim_cur, 1U << 20));
  for (int fd = 3; fd < end; ++fd) ::close(fd);
}

void RaiseLimits() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < limit.rlim_max) {
    limit.rlim_cur = limit.rlim_max;
    ::setrlimit(RLIMIT_NOFILE, &limit);
  }
  // The OOM killer should choose other processes first. Lowering the score needs a privilege, and
  // the keeper works without.
  holdfast::UniqueFd fd(::open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC));
  constexpr std::string_view kScore = "-900";
  if (fd.valid() && ::write(fd.get(), kScore.data(), kScore.size()) < 0) {
    std::fprintf(stderr, "keeper: cannot lower oom_score_adj: %s\n", std::strerror(errno));
  }
}

/// Becomes readable on SIGTERM or SIGINT.
holdfast::UniqueFd StopSignals() {
  // A signal that is ignored by inheritance would never reach the signalfd.
  std::signal(SIGTERM, SIG_DFL);
  std::signal(SIGINT, SIG_DFL);
  std::signal(SIGHUP, SIG_IGN);
  std::signal(SIGPIPE, SIG_IGN);
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  ::sigprocmask(SIG_SETMASK, &signals, nullptr);
  return holdfast::UniqueFd(::signalfd(-1, &signals, SFD_CLOEXEC));
}

int Ping(const std::string& run_dir) {
  const auto keeper = holdfast::agent::KeeperClient::Connect(run_dir, holdfast::Clock::Real());
  if (keeper) return 0;
  std::fprintf(stderr, "holdfast-keeper: %s\n", keeper.error().message().c_str());
  return 1;
}

int Serve(const std::string& run_dir) {
  // The checkpoints of all users, also where a service manager starts the keeper.
  holdfast::KeepMemoryOutOfCores();
  const auto manager = holdfast::ServiceManager::FromEnvironment();
  CloseInherited();
  RaiseLimits();
  ::setsid();  // fails when this process already leads a session
  holdfast::UniqueFd stop = StopSignals();
  auto keeper = holdfast::agent::Keeper::Open(run_dir, holdfast::Clock::Real());
  if (!keeper) {
    std::fprintf(stderr, "keeper: %s\n", keeper.error().ToString().c_str());
    return 1;
  }
  manager.Ready();
  holdfast::Status status = (*keeper)->Run(stop.get());
  manager.Stopping();
  if (status.ok()) return 0;
  std::fprintf(stderr, "keeper: %s\n", status.ToString().c_str());
  return 1;
}
}  // namespace

int main(int argc, char** argv) {
  Arguments arguments;
  std::string wrong = ParseArguments(argc, argv, arguments);
  if (!wrong.empty()) {
    std::fprintf(stderr, "holdfast-keeper: unknown or incomplete argument %s\n%s", wrong.c_str(),
                 kHelp);
    return kUsageError;
  }
  if (arguments.help) return std::fputs(kHelp, stdout) < 0;
  if (arguments.version) return std::printf("holdfast-keeper %s\n", BuildText().c_str()) < 0;
  if (arguments.run_dir.empty() || arguments.run_dir[0] != '/') {
    std::fprintf(stderr, "holdfast-keeper: --run-dir needs an absolute path\n");
    return kUsageError;
  }
  if (arguments.print_config) {
    return std::printf("run_dir = \"%s\"\n", arguments.run_dir.c_str()) < 0;
  }
  if (arguments.check_config) return std::puts("configuration ok") < 0;
  return arguments.ping ? Ping(arguments.run_dir) : Serve(arguments.run_dir);
}
