#pragma once

#include <grpcpp/grpcpp.h>

#include <chrono>
#include <cstddef>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/fd.h"
#include "base/status.h"
#include "base/thread.h"
#include "coordinator/api/unix_connections.h"

namespace holdfast::coord {

/// How many connections a unix socket serves. Root and the user of the server have no limit of
/// their own.
struct UnixLimits {
  size_t connections = 4096;
  size_t reserved = 256;  // of `connections`, for root and the user of the server
  size_t per_user = 128;
  size_t silent = 16;           // of one user: connected, and nothing was sent yet
  size_t new_per_second = 200;  // of one user
  std::chrono::milliseconds silent_for{5'000};
};

/// Listens at a unix socket that every user may connect to, and passes each connection to a gRPC
/// server together with its user. A connection that sends nothing is closed after a time, and first
/// of all when its user has many. One thread.
class UnixAcceptor {
 public:
  /// Listens at `path`, which then has mode 0666, and replaces a socket file that no process
  /// listens at. `server` and `connections` outlive the acceptor.
  static Result<std::unique_ptr<UnixAcceptor>> Start(const std::string& path, grpc::Server& server,
                                                     UnixConnections& connections,
                                                     UnixLimits limits, const Clock& clock);
  /// Removes the socket file and accepts no more connections. The others stay open.
  ~UnixAcceptor();

 private:
  /// A connection whose first bytes have not arrived.
  struct Silent {
    UniqueFd fd;
    UnixPeer peer;
    Clock::TimePoint until;
  };
  /// A connection that gRPC serves. `watch` is a second descriptor of it, which shows its end.
  struct Served {
    UniqueFd watch;
    int number = -1;
    uid_t uid = 0;
  };
  /// How many connections a user began within the current second.
  struct Pace {
    Clock::TimePoint since;
    size_t begun = 0;
  };

  UnixAcceptor(grpc::Server& server, UnixConnections& connections, UnixLimits limits,
               const Clock& clock)
      : server_(server), connections_(connections), limits_(limits), clock_(clock) {}
  void Run();
  void Accept();
  bool Admits(const UnixPeer& peer);
  void Serve(Silent silent);
  /// Duplicates the descriptor at a number that was not used for long: gRPC may still name calls of
  /// an earlier connection by its number.
  UniqueFd AtFreshNumber(int fd);

  grpc::Server& server_;
  UnixConnections& connections_;
  const UnixLimits limits_;
  const Clock& clock_;
  std::string path_;
  UniqueFd listener_;
  UniqueFd wake_;
  int first_number_ = 0;
  int end_number_ = 0;
  int next_number_ = 0;
  std::vector<Silent> silent_;
  std::vector<Served> served_;
  std::map<uid_t, Pace> paces_;
  bool accept_failed_ = false;  // for example, no descriptor is free
  Thread thread_;
};

}  // namespace holdfast::coord
