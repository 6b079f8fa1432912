#pragma once

#include <sys/types.h>

#include <map>
#include <optional>
#include <string>

#include "base/mutex.h"

namespace holdfast::coord {

/// The process at the other end of a unix socket, as the kernel recorded it at connect().
struct UnixPeer {
  uid_t uid = 0;
  pid_t pid = 0;  // for display: the process may have ended
};

/// The connections of one server to its unix socket, by the descriptor that gRPC serves. gRPC knows
/// no credentials: it names such a peer "fd:NUMBER". Thread-safe.
class UnixConnections {
 public:
  void Add(int number, const UnixPeer& peer);
  void Remove(int number);
  /// Returns the peer that gRPC names `peer`; nothing for another form or a closed connection.
  std::optional<UnixPeer> Find(const std::string& peer) const;

 private:
  mutable Mutex mutex_;
  std::map<int, UnixPeer> peers_ HOLDFAST_GUARDED_BY(mutex_);
};

}  // namespace holdfast::coord
