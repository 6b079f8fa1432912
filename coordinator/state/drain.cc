#include "coordinator/state/drain.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "coordinator/state/rehome.h"
#include "coordinator/state/restore_texts.h"
#include "coordinator/state/survivability.h"
#include "coordinator/state/versions.h"

namespace holdfast::coord {
namespace {
// A version that is older than this many times `flush_after` has had the time to get its parity.
constexpr int kSettledFactor = 10;

using Nodes = std::set<NodeIndex>;

VersionState Without(const VersionState& version, const Nodes& nodes) {
  VersionState left = version;
  left.RemoveReplicasIf([&](const Replica& replica) { return nodes.contains(replica.node); });
  return left;
}

/// Whether a shared tier has the version. Then the loss of nodes takes nothing from it.
bool IsAtSharedTier(const VersionState& version) {
  return std::ranges::any_of(kTierTable, [&](const TierTraits& traits) {
    return IsShared(traits.tier) && version.committed_at(traits.tier) &&
           version.held_at(traits.tier) == version.world;
  });
}

/// Returns the number of members of the version's parity groups that lack data or parity.
uint32_t ErasuresIn(const Job& job, const VersionState& version) {
  const GroupIndex* groups = job.groups_of(version.id.incarnation);
  if (groups == nullptr) return 0;
  uint32_t erasures = 0;
  for (uint32_t number = 0; number < groups->members.size(); ++number) {
    const bool complete =
        HasData(job, version, number, kAnyTier) && HasParity(job, version, number, kAnyTier);
    if (!complete) ++erasures;
  }
  return erasures;
}

/// Returns the number of shards of the version that repairs still have to write.
uint32_t ShardsToWrite(const Job& job, VersionId version) {
  return static_cast<uint32_t>(std::ranges::count_if(
      job.repairs, [&](const auto& entry) { return entry.first.version == version; }));
}

/// Whether a place that one of the nodes has in the version's plan could go to another node.
bool HasFreeHome(const ReadContext& context, const Job& job, Incarnation incarnation,
                 const Nodes& nodes) {
  const GroupIndex* groups = job.groups_of(incarnation);
  if (groups == nullptr) return false;
  for (uint32_t number = 0; number < groups->members.size(); ++number) {
    if (nodes.contains(groups->members[number].node) &&
        FreeHome(context, job, incarnation, number) != kNoNode) {
      return true;
    }
  }
  return false;
}

/// Fills why a version that can be restored without the nodes is less protected, and what to do.
void ExplainLessProtected(const ReadContext& context, const Job& job, const VersionState& left,
                          const Nodes& nodes, DrainedJob& status) {
  const auto margin = PeerMargin(job, left, kAnyTier).value_or(0);
  status.why = fmt::format(
      "without the node, version {} survives the loss of {} further node{} of each parity group",
      ToString(left.id), margin, margin == 1 ? "" : "s");
  if (status.writing != 0) {
    status.to_do = "wait: other nodes write its shards";
  } else if (status.runs_here) {
    status.to_do =
        "run the job on other nodes (`holdfast drain --move-runs` for its run, or requeue it)";
  } else if (HasFreeHome(context, job, left.id.incarnation, nodes)) {
    status.to_do = "wait: another node takes its place";
  } else {
    status.to_do =
        "attach a node outside its parity group with 10% of its disks free, or configure tier "
        "remote";
  }
}

/// What to do for a version without parity groups, whose shards no other node takes.
std::string RemedyWithoutGroups(const ReadContext& context, const DrainedJob& status) {
  const bool has_remote = NodeThatReaches(context, Tier::kRemote) != kNoNode;
  if (has_remote && status.writing != 0) return "wait: its shards are copied to tier remote";
  const std::string cause = "no other node takes shards of a job without parity groups: ";
  if (status.runs_here) {
    return cause +
           "start the job on other nodes, which restore it from here, and wait for its "
           "next save" +
           (has_remote ? "" : "; or configure tier remote");
  }
  const std::string copy =
      fmt::format("save a copy with `holdfast restore {} --to DIR`", status.job);
  return cause + (has_remote ? copy : "configure tier remote, or " + copy);
}

void ExplainNotSafe(const ReadContext& context, const Job& job, const VersionState& left,
                    DrainedJob& status) {
  status.why = fmt::format("version {} needs the node: {}", ToString(left.id),
                           MissingText(context, job, left));
  if (job.groups_of(left.id.incarnation) == nullptr) {
    status.to_do = RemedyWithoutGroups(context, status);
  } else if (status.writing != 0) {
    status.to_do = "wait: other nodes write its shards";
  } else {
    status.to_do = "attach the nodes that are away, or let the job save a newer version";
  }
}

/// Returns the newest version that can be restored without the nodes; nullptr: none. `skipped`:
/// how many newer committed versions cannot.
const VersionState* NewestWithout(const Job& job, const Nodes& nodes, uint32_t& skipped) {
  for (auto it = job.versions.rbegin(); it != job.versions.rend(); ++it) {
    const VersionState& version = it->second;
    if (!version.committed() || IsAbandoned(job, it->first)) continue;
    if (IsRestorable(job, Without(version, nodes))) return &version;
    ++skipped;
  }
  return nullptr;
}

DrainedJob JobWithout(const ReadContext& context, const Job& job, const Nodes& nodes) {
  DrainedJob status;
  status.job = job.name;
  status.runs_here =
      std::ranges::any_of(nodes, [&](NodeIndex index) { return RunsOn(job, index); });
  for (auto it = job.versions.rbegin(); it != job.versions.rend(); ++it) {
    if (!it->second.committed() || IsAbandoned(job, it->first)) continue;
    status.newest = it->first;
    break;
  }
  if (status.newest.incarnation.value == 0) {
    if (!status.runs_here) return status;
    status.state = DrainState::kNotSafe;
    status.why = "nothing is committed yet: the job would start from the beginning";
    status.to_do = "wait for the job's first save";
    return status;
  }
  status.writing = ShardsToWrite(job, status.newest);
  uint32_t skipped = 0;
  const VersionState* safe = NewestWithout(job, nodes, skipped);
  const bool saves = job.phase == JobPhase::kRunning &&
                     context.at.now - job.newest_at < kSettledFactor * context.options.flush_after;
  const bool recent = skipped == 0 || (skipped == 1 && saves);
  if (safe != nullptr) status.safe = safe->id;
  if (safe == nullptr || !recent) {
    status.state = DrainState::kNotSafe;
    ExplainNotSafe(context, job, Without(job.versions.at(status.newest), nodes), status);
    return status;
  }
  for (const auto& [id, version] : job.versions) {
    if (!version.pinned || !version.committed() || !IsRestorable(job, version)) continue;
    const VersionState left = Without(version, nodes);
    if (IsRestorable(job, left)) continue;
    status.state = DrainState::kNotSafe;
    status.writing = ShardsToWrite(job, id);
    ExplainNotSafe(context, job, left, status);
    return status;
  }
  const VersionState left = Without(*safe, nodes);
  if (IsAtSharedTier(left) || ErasuresIn(job, left) == 0) return status;
  status.state = DrainState::kLessProtected;
  ExplainLessProtected(context, job, left, nodes, status);
  return status;
}

Nodes DrainedNodes(const ReadContext& context) {
  Nodes nodes;
  for (NodeIndex index = 0; index < context.cluster.nodes.size(); ++index) {
    if (context.cluster.nodes[index].drain) nodes.insert(index);
  }
  return nodes;
}
}  // namespace

void OnDrainSet(Context& context, const DrainSet& event) {
  Node* node = FindNode(context, event.node);
  if (node == nullptr) {
    return Answer(context, event.request,
                  NotFoundError(fmt::format("no node '{}' has ever attached; `holdfast nodes` "
                                            "lists the nodes",
                                            event.node)));
  }
  if (event.set) {
    const int64_t since = node->drain ? node->drain->wall_nanos : context.at.wall_nanos;
    node->drain = DrainRecord{event.node, event.why, since, event.move_runs};
    context.effects.emplace_back(PutDrain{*node->drain});
  } else if (node->drain) {
    node->drain.reset();
    context.effects.emplace_back(EraseDrain{event.node});
  }
  for (auto& [name, job] : context.cluster.jobs) job.repair_due = true;
  Answer(context, event.request, Status::Ok());
}

Result<DrainStatus> DrainOf(const ReadContext& context, const std::string& node) {
  const auto found = context.cluster.node_names.find(node);
  if (found == context.cluster.node_names.end()) {
    return Fail(NotFoundError(fmt::format("no node '{}'; `holdfast nodes` lists them", node)));
  }
  DrainStatus status;
  status.drain = context.cluster.nodes[found->second].drain;
  status.alive = context.cluster.nodes[found->second].attached;
  Nodes nodes = DrainedNodes(context);
  for (const NodeIndex index : nodes) {
    if (index != found->second) status.others.push_back(context.cluster.nodes[index].name);
  }
  nodes.insert(found->second);
  for (const auto& [name, job] : context.cluster.jobs) {
    status.jobs.push_back(JobWithout(context, job, nodes));
  }
  return status;
}

void AllowRunsToLeave(Context& context) {
  const Nodes nodes = DrainedNodes(context);
  for (const NodeIndex index : nodes) {
    const Node& node = context.cluster.nodes[index];
    if (!node.drain->move_runs) continue;
    const bool safe = std::ranges::none_of(context.cluster.jobs, [&](const auto& entry) {
      const Job& job = entry.second;
      return RunsOn(job, index) && JobWithout(context, job, nodes).state == DrainState::kNotSafe;
    });
    if (safe) context.effects.emplace_back(RunsMayLeave{node.name});
  }
}

}  // namespace holdfast::coord
