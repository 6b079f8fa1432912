#include "coordinator/server/restart_command.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <vector>

#include "storage/base/log.h"

namespace holdfast::coord {

void RunRestartCommand(const std::string& command, const IncidentRecord& incident) {
  std::vector<uint32_t> ranks;
  for (const Rank rank : incident.ranks) ranks.push_back(rank.value);
  std::vector<std::string> own = {"HOLDFAST_JOB=" + incident.job,
                                  fmt::format("HOLDFAST_INCIDENT={}", incident.id),
                                  "HOLDFAST_KIND=" + incident.kind,
                                  "HOLDFAST_WHAT=" + incident.what,
                                  fmt::format("HOLDFAST_RANKS={}", fmt::join(ranks, ",")),
                                  fmt::format("HOLDFAST_NODES={}", fmt::join(incident.nodes, ","))};
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
  // The shell does not wait, so that this process has nothing to reap later.
  std::string text = "(" + command + "\n) &";
  std::string shell = "/bin/sh";
  std::string option = "-c";
  char* const arguments[] = {shell.data(), option.data(), text.data(), nullptr};
  pid_t pid = 0;
  const int error =
      ::posix_spawn(&pid, shell.c_str(), &files, &attributes, arguments, environment.data());
  ::posix_spawnattr_destroy(&attributes);
  ::posix_spawn_file_actions_destroy(&files);
  if (error == 0) ::waitpid(pid, nullptr, 0);
  Log(error == 0 ? LogLevel::kInfo : LogLevel::kError, "RestartCommand",
      {Kv("job", incident.job), Kv("incident", incident.id),
       Kv("error", error == 0 ? "" : std::strerror(error))});
}

}  // namespace holdfast::coord
