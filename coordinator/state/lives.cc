#include "coordinator/state/lives.h"

#include <algorithm>

namespace holdfast::coord {
namespace {
// How long a refused agent is listed after its last attempt. Refused agents try again about once a
// second.
constexpr std::chrono::seconds kRefusedShown(30);
constexpr size_t kRefusedMax = 1024;

/// Whether the report is of parity that protects the shards of the version, which was adopted
/// without this parity.
bool IsParityOf(const VersionState& version, const StoredReplica& report) {
  if (version.adopted_from != report.life || report.group == nullptr) return false;
  return std::ranges::all_of(report.group->shards, [&](const ListedShard& shard) {
    return shard.rank.value < version.ranks.size() && version.ranks[shard.rank.value].known &&
           version.ranks[shard.rank.value].digest == shard.digest;
  });
}
}  // namespace

std::vector<StoredReplica> AssignLife(const ReadContext& context,
                                      std::vector<StoredReplica> replicas, LifeId life_seen) {
  for (StoredReplica& report : replicas) {
    if (report.life.value == 0 && life_seen.value == 0) report.life = context.options.life;
  }
  return replicas;
}

bool CountsInThisLife(const ReadContext& context, const StoredReplica& report) {
  if (context.options.life.value == 0 || report.life == context.options.life) return true;
  auto job = context.cluster.jobs.find(report.identity.job);
  if (job == context.cluster.jobs.end()) return false;
  auto found = job->second.versions.find(report.identity.version);
  if (found == job->second.versions.end()) return false;
  const VersionState& version = found->second;
  if (!version.recorded || version.tiers == 0 || version.world != report.identity.world) {
    return false;
  }
  const std::vector<RankShard>& shards =
      IsParity(report.identity.rank) ? version.parity : version.ranks;
  const uint32_t index = IsParity(report.identity.rank) ? ParityNode(report.identity.rank)
                                                        : report.identity.rank.value;
  if (index >= shards.size()) return false;
  if (!shards[index].known) return IsParityOf(version, report);
  return shards[index].digest == report.digest;
}

bool IsOfOtherLife(const ReadContext& context, const LineageRecord& lineage) {
  return lineage.life.value != 0 && lineage.life != context.options.life;
}

void QuarantineReplica(Context& context, NodeIndex node, const StoredReplica& report) {
  context.cluster.nodes[node].other_lives.insert_or_assign({report.identity.key(), report.tier},
                                                           report);
  context.cluster.adoption_due = true;
}

bool HasQuarantined(const ReadContext& context, const std::string& job) {
  return std::any_of(
      context.cluster.nodes.begin(), context.cluster.nodes.end(), [&](const Node& node) {
        return std::any_of(node.other_lives.begin(), node.other_lives.end(),
                           [&](const auto& entry) { return entry.second.identity.job == job; });
      });
}

void DropQuarantined(Context& context, NodeIndex node, const RemovedReplica& removed) {
  context.cluster.nodes[node].other_lives.erase({removed.key, removed.tier});
}

void RecordRefused(Context& context, const NodeAttached& event, const Status& why) {
  std::erase_if(context.cluster.refused, [&context](const auto& entry) {
    return context.at.now - entry.second.at > kRefusedShown;
  });
  if (context.cluster.refused.size() >= kRefusedMax) return;
  context.cluster.refused[event.node] = {event.node, why.message(), context.at.wall_nanos,
                                         context.at.now};
}

std::vector<RefusedNode> RefusedNodes(const ReadContext& context) {
  std::vector<RefusedNode> all;
  for (const auto& [name, refused] : context.cluster.refused) {
    if (context.at.now - refused.at <= kRefusedShown) all.push_back(refused);
  }
  return all;
}

std::vector<OtherLifeStatus> OtherLivesOf(const ReadContext& context, const Node& node) {
  std::map<std::pair<LifeId, std::string>, OtherLifeStatus> found;
  for (const auto& [place, report] : node.other_lives) {
    auto job = context.cluster.jobs.find(report.identity.job);
    if (job != context.cluster.jobs.end() && job->second.adopted_lives.count(report.life) != 0) {
      continue;
    }
    OtherLifeStatus& status = found[{report.life, report.identity.job}];
    status.life = report.life;
    status.job = report.identity.job;
    ++status.shards;
    status.newest = std::max(status.newest, report.identity.version);
  }
  std::vector<OtherLifeStatus> all;
  for (auto& [key, status] : found) all.push_back(std::move(status));
  return all;
}

}  // namespace holdfast::coord
