#pragma once

#include <map>
#include <string>

#include "agent/pipeline/process_table.h"

namespace holdfast::simulation {

/// The user of all trainers.
inline constexpr uid_t kTrainerUser = 1000;

/// The trainers of the simulated system, which are threads of this process. A trainer's socket is
/// bound to an abstract name that contains its PID.
class SimProcesses final : public agent::ProcessTable {
 public:
  pid_t Start();
  void End(pid_t pid);
  /// Connects as this process.
  Result<UniqueFd> Connect(pid_t pid, const std::string& path);

  Result<agent::PeerCredentials> PeerOf(int socket) override;
  Result<UniqueFd> PidFdOfPeer(int socket) override;
  Result<UniqueFd> PidFdOf(pid_t pid) override;
  uint64_t StartTicksOf(pid_t pid) override { return static_cast<uint64_t>(pid); }

 private:
  Result<pid_t> PidOf(int socket) const;

  pid_t next_ = 10'000'000;
  uint64_t connections_ = 0;
  std::map<pid_t, UniqueFd> ends_;  // readable once the process has ended
};

}  // namespace holdfast::simulation
