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

/// Returns the number of members of the version's parity groups that lack data or parity.
uint32_t IncompleteMembers(const Job& job, const VersionState& version) {
  const GroupIndex* groups = job.groups_of(version.id.incarnation);
  if (groups == nullptr) return 0;
  uint32_t count = 0;
  for (uint32_t number = 0; number < groups->members.size(); ++number) {
    const bool complete =
        HasData(job, version, number, kAnyTier) && HasParity(job, version, number, kAnyTier);
    if (!complete) ++count;
  }
  return count;
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

/// Returns why the last attempt to copy a shard of the version failed; empty: none failed.
std::string FailedCopy(const ReadContext& context, const Job& job, VersionId version) {
  for (const auto& [key, repair] : job.repairs) {
    if (key.version != version || repair.failure.empty()) continue;
    return fmt::format("; the copy of {} to {} on node {} failed: {}", ShardName(key.rank),
                       ToString(key.tier), context.cluster.nodes[repair.target].name,
                       repair.failure);
  }
  return "";
}

/// What to do for a version without parity groups. Other nodes copy its shards (drain_copies.h).
std::string RemedyWithoutGroups(const ReadContext& context, const Nodes& nodes,
                                const DrainedJob& status) {
  const bool drained = std::ranges::all_of(
      nodes, [&](NodeIndex index) { return context.cluster.nodes[index].drain.has_value(); });
  const bool taken = std::ranges::any_of(context.cluster.nodes, [&](const Node& node) {
    return TakesShards(node) && !nodes.contains(context.cluster.node_names.at(node.name));
  });
  if (!taken && NodeThatReaches(context, Tier::kRemote) == kNoNode) {
    return fmt::format(
        "attach another node with 10% of its disks free, configure tier remote, or save a copy "
        "with `holdfast restore {} --to DIR`",
        status.job);
  }
  if (!drained) return "drain the node, so that another node copies its shards";
  if (status.runs_here && status.writing == 0) {
    return "run the job on other nodes (`holdfast drain --move-runs` for its run, or requeue it), "
           "or wait until its newest version is on disk, from where another node copies it";
  }
  return taken ? "wait: another node copies its shards"
               : "wait: its shards are copied to tier remote";
}

void ExplainNotSafe(const ReadContext& context, const Job& job, const VersionState& left,
                    const Nodes& nodes, DrainedJob& status) {
  status.why = fmt::format("version {} needs the node: {}", ToString(left.id),
                           MissingText(context, job, left));
  if (job.groups_of(left.id.incarnation) == nullptr) {
    if (left.committed_at(Tier::kDisk)) {
      status.why += "; it is on disk there, so that the node may stop, but not lose its disk";
    }
    if (status.safe) {
      status.why += fmt::format("; version {} survives", ToString(*status.safe));
    }
    status.why += FailedCopy(context, job, left.id);
    status.to_do = RemedyWithoutGroups(context, nodes, status);
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
  if (!status.newest) {
    if (!status.runs_here) return status;
    status.state = DrainState::kNotSafe;
    status.why = "nothing is committed yet: the job would start from the beginning";
    status.to_do = "wait for the job's first save";
    return status;
  }
  status.writing = ShardsToWrite(job, *status.newest);
  uint32_t skipped = 0;
  const VersionState* safe = NewestWithout(job, nodes, skipped);
  const bool saves = job.phase == JobPhase::kRunning &&
                     context.at.now - job.newest_at < kSettledFactor * context.options.flush_after;
  const bool recent = skipped == 0 || (skipped == 1 && saves);
  if (safe != nullptr) status.safe = safe->id;
  if (safe == nullptr || !recent) {
    status.state = DrainState::kNotSafe;
    ExplainNotSafe(context, job, Without(job.versions.at(*status.newest), nodes), nodes, status);
    return status;
  }
  for (const auto& [id, version] : job.versions) {
    if (!version.pinned || !version.committed() || !IsRestorable(job, version)) continue;
    const VersionState left = Without(version, nodes);
    if (IsRestorable(job, left)) continue;
    status.state = DrainState::kNotSafe;
    status.writing = ShardsToWrite(job, id);
    ExplainNotSafe(context, job, left, nodes, status);
    return status;
  }
  const VersionState left = Without(*safe, nodes);
  if (IsAtSharedTier(left) || IncompleteMembers(job, left) == 0) return status;
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

/// Whether a restart of the job on other nodes loses no version. Without parity groups, it restores
/// the newest version from the drained nodes, which still serve it.
bool MayLeave(const ReadContext& context, const Job& job, const Nodes& nodes) {
  if (job.groups_of(job.incarnation) == nullptr) {
    const auto newest = NewestRestorable(job);
    return newest && newest >= NewestCommitted(job, Tier::kMemory);
  }
  return JobWithout(context, job, nodes).state != DrainState::kNotSafe;
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
  if (event.set && event.remove && node->attached) {
    return Answer(context, event.request,
                  FailedPreconditionError(fmt::format(
                      "node {0} is up: run `holdfast drain {0} --wait 10m`, stop its agent, and "
                      "remove the node then",
                      event.node)));
  }
  if (event.set && event.remove && context.at.now - context.cluster.loaded_at < kAttachTime) {
    return Answer(context, event.request,
                  UnavailableError(fmt::format("the coordinator has just started, and node {} may "
                                               "still attach: try again in a few seconds",
                                               event.node)));
  }
  if (event.set) {
    const int64_t since = node->drain ? node->drain->wall_nanos : context.at.wall_nanos;
    node->drain = DrainRecord{event.node, event.why, since, event.move_runs, event.remove};
    context.cluster.leaving.insert(context.cluster.node_names.at(event.node));
    context.effects.emplace_back(PutDrain{*node->drain});
  } else if (node->drain) {
    node->drain.reset();
    context.effects.emplace_back(EraseDrain{event.node});
  }
  for (auto& [name, job] : context.cluster.jobs) {
    job.repair_due = true;
    job.changed = true;
  }
  Answer(context, event.request, Status::Ok());
}

void EndRemoval(Context& context, Node& node) {
  if (!node.drain || !node.drain->removed) return;
  node.drain.reset();
  context.effects.emplace_back(EraseDrain{node.name});
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
    const bool safe = std::ranges::all_of(context.cluster.jobs, [&](const auto& entry) {
      return !RunsOn(entry.second, index) || MayLeave(context, entry.second, nodes);
    });
    if (safe) context.effects.emplace_back(RunsMayLeave{node.name});
  }
}

}  // namespace holdfast::coord
