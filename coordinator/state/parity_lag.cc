#include "coordinator/state/parity_lag.h"

#include <algorithm>

namespace holdfast::coord {
namespace {
/// Returns whether each member of the group keeps its parity of the version, at any tier.
bool HasParity(const GroupIndex& groups, uint32_t group, const VersionState& version) {
  const size_t end =
      group + 1 < groups.firsts.size() ? groups.firsts[group + 1] : groups.members.size();
  if (version.parity.size() < end) return false;
  return std::all_of(version.parity.begin() + groups.firsts[group], version.parity.begin() + end,
                     [](const RankShard& shard) { return !shard.replicas.empty(); });
}
}  // namespace

std::vector<ParityLag> ParityLags(const ReadContext& context, const Job& job) {
  const GroupIndex* groups = job.groups_of(job.incarnation);
  if (groups == nullptr) return {};
  std::vector<ParityLag> lags(groups->by_rank.size());
  std::vector<bool> protected_groups(groups->firsts.size(), false);
  size_t open = protected_groups.size();
  size_t examined = 0;
  for (auto it = job.versions.rbegin(); it != job.versions.rend() && open > 0; ++it) {
    const VersionState& version = it->second;
    if (version.id.incarnation != job.incarnation || examined++ == kLagVersionsMax) break;
    if (version.phase == Phase::kAborted) continue;
    for (uint32_t group = 0; group < protected_groups.size(); ++group) {
      if (protected_groups[group] || !HasParity(*groups, group, version)) continue;
      protected_groups[group] = true;
      --open;
    }
    // A version that is not committed yet has no time: it is new.
    const int64_t committed = version.wall_nanos != 0 ? version.wall_nanos : context.at.wall_nanos;
    const int64_t ms = std::max<int64_t>(context.at.wall_nanos - committed, 0) / 1'000'000;
    for (size_t rank = 0; rank < std::min(lags.size(), version.ranks.size()); ++rank) {
      if (protected_groups[groups->members[groups->by_rank[rank]].group]) continue;
      if (version.ranks[rank].replicas.empty()) continue;
      ++lags[rank].versions;
      lags[rank].ms = std::max(lags[rank].ms, ms);
    }
  }
  return lags;
}

}  // namespace holdfast::coord
