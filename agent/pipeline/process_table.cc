#include "agent/pipeline/process_table.h"

#include "base/process.h"

namespace holdfast::agent {

Result<PeerCredentials> ProcessTable::PeerOf(int socket) { return CredentialsOf(socket); }

Result<UniqueFd> ProcessTable::PidFdOfPeer(int socket) { return agent::PidFdOfPeer(socket); }

Result<UniqueFd> ProcessTable::PidFdOf(pid_t pid) { return holdfast::PidFdOf(pid); }

uint64_t ProcessTable::StartTicksOf(pid_t pid) { return holdfast::StartTicksOf(pid); }

ProcessTable& ProcessTable::Kernel() {
  static ProcessTable kernel;
  return kernel;
}

}  // namespace holdfast::agent
