#include <fmt/format.h>

#include <algorithm>

#include "coordinator/state/peers.h"
#include "coordinator/state/state.h"

// What would be left if some nodes went: the rules of a restore, asked of a copy of what is known.

namespace holdfast::coord {

WithoutView State::ViewWithout(const Job& job, const std::set<NodeIndex>& gone) const {
  const auto goes = [&gone](NodeIndex node) { return gone.count(node) != 0; };
  WithoutView view;
  view.job = job.name;
  view.stops = std::any_of(job.rank_nodes.begin(), job.rank_nodes.end(), goes);
  for (auto it = job.versions.rbegin(); it != job.versions.rend(); ++it) {
    const VersionState& version = it->second;
    if (!version.committed() || IsAbandoned(job, it->first)) continue;
    const bool newest = view.newest.incarnation.value == 0;
    if (newest) view.newest = it->first;
    VersionState left = version;
    left.RemoveCopiesIf([&](const Copy& copy) { return goes(copy.node); });
    if (IsRestorable(job, left)) {
      view.keeps = newest;
      view.fallback = it->first;
      return view;
    }
    if (newest) {
      view.why_not = MissingText(job, left);
      if (!IsRestorable(job, version)) view.why_not += "; nor can it be restored with them";
    }
  }
  if (view.newest.incarnation.value != 0) return view;
  // Steps that were trained and not committed go with any node that the job needs.
  view.keeps = job.newest_seen.value == 0 || !view.stops;
  if (!view.keeps) view.why_not = "nothing is committed yet: it would start from the beginning";
  return view;
}

Result<std::vector<WithoutView>> State::Without(const std::string& only,
                                                const std::vector<std::string>& nodes) const {
  if (!only.empty() && jobs_.count(only) == 0) {
    return Fail(NotFoundError(fmt::format("no job '{}'", only)));
  }
  std::set<NodeIndex> gone;
  for (const std::string& name : nodes) {
    auto found = node_names_.find(name);
    if (found == node_names_.end()) {
      return Fail(NotFoundError(fmt::format("no node '{}'; `holdfast nodes` lists them", name)));
    }
    gone.insert(found->second);
  }
  std::vector<WithoutView> views;
  for (const auto& [name, job] : jobs_) {
    if (only.empty() || name == only) views.push_back(ViewWithout(job, gone));
  }
  return views;
}

}  // namespace holdfast::coord
