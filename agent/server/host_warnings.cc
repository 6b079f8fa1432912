#include "agent/server/host_warnings.h"

#include <fmt/format.h>
#include <unistd.h>

#include <fstream>
#include <iterator>

#include "agent/api/socket.h"
#include "agent/arena/keeper_protocol.h"

namespace holdfast::agent {
namespace {

/// Returns the process's cgroup in every hierarchy; empty when it cannot be read.
std::string CgroupsOf(pid_t pid) {
  std::ifstream file(fmt::format("/proc/{}/cgroup", pid));
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

/// Returns the keeper's PID in this process's PID namespace; 0 when none answers, or when it is in
/// a namespace that is not visible here.
pid_t KeeperPid(const std::string& run_dir) {
  const auto socket = ConnectUnix(KeeperSocketPath(run_dir));
  if (!socket) return 0;
  const auto keeper = CredentialsOf(socket->get());
  return keeper ? keeper->pid : 0;
}

}  // namespace

std::string IoWarning(const std::vector<std::unique_ptr<Directory>>& directories) {
  for (const auto& directory : directories) {
    const Status refusal = directory->io_uring_refusal();
    if (refusal.ok()) continue;
    return fmt::format(
        "io_uring is refused ({}), so writes to disk are slower: allow io_uring_setup, "
        "io_uring_enter and io_uring_register in the seccomp profile of the agent's container or "
        "unit, check the sysctl kernel.io_uring_disabled, or set io.io_uring = false",
        refusal.message());
  }
  return "";
}

std::string SharedKeeperWarning(const std::string& run_dir, const ServiceManager& manager) {
  const bool is_init = ::getpid() == 1;
  if (!is_init && !manager.owns_process()) return "";
  const pid_t keeper = KeeperPid(run_dir);
  if (keeper == 0) return "";
  const std::string own = CgroupsOf(::getpid());
  if (!is_init && (own.empty() || own != CgroupsOf(keeper))) return "";
  return fmt::format(
      "the keeper (process {}) ends with this agent's {}, and the memory of checkpoints with it: "
      "run holdfast-keeper in a {} of its own, set arena.start_keeper = false, and end that "
      "process once",
      keeper, is_init ? "container" : "unit", is_init ? "container" : "unit");
}

}  // namespace holdfast::agent
