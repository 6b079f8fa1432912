#include "coordinator/state/state.h"

#include <variant>

#include "coordinator/state/adoption.h"
#include "coordinator/state/drain.h"
#include "coordinator/state/forget.h"
#include "coordinator/state/identities.h"
#include "coordinator/state/join.h"
#include "coordinator/state/lifecycle.h"
#include "coordinator/state/lives.h"
#include "coordinator/state/load.h"
#include "coordinator/state/node_loss.h"
#include "coordinator/state/nodes.h"
#include "coordinator/state/parity_lag.h"
#include "coordinator/state/passes.h"
#include "coordinator/state/queries.h"
#include "coordinator/state/restore.h"
#include "coordinator/state/retention.h"
#include "coordinator/state/verification.h"

namespace holdfast::coord {
namespace {
/// Passes an event to the module that handles it.
struct Dispatch {
  Context& context;

  void operator()(const NodeAttached& event) const { OnNodeAttached(context, event); }
  void operator()(const NodeDetached& event) const { OnNodeDetached(context, event); }
  void operator()(const NodeLost& event) const { OnNodeLost(context, event); }
  void operator()(const NodeReported& event) const { OnNodeReported(context, event); }
  void operator()(const RankJoined& event) const { OnRankJoined(context, event); }
  void operator()(const RestoreRequested& event) const { OnRestoreRequested(context, event); }
  void operator()(const RestoreAbandoned& event) const { OnRestoreAbandoned(context, event); }
  void operator()(const PinSet& event) const { OnPinSet(context, event); }
  void operator()(const VersionVerified& event) const { OnVersionVerified(context, event); }
  void operator()(const RetentionSet& event) const { OnRetentionSet(context, event); }
  void operator()(const JobForgotten& event) const { OnJobForgotten(context, event); }
  void operator()(const DrainSet& event) const { OnDrainSet(context, event); }
  void operator()(const AdoptRequested& event) const { OnAdoptRequested(context, event); }
  void operator()(const RunStateChanged& event) const { OnRunStateChanged(context, event); }
  void operator()(const TokenCreated& event) const { OnTokenCreated(context, event); }
  void operator()(const TokenUsed& event) const { OnTokenUsed(context, event); }
  void operator()(const IdentityRenewed& event) const { OnIdentityRenewed(context, event); }
  void operator()(const IdentityRevoked& event) const { OnIdentityRevoked(context, event); }
  void operator()(const Tick& event) const { OnTick(context, event); }
};
}  // namespace

Result<State> State::Load(const StateOptions& options, const Records& records, Instant at) {
  State state(options);
  state.at_ = at;
  std::vector<Effect> none;
  Context context{state.options_, at, state.cluster_, none};
  HOLDFAST_RETURN_IF_ERROR(LoadRecords(context, records));
  return state;
}

std::vector<Effect> State::Apply(const Event& event, Instant at) {
  at_ = at;
  std::vector<Effect> effects;
  Context context{options_, at, cluster_, effects};
  std::visit(Dispatch{context}, event);
  ApplyChanges(context);
  return effects;
}

std::vector<Effect> State::FinishBatch() {
  std::vector<Effect> effects;
  Context context{options_, at_, cluster_, effects};
  coord::FinishBatch(context);
  return effects;
}

std::vector<NodeStatus> State::Nodes() const { return NodeStatuses(Read()); }

std::vector<ParityLag> State::ParityLags(const std::string& job) const {
  const auto found = cluster_.jobs.find(job);
  if (found == cluster_.jobs.end()) return {};
  return coord::ParityLags(Read(), found->second);
}

Result<std::vector<JobStatus>> State::Jobs(const std::string& job) const {
  return JobStatuses(Read(), job);
}

Result<std::vector<VersionStatus>> State::Versions(const std::string& job) const {
  return VersionStatuses(Read(), job);
}

Result<RestorePlanStatus> State::PlanRestore(const std::string& job,
                                             std::optional<VersionId> version,
                                             std::optional<Tier> tier) const {
  return coord::PlanRestore(Read(), job, version, tier);
}

Result<RestorePlanStatus> State::PlanAllReplicas(const std::string& job,
                                                 std::optional<VersionId> version,
                                                 bool as_is) const {
  return coord::PlanAllReplicas(Read(), job, version, as_is);
}

Result<std::vector<NodeLossImpact>> State::ImpactOfLosing(
    const std::string& job, const std::vector<std::string>& nodes) const {
  return coord::ImpactOfLosing(Read(), job, nodes);
}

std::vector<IdentityRecord> State::Identities() const {
  std::vector<IdentityRecord> all;
  for (const auto& [key, record] : cluster_.identities) all.push_back(record);
  return all;
}

Result<DrainStatus> State::Drain(const std::string& node) const { return DrainOf(Read(), node); }

std::vector<RefusedNode> State::Refused() const { return RefusedNodes(Read()); }

}  // namespace holdfast::coord
