#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "base/endpoint.h"
#include "base/status.h"
#include "testing/cluster/process.h"

namespace holdfast::bench {

/// A real holdfast-coordinator process for simulated agents, with its store and socket in a folder.
/// Thread-compatible.
class LoadCoordinator {
 public:
  /// Versions on disk beyond `keep_last` are removed. A node without a report for `lease_ms` is
  /// lost.
  explicit LoadCoordinator(std::string dir, uint64_t keep_last = 3, uint32_t lease_ms = 3000)
      : dir_(std::move(dir)), keep_last_(keep_last), lease_ms_(lease_ms) {}
  /// Starts the process and waits until it listens.
  Status Start();
  /// Ends the process with SIGKILL, as a machine that loses power would.
  void Kill() { process_.Kill(); }
  /// Starts this many relays of the coordinator, and waits until they listen.
  Status StartRelays(uint32_t count);
  /// Returns where the agents connect: the relays, or the coordinator if there are none.
  std::vector<Endpoint> agent_endpoints() const;
  std::vector<pid_t> relay_pids() const;
  Endpoint endpoint() const;
  pid_t pid() const { return process_.pid(); }
  std::string log_path() const { return dir_ + "/coordinator.log"; }

 private:
  Endpoint RelayEndpoint(size_t relay) const;

  const std::string dir_;
  const uint64_t keep_last_;
  const uint32_t lease_ms_;
  local::Process process_;
  std::vector<local::Process> relays_;
};

}  // namespace holdfast::bench
