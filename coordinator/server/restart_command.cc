#include "coordinator/server/restart_command.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <utility>

#include "base/log.h"

namespace holdfast::coord {
namespace {
constexpr std::chrono::milliseconds kPollInterval(20);

std::vector<std::string> EnvironmentOf(const IncidentRecord& incident) {
  std::vector<uint32_t> ranks;
  for (const Rank rank : incident.ranks) ranks.push_back(rank.value);
  return {"HOLDFAST_JOB=" + incident.job,
          fmt::format("HOLDFAST_INCIDENT={}", incident.id),
          "HOLDFAST_KIND=" + incident.kind,
          "HOLDFAST_WHAT=" + incident.what,
          fmt::format("HOLDFAST_RANKS={}", fmt::join(ranks, ",")),
          fmt::format("HOLDFAST_NODES={}", fmt::join(incident.nodes, ","))};
}

/// Starts `command` in a shell and returns its process ID. `own` precedes the environment of this
/// process.
Result<pid_t> SpawnShell(std::string command, std::vector<std::string> own) {
  std::vector<char*> environment;
  for (std::string& text : own) environment.push_back(text.data());
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    environment.push_back(*entry);
  }
  environment.push_back(nullptr);
  posix_spawn_file_actions_t files;
  posix_spawnattr_t attributes;
  ::posix_spawn_file_actions_init(&files);
  ::posix_spawnattr_init(&attributes);
  ::posix_spawn_file_actions_addopen(&files, 0, "/dev/null", O_RDONLY, 0);
  ::posix_spawn_file_actions_addclosefrom_np(&files, 3);
  sigset_t none;
  ::sigemptyset(&none);
  ::posix_spawnattr_setsigmask(&attributes, &none);
  ::posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSID);
  // This process runs with umask 077; the command's files need the usual permissions.
  command = "umask 022\n" + command;
  std::string shell = "/bin/sh";
  std::string option = "-c";
  char* const arguments[] = {shell.data(), option.data(), command.data(), nullptr};
  pid_t pid = 0;
  const int error =
      ::posix_spawn(&pid, shell.c_str(), &files, &attributes, arguments, environment.data());
  ::posix_spawnattr_destroy(&attributes);
  ::posix_spawn_file_actions_destroy(&files);
  if (error != 0) return Fail(ErrnoStatus(error, "start /bin/sh"));
  return pid;
}

std::string HowText(int status) {
  if (WIFSIGNALED(status)) return fmt::format("was killed by signal {}", WTERMSIG(status));
  return fmt::format("ended with exit code {}", WEXITSTATUS(status));
}
}  // namespace

RestartCommand::RestartCommand(std::string command, std::chrono::milliseconds timeout,
                               const Clock& clock)
    : command_(std::move(command)), timeout_(timeout), clock_(clock) {}

RestartCommand::~RestartCommand() { Stop(); }

void RestartCommand::Start(Ended ended) {
  ended_ = std::move(ended);
  thread_ = Thread([this] { Loop(); });
}

void RestartCommand::Stop() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
  }
  changed_.NotifyAll();
  if (thread_.joinable()) thread_.join();
}

void RestartCommand::Run(const IncidentRecord& incident) {
  {
    MutexLock lock(mutex_);
    pending_.push_back(incident);
  }
  changed_.NotifyAll();
}

void RestartCommand::Loop() {
  for (;;) {
    std::deque<IncidentRecord> pending;
    {
      MutexLock lock(mutex_);
      if (pending_.empty() && !stopping_) {
        if (processes_.empty()) {
          changed_.Wait(mutex_);
        } else {
          changed_.WaitFor(mutex_, kPollInterval);
        }
      }
      if (stopping_) return;
      pending = std::exchange(pending_, {});
    }
    for (const IncidentRecord& incident : pending) Spawn(incident);
    std::erase_if(processes_, [this](Process& process) { return Reap(process); });
  }
}

void RestartCommand::Spawn(const IncidentRecord& incident) {
  auto pid = SpawnShell(command_, EnvironmentOf(incident));
  Log(pid ? LogLevel::kInfo : LogLevel::kError, "RestartCommand",
      {Kv("job", incident.job), Kv("incident", incident.id), Kv("pid", pid ? *pid : 0),
       Kv("error", pid ? "" : pid.error().message())});
  if (!pid) {
    ended_(incident.id, false, "could not be started: " + pid.error().message());
    return;
  }
  processes_.push_back({incident.id, *pid, clock_.Now() + timeout_, false});
}

bool RestartCommand::Reap(Process& process) {
  int status = 0;
  if (::waitpid(process.pid, &status, WNOHANG) == 0) {
    if (!process.killed && clock_.Now() >= process.kill_at) {
      process.killed = true;
      ::kill(-process.pid, SIGKILL);
    }
    return false;
  }
  const bool ok = !process.killed && WIFEXITED(status) && WEXITSTATUS(status) == 0;
  const std::string how =
      process.killed ? fmt::format("did not end within {} ms and was killed", timeout_.count())
                     : HowText(status);
  Log(ok ? LogLevel::kInfo : LogLevel::kError, "RestartCommandEnded",
      {Kv("incident", process.incident), Kv("how", how)});
  ended_(process.incident, ok, how);
  return true;
}

}  // namespace holdfast::coord
