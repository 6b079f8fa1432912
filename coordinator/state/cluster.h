#pragma once

#include <chrono>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "coordinator/state/events.h"
#include "coordinator/state/job.h"
#include "coordinator/state/options.h"
#include "coordinator/state/statuses.h"

// The state of the coordinator: nodes, jobs and what is pending. Plain data, without rules.
//
// Each module of this room has one rule. Its functions get everything that they read or change as a
// context: the options, the time, this data, and the effects of the event so far. Nothing else has
// state. A module calls only modules above it in the second table of README.md.

namespace holdfast::coord {

/// A PrepareShard that has no reply yet. It outlives its restore task: a reply that reports a
/// damaged source counts even if no rank waits for the shard any more.
struct PendingPrepare {
  std::string job;
  VersionId version;
  Rank rank;
  Replica source;
  NodeIndex target = kNoNode;
  Tier into = Tier::kMemory;
  bool repair = false;
};

/// A role and a name.
using IdentityKey = std::pair<std::string, std::string>;

/// How long agents may need to attach after the records were loaded. Until then, a node that has
/// not attached is not known to be down.
constexpr auto kAttachTime = std::chrono::seconds(5);

struct Cluster {
  std::vector<Node> nodes;
  std::map<std::string, NodeIndex> node_names;
  /// Has every node that is drained or whose agent departs, and possibly others. It is usually
  /// empty, so that the rules of a job need not read all nodes of the job after each event.
  std::set<NodeIndex> leaving;
  std::map<std::string, Job> jobs;
  std::map<std::string, ForgottenJob> forgotten;
  std::set<std::string> active_runs;
  /// Jobs whose last run has ended. No trainer of such a job may ever have joined.
  std::set<std::string> ended_runs;
  /// Nodes that must remove replicas of a forgotten job, with the last forgotten incarnation. Sent
  /// after the event.
  std::map<std::pair<NodeIndex, std::string>, Incarnation> forget_due;
  std::map<std::string, TokenRecord> tokens;            // by ID
  std::map<IdentityKey, IdentityRecord> identities;     // issued or revoked
  std::map<std::string, RefusedNode> refused;           // by node; bounded
  std::map<uint64_t, PendingPrepare> pending_prepares;  // by request
  uint64_t next_prepare = 0;
  /// Quarantined replicas were reported since versions were last adopted without a call.
  bool adoption_due = false;
  Clock::TimePoint no_loss_until;  // before this time, no node is declared lost
  Clock::TimePoint loaded_at;      // when the records were loaded
};

/// What a rule or a query reads.
struct ReadContext {
  const StateOptions& options;
  Instant at;
  const Cluster& cluster;
};

/// What a transition reads and changes while one event is applied.
struct Context {
  const StateOptions& options;
  Instant at;
  Cluster& cluster;
  /// Stored and sent by the caller in the order in which they were added.
  std::vector<Effect>& effects;
  // NOLINTNEXTLINE(google-explicit-constructor): a function that only reads takes either context.
  operator ReadContext() const { return {options, at, cluster}; }
};

/// Returns the index of the node with this name. Adds the node if the name is new.
NodeIndex InternNode(Context& context, const std::string& name);

/// Returns nullptr if no node has ever had this name.
Node* FindNode(Context& context, const std::string& name);

/// Adds the effect that sends the directive, if the node is attached.
void SendDirective(Context& context, NodeIndex node, Directive directive);

/// Returns the node's name, and the name of the tier for a replica of a shared tier.
std::string PlaceName(const ReadContext& context, const Replica& replica);

/// Returns an attached node that reaches the shared tier, `preferred` if it does; kNoNode: none.
NodeIndex NodeThatReaches(const ReadContext& context, Tier tier, NodeIndex preferred = kNoNode);

/// Adds the reply to a call, if one waits.
void Answer(Context& context, std::optional<RequestId> request, Reply reply);
void Answer(Context& context, std::optional<RequestId> request, Status outcome);

/// Adds a finding about a node, or about none with kNoNode.
void RecordFinding(Context& context, const std::string& job, NodeIndex node, Status what);

/// Returns the record of the job as it is now.
JobRecord JobRecordOf(const ReadContext& context, const Job& job);

/// Returns the highest incarnation of the job that any node ever reported.
Incarnation HighestReported(const ReadContext& context, const std::string& job);

/// Adds the effect that stores the record of the job.
void StoreJob(Context& context, Job& job);

}  // namespace holdfast::coord
