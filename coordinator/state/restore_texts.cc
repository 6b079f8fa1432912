#include "coordinator/state/restore_texts.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "coordinator/state/survivability.h"
#include "coordinator/state/versions.h"

namespace holdfast::coord {
namespace {
constexpr size_t kNamedMax = 8;  // ranks and nodes named in one message

std::string AbsentNodes(const ReadContext& context, const Job& job) {
  std::set<NodeIndex> nodes = job.nodes_now;
  nodes.insert(job.nodes_before.begin(), job.nodes_before.end());
  std::string text;
  size_t count = 0;
  for (NodeIndex node : nodes) {
    if (context.cluster.nodes[node].attached || ++count > kNamedMax) continue;
    text += (text.empty() ? "" : ", ") + context.cluster.nodes[node].name;
  }
  if (count > kNamedMax) text += fmt::format(" and {} more", count - kNamedMax);
  return text;
}

/// Returns the names of the shards that a member of a group should have and does not have.
std::string MissingShardsText(const Job& job, const VersionState& version, uint32_t number) {
  std::string text;
  const NodeIndex node = job.group_indexes.at(version.id.incarnation).members[number].node;
  const auto name = [&](Rank rank, const RankShard& shard) {
    const bool held = std::any_of(shard.replicas.begin(), shard.replicas.end(),
                                  [&](const Replica& replica) { return replica.node == node; });
    if (!held) text += (text.empty() ? "" : ", ") + ShardName(rank);
  };
  for (const PlanRank& rank : MemberAt(job, version.id.incarnation, number).ranks) {
    name(rank.rank, version.ranks[rank.rank.value]);
  }
  name(ParityRank(number), version.parity[number]);
  return text;
}

/// Describes the groups that cannot decode the shard of a rank that has no replica, and the shards
/// that these groups lack.
std::string LostGroupsText(const ReadContext& context, const Job& job,
                           const VersionState& version) {
  const GroupIndex* groups = job.groups_of(version.id.incarnation);
  if (groups == nullptr || !MayDecode(version) || IsFullyAvailable(job, version)) return "";
  std::string text;
  size_t named = 0;
  for (uint32_t group = 0; group < groups->firsts.size(); ++group) {
    const PlannedGroup& planned = job.lineages.at(version.id.incarnation).peers[group];
    const uint32_t first = groups->firsts[group];
    const auto end = first + static_cast<uint32_t>(planned.members.size());
    std::string missing;
    uint32_t members = 0;
    bool needed = false;
    for (uint32_t number = first; number < end; ++number) {
      const std::string lacks = MissingShardsText(job, version, number);
      if (lacks.empty()) continue;
      ++members;
      missing += fmt::format("{} {} ({})", missing.empty() ? "" : ",",
                             context.cluster.nodes[groups->members[number].node].name, lacks);
      for (const PlanRank& rank : planned.members[number - first].ranks) {
        needed = needed || version.ranks[rank.rank.value].replicas.empty();
      }
    }
    const uint32_t erasures = Erasures(job, version, group, kAnyTier);
    // A group matters only if it cannot decode and one of its ranks has no replica.
    if (!needed || erasures <= planned.parity || ++named > kNamedMax) continue;
    text +=
        fmt::format("; parity group {} of {} nodes can decode without {} of them, it lacks {}:{}",
                    group, planned.members.size(), planned.parity, members, missing);
  }
  return text;
}
}  // namespace

std::string MissingText(const ReadContext& context, const Job& job, const VersionState& version) {
  std::string text;
  size_t count = 0;
  for (uint32_t rank = 0; rank < version.world; ++rank) {
    const RankShard& shard = version.ranks[rank];
    if (IsAvailable(job, version, Rank{rank}) || ++count > kNamedMax) continue;
    text += fmt::format("{}rank {}", text.empty() ? "" : ", ", rank);
    if (shard.last_node != kNoNode) {
      text += fmt::format(" (last on {})", context.cluster.nodes[shard.last_node].name);
    }
  }
  if (count > kNamedMax) text += fmt::format(" and {} more", count - kNamedMax);
  text = count == 0 ? fmt::format("version {} could not be prepared", ToString(version.id))
                    : fmt::format("version {} has no replica of {}", ToString(version.id), text);
  text += LostGroupsText(context, job, version);
  for (const std::string& damage : version.damage_texts) text += "; damaged: " + damage;
  std::string absent = AbsentNodes(context, job);
  if (!absent.empty()) text += "; not attached: " + absent;
  return text;
}

Status WhyNothingRestorable(const ReadContext& context, const Job& job) {
  for (auto it = job.versions.rbegin(); it != job.versions.rend(); ++it) {
    if (!it->second.committed() || IsAbandoned(job, it->first)) continue;
    std::string text = MissingText(context, job, it->second);
    auto unusable = job.plan.unusable.find(it->first);
    if (unusable != job.plan.unusable.end()) text += "; " + unusable->second;
    return FailedPreconditionError(fmt::format(
        "job '{}' has committed versions but none can be restored now: {}. Start the missing nodes "
        "again, or use another job name",
        job.name, text));
  }
  return FailedPreconditionError(
      fmt::format("job '{}': every committed version was abandoned or is being removed", job.name));
}

Status WhyNotRestorable(const ReadContext& context, const Job& job, VersionId wanted) {
  auto found = job.versions.find(wanted);
  if (found == job.versions.end() || !found->second.committed()) {
    return NotFoundError(
        fmt::format("job '{}' has no committed version {}", job.name, ToString(wanted)));
  }
  if (IsAbandoned(job, wanted)) {
    return FailedPreconditionError(
        fmt::format("version {} of job '{}' was abandoned: a later incarnation restored an older "
                    "version",
                    ToString(wanted), job.name));
  }
  return FailedPreconditionError(
      fmt::format("job '{}': {}", job.name, MissingText(context, job, found->second)));
}

Status WorldMismatch(const Job& job, const VersionState& version) {
  return InvalidArgumentError(fmt::format(
      "version {} of job '{}' was saved by {} ranks, this run has {}: no rank can restore its own "
      "shard; read the version with a reader (holdfast_reader_open), or start with {} ranks",
      ToString(version.id), job.name, version.world, job.lineage().world, version.world));
}

}  // namespace holdfast::coord
