#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "agent/arena/keeper_protocol.h"
#include "storage/base/fd.h"
#include "storage/base/status.h"

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

/// One connection to a keeper. After an error that is not the keeper's own answer the connection is
/// closed and every later call is Unavailable: connect again. Thread-compatible.
class KeeperClient {
 public:
  /// NotFound or Unavailable when no keeper runs.
  static Result<KeeperClient> Connect(const std::string& run_dir);
  /// Starts `binary` when no keeper answers. Several callers at once end with one keeper. The
  /// keeper is no child of this process: it has its own session and inherits no descriptor; what it
  /// has to say goes to <run_dir>/keeper.log.
  static Result<KeeperClient> ConnectOrStart(const std::string& run_dir, const std::string& binary);

  /// The keeper gets duplicates; the same name again replaces its entry.
  Status Put(const std::string& name, std::string_view note, std::span<const int> fds);
  /// The first entry whose name is greater than `after`, with duplicates of its descriptors; the
  /// keeper keeps its own.
  Result<std::optional<KeptEntry>> Next(const std::string& after);
  Status Drop(const std::string& name);
  Result<KeeperUsage> Usage();
  Status Shutdown();

 private:
  explicit KeeperClient(UniqueFd socket) : socket_(std::move(socket)) {}
  struct Answer {
    KeeperReply reply;
    std::vector<UniqueFd> fds;
  };
  /// The answer whatever its code; an error only when there is none.
  Result<Answer> Call(const KeeperRequest& request, std::span<const int> fds = {});
  Status CallForStatus(const KeeperRequest& request, std::span<const int> fds = {});

  UniqueFd socket_;
};

}  // namespace holdfast::agent
