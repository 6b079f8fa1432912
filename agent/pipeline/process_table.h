#pragma once

#include <sys/types.h>

#include <cstdint>

#include "agent/api/socket.h"
#include "base/fd.h"
#include "base/status.h"

namespace holdfast::agent {

/// The processes of trainers as the kernel knows them. A simulation overrides the functions.
class ProcessTable {
 public:
  virtual ~ProcessTable() = default;
  virtual Result<PeerCredentials> PeerOf(int socket);
  /// The two descriptors become readable when the process ends.
  virtual Result<UniqueFd> PidFdOfPeer(int socket);
  virtual Result<UniqueFd> PidFdOf(pid_t pid);
  /// Distinguishes a process from a later one with the same PID.
  virtual uint64_t StartTicksOf(pid_t pid);

  static ProcessTable& Kernel();
};

}  // namespace holdfast::agent
