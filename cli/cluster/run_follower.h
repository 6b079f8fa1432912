#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "cli/cluster/agent_client.h"
#include "cli/cluster/coordinator_client.h"
#include "cli/core/command.h"

namespace holdfast::cli {

/// Follows a run. Prints the output of its workers on stdout, each line with its rank in front, and
/// the changes of its state on stderr.
class RunFollower {
 public:
  RunFollower(Context& context, CoordinatorClient& client, std::string job)
      : context_(context), client_(client), job_(std::move(job)) {}

  /// Blocks until the run has ended. kOk: it finished or was stopped. kError: it failed. With
  /// `stop_on_signal`, the first signal stops the job cleanly. A second signal, or one without
  /// `stop_on_signal`, ends only this call; the job continues.
  Result<ExitCode> Follow(bool stop_on_signal, int64_t stop_deadline_ms);

 private:
  struct Log {
    uint64_t offset = 0;
    std::string line;  // not yet ended
  };
  using LogKey = std::pair<std::string, uint32_t>;  // run id, rank

  void ShowChanges(const coordinator::RunStatus& run);
  void ShowIncidents();
  void ReadLogs(const coordinator::RunStatus& run, bool last);
  void ReadLog(const std::string& address, const std::string& node, const LogKey& key, bool last);
  void Print(const LogKey& key, const std::string& data, bool last);
  void RefreshAddresses();

  Context& context_;
  CoordinatorClient& client_;
  const std::string job_;
  std::string shown_;                          // phase, launch and reason
  std::map<uint64_t, std::string> incidents_;  // state that was printed of each
  bool first_poll_ = true;
  std::map<std::string, std::string> addresses_;  // of the nodes' agents
  std::map<std::string, AgentClient> agents_;     // by address
  std::map<LogKey, Log> logs_;
  std::map<LogKey, std::string> nodes_;  // the node of each worker
};

}  // namespace holdfast::cli
