#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "agent/arena/keeper_protocol.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/status.h"

namespace holdfast::agent {

struct KeptEntry {
  std::string name;
  std::string note;
  std::vector<UniqueFd> fds;
};

struct KeeperUsage {
  pid_t pid = 0;
  uint32_t entries = 0;
  uint64_t bytes = 0;
};

/// One connection to a keeper. An error that is not the keeper's reply closes the connection, and
/// every later call returns Unavailable: connect again. Thread-compatible.
class KeeperClient {
 public:
  /// Returns NotFound or Unavailable when no keeper runs.
  static Result<KeeperClient> Connect(const std::string& run_dir, Clock& clock);
  /// Connects, after starting `binary` if no keeper answers. Concurrent callers get the same
  /// keeper. The keeper is not a child of this process: it has its own session, inherits no
  /// descriptor, and logs to <run_dir>/keeper.log.
  static Result<KeeperClient> ConnectOrStart(const std::string& run_dir, const std::string& binary,
                                             Clock& clock);

  /// Connects to a keeper that another process starts. Returns Unavailable when none answers within
  /// `patience`.
  static Result<KeeperClient> Await(const std::string& run_dir, std::chrono::milliseconds patience,
                                    Clock& clock);

  /// Stores an entry. The keeper gets duplicates of the descriptors; an entry of the same name is
  /// replaced.
  Status Put(const std::string& name, std::string_view note, std::span<const int> fds);
  /// Returns the first entry whose name is greater than `after`, with duplicates of its
  /// descriptors; the keeper retains its own. Returns nullopt when there is no such entry.
  Result<std::optional<KeptEntry>> Next(const std::string& after);
  Status Drop(const std::string& name);
  Result<KeeperUsage> Usage();
  Status Shutdown();

 private:
  KeeperClient(UniqueFd socket, Clock& clock) : socket_(std::move(socket)), clock_(&clock) {}
  struct Answer {
    KeeperReply reply;
    std::vector<UniqueFd> fds;
  };
  /// Returns the keeper's reply, even one with an error code. Returns an error only if there is no
  /// reply.
  Result<Answer> Call(const KeeperRequest& request, std::span<const int> fds = {});
  Status CallForStatus(const KeeperRequest& request, std::span<const int> fds = {});

  UniqueFd socket_;
  Clock* clock_;  // not null
};

}  // namespace holdfast::agent
