#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "coordinator/api/coordinator.grpc.pb.h"
#include "coordinator/server/applier.h"
#include "coordinator/server/watcher.h"

namespace holdfast::coord {

/// What agents send all the time: the same for an agent's own connection and for a relay. The
/// caller has checked that the sender may act for the node. Thread-safe.
class AgentRequests {
 public:
  /// All outlive the object.
  AgentRequests(std::string cluster, Applier& applier, Watcher& watcher, const Clock& clock)
      : cluster_(std::move(cluster)), applier_(applier), watcher_(watcher), clock_(clock) {}

  /// Attaches a node. `sink` makes the sink of its directives for the number of the stream.
  using MakeSink = std::function<std::shared_ptr<DirectiveSink>(AttachId)>;
  /// `relay`: its address, if the agent attaches through one.
  Status Attach(const coordinator::AttachRequest& request, const std::string& relay,
                const MakeSink& sink);
  void Detach(const std::string& node, AttachId attach);

  /// What a relay adds to a report.
  struct Relayed {
    /// The stream that the report belongs to. Absent: the newest of the node.
    std::optional<AttachId> attach = {};
    std::vector<StoredReplica> replicas = {};
  };
  /// Calls `done` with the answer, or with null when the outcome is unknown.
  using ReportDone = std::function<void(const coordinator::ReportReply*)>;
  void Report(const coordinator::ReportRequest& request, Relayed relayed, ReportDone done);
  coordinator::ObserveReply Observe(const coordinator::ObserveRequest& request);

 private:
  const std::string cluster_;
  Applier& applier_;
  Watcher& watcher_;
  const Clock& clock_;
};

}  // namespace holdfast::coord
