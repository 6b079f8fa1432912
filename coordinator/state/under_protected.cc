#include "coordinator/state/under_protected.h"

#include <fmt/format.h>

#include <utility>

#include "coordinator/state/restore_plan.h"
#include "coordinator/state/survivability.h"
#include "coordinator/state/versions.h"

namespace holdfast::coord {
namespace {
// A shard that has been missing for this long is not merely still being written.
constexpr auto kUnderProtectedPatience = std::chrono::seconds(15);
constexpr size_t kShardsNamed = 6;  // at most, in one text
}  // namespace

void CountUnderProtected(Context& context, Job& job) {
  job.under_protected_counted_at = context.at.now;
  std::map<VersionId, UnderProtectedVersion> known = std::exchange(job.under_protected, {});
  for (const auto& [id, version] : job.versions) {
    const GroupIndex* groups = job.groups_of(id.incarnation);
    if (groups == nullptr || !version.committed_at(Tier::kDisk) || IsAbandoned(job, id)) continue;
    UnderProtectedVersion entry;
    std::string names;
    size_t missing = 0;
    const auto count = [&](Rank rank, const RankShard& shard, NodeIndex node) {
      ++entry.shards;
      if (shard.IsAt(node, Tier::kDisk)) {
        ++entry.present;
      } else if (++missing <= kShardsNamed) {
        names += fmt::format("{}{} of node {}{}", missing == 1 ? "" : ", ", ShardName(rank),
                             context.cluster.nodes[node].name,
                             context.cluster.nodes[node].attached ? "" : " (down)");
      }
    };
    for (uint32_t number = 0; number < groups->members.size(); ++number) {
      const NodeIndex node = groups->members[number].node;
      for (const PlanRank& rank : MemberAt(job, id.incarnation, number).ranks) {
        count(rank.rank, version.ranks[rank.rank.value], node);
      }
      count(ParityRank(number), version.parity[number], node);
    }
    if (missing == 0) continue;
    if (missing > kShardsNamed) names += ", …";
    entry.missing = std::move(names);
    auto before = known.find(id);
    entry.since = before == known.end() ? context.at.now : before->second.since;
    job.under_protected.emplace(id, std::move(entry));
  }
}

std::vector<UnderProtectedStatus> UnderProtectedOf(const ReadContext& context, const Job& job) {
  std::vector<UnderProtectedStatus> statuses;
  for (auto it = job.under_protected.rbegin(); it != job.under_protected.rend(); ++it) {
    const auto& [id, entry] = *it;
    auto version = job.versions.find(id);
    const bool removed = version == job.versions.end() || !version->second.committed();
    // The shards of a lost node are missing at once; other shards may still be on their way.
    const bool away = entry.missing.find("(down)") != std::string::npos;
    if (removed || (!away && context.at.now - entry.since < kUnderProtectedPatience)) continue;
    UnderProtectedStatus status{id, entry.shards, entry.present, 0, entry.missing};
    size_t due = 0;
    std::string failure;
    for (auto repair = job.repairs.lower_bound({id, Rank{0}, Tier::kMemory});
         repair != job.repairs.end() && repair->first.version == id; ++repair) {
      if (repair->first.tier != Tier::kDisk) continue;
      ++due;
      if (repair->second.request) ++status.ordered;
      if (!repair->second.failure.empty()) failure = repair->second.failure;
    }
    if (!failure.empty()) {
      status.why += "; the last attempt failed: " + failure;
    } else if (away) {
      status.why += fmt::format(
          "; a node outside the parity group takes the place of one that is away for {} s",
          std::chrono::duration_cast<std::chrono::seconds>(context.options.rehome_after).count());
    } else if (due == 0) {
      status.why += IsRestoring(context, job)
                        ? "; a restore comes first"
                        : "; the rest of the parity group cannot rebuild them";
    }
    statuses.push_back(std::move(status));
  }
  return statuses;
}

}  // namespace holdfast::coord
