#include "coordinator/state/node_loss.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "coordinator/state/restore_texts.h"
#include "coordinator/state/versions.h"

namespace holdfast::coord {
namespace {
NodeLossImpact ImpactOn(const ReadContext& context, const Job& job,
                        const std::set<NodeIndex>& lost) {
  const auto is_lost = [&lost](NodeIndex node) { return lost.count(node) != 0; };
  NodeLossImpact impact;
  impact.job = job.name;
  impact.stops = std::any_of(job.rank_nodes.begin(), job.rank_nodes.end(), is_lost);
  for (auto it = job.versions.rbegin(); it != job.versions.rend(); ++it) {
    const VersionState& version = it->second;
    if (!version.committed() || IsAbandoned(job, it->first)) continue;
    const bool newest = !impact.newest;
    if (newest) impact.newest = it->first;
    VersionState left = version;
    left.RemoveReplicasIf([&](const Replica& replica) { return is_lost(replica.node); });
    if (IsRestorable(job, left)) {
      impact.keeps = newest;
      impact.fallback = it->first;
      return impact;
    }
    if (newest) {
      impact.why_not = MissingText(context, job, left);
      if (!IsRestorable(job, version)) {
        impact.why_not += "; it cannot be restored with these nodes either";
      }
    }
  }
  if (impact.newest) return impact;
  // Without a commit, the loss of any node that the job's ranks run on loses all trained steps.
  impact.keeps = job.newest_seen.value == 0 || !impact.stops;
  if (!impact.keeps) {
    impact.why_not = "nothing is committed yet: the job would start from the beginning";
  }
  return impact;
}
}  // namespace

Result<std::vector<NodeLossImpact>> ImpactOfLosing(const ReadContext& context,
                                                   const std::string& only,
                                                   const std::vector<std::string>& nodes) {
  if (!only.empty() && context.cluster.jobs.count(only) == 0) {
    return Fail(NotFoundError(fmt::format("no job '{}'", only)));
  }
  std::set<NodeIndex> lost;
  for (const std::string& name : nodes) {
    auto found = context.cluster.node_names.find(name);
    if (found == context.cluster.node_names.end()) {
      return Fail(NotFoundError(fmt::format("no node '{}'; `holdfast nodes` lists them", name)));
    }
    lost.insert(found->second);
  }
  std::vector<NodeLossImpact> impacts;
  for (const auto& [name, job] : context.cluster.jobs) {
    if (only.empty() || name == only) impacts.push_back(ImpactOn(context, job, lost));
  }
  return impacts;
}

}  // namespace holdfast::coord
