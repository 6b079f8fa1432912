#include "coordinator/state/adoptable.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <tuple>

#include "coordinator/state/invariants.h"
#include "storage/erasure/survivability.h"

namespace holdfast::coord {
namespace {
constexpr size_t kNamesMax = 6;  // at most, in one text

/// A group as the parity shard of one node describes it.
struct Described {
  NodeIndex node = kNoNode;
  std::shared_ptr<const ShardGroup> group;
};
using DescribedGroups = std::map<uint32_t, Described>;  // by the number of the first member

std::string Join(const std::vector<std::string>& names) {
  std::string text;
  for (size_t i = 0; i < std::min(names.size(), kNamesMax); ++i) {
    text += (i == 0 ? "" : ", ") + names[i];
  }
  return names.size() > kNamesMax ? text + ", …" : text;
}

const std::string& NameOf(const ReadContext& context, NodeIndex node) {
  return context.cluster.nodes[node].name;
}

bool IsNumberedInOrder(const GroupPlan& plan, uint32_t number) {
  for (uint32_t i = 0; i < plan.members().size(); ++i) {
    if (plan.members()[i].number != plan.members().front().number + i) return false;
  }
  return plan.PositionOfNumber(number).has_value();
}

/// Collects the groups that the parity shards describe. Returns why they do not, or "".
std::string Collect(const ReadContext& context, const Adoptable& one, DescribedGroups* groups) {
  for (const auto& [number, held] : one.parity) {
    for (const auto& [node, report] : held) {
      const std::string shard = ShardName(ParityRank(number)) + " on node " + NameOf(context, node);
      if (report.group == nullptr) continue;
      const GroupPlan& plan = report.group->plan;
      if (!IsNumberedInOrder(plan, number)) return shard + " describes another parity group";
      const auto [found, made] =
          groups->try_emplace(plan.members().front().number, Described{node, report.group});
      if (!made && *found->second.group != *report.group) {
        return fmt::format("{} and the parity on node {} describe different groups", shard,
                           NameOf(context, found->second.node));
      }
    }
  }
  return "";
}

/// Compares the digests that the parity shards list with those of the replicas.
std::string Compare(const ReadContext& context, const Adoptable& one,
                    const DescribedGroups& groups) {
  for (const auto& [first, described] : groups) {
    for (const ListedShard& shard : described.group->shards) {
      const auto held = one.replicas.find(shard.rank.value);
      if (held == one.replicas.end()) continue;
      const auto& [node, report] = held->second.front();
      if (report.digest == shard.digest && report.image_bytes == shard.image_bytes) continue;
      return fmt::format(
          "rank {}'s shard on node {} is not the one that the parity on node {} "
          "protects",
          shard.rank.value, NameOf(context, node), NameOf(context, described.node));
    }
  }
  return "";
}

/// Makes the plan of the incarnation from the described groups. Empty if they are not all groups.
PeerPlan MakePlan(const Adoptable& one, const DescribedGroups& groups) {
  LineageRecord lineage;
  lineage.world = one.world;
  uint32_t next = 0;
  for (const auto& [first, described] : groups) {
    const GroupPlan& plan = described.group->plan;
    if (first != next) return {};
    PlannedGroup& planned = lineage.peers.emplace_back();
    planned.parity = plan.layout().parity_count();
    for (const PlanMember& member : plan.members()) {
      planned.members.push_back({member.node, "", member.ranks});
    }
    next += static_cast<uint32_t>(plan.members().size());
  }
  return IsValidPlan(lineage) ? lineage.peers : PeerPlan{};
}

/// Names the node that has replaced each planned member: parity shards contain the planned name.
void FindHomes(const ReadContext& context, const Adoptable& one, PeerPlan* plan) {
  uint32_t number = 0;
  for (PlannedGroup& group : *plan) {
    for (PlannedMember& member : group.members) {
      const auto held = one.parity.find(number++);
      if (held == one.parity.end()) continue;
      const auto is_at = [&](const std::string& node) {
        return std::ranges::any_of(held->second, [&](const auto& replica) {
          return NameOf(context, replica.first) == node;
        });
      };
      if (is_at(member.node)) continue;
      const std::string& home = NameOf(context, held->second.front().first);
      const bool taken = std::ranges::any_of(
          group.members, [&](const PlannedMember& other) { return other.place() == home; });
      if (!taken) member.home = home;
    }
  }
}

/// Whether two plans have the same members and ranks, wherever the members are now.
bool IsSamePlan(const PeerPlan& a, const PeerPlan& b) {
  return std::ranges::equal(a, b, [](const PlannedGroup& x, const PlannedGroup& y) {
    return x.parity == y.parity &&
           std::ranges::equal(x.members, y.members,
                              [](const PlannedMember& m, const PlannedMember& n) {
                                return m.node == n.node && m.ranks == n.ranks;
                              });
  });
}

/// Sets the plan of the version. Returns why its parity cannot be used, or "".
std::string FindPlan(const ReadContext& context, Adoptable& one, DescribedGroups* groups) {
  if (one.parity.empty()) return "no attached node has parity of it";
  std::string why = Collect(context, one, groups);
  if (why.empty()) why = Compare(context, one, *groups);
  if (!why.empty()) return why;
  if (groups->empty()) return "no agent has described its parity yet, or all are of older releases";
  PeerPlan plan = MakePlan(one, *groups);
  if (plan.empty()) return "the parity on attached nodes does not describe all of its groups";
  FindHomes(context, one, &plan);
  const auto job = context.cluster.jobs.find(one.job);
  if (job != context.cluster.jobs.end()) {
    const auto lineage = job->second.lineages.find(one.version.incarnation);
    if (lineage != job->second.lineages.end() && !lineage->second.peers.empty()) {
      if (!IsSamePlan(plan, lineage->second.peers)) return "the store has other parity groups";
      plan = lineage->second.peers;
    }
  }
  one.plan = std::move(plan);
  return "";
}

bool IsOn(const ReadContext& context, const std::map<uint32_t, Adoptable::Held>& shards,
          uint32_t shard, const std::string& node) {
  const auto held = shards.find(shard);
  return held != shards.end() && std::ranges::any_of(held->second, [&](const auto& replica) {
           return NameOf(context, replica.first) == node;
         });
}

/// Decides for one group which of its missing shards can be decoded. Returns what is missing if it
/// cannot decode them, or "".
std::string DecodeGroup(const ReadContext& context, Adoptable& one, const PlannedGroup& group,
                        uint32_t first, const ShardGroup& listed) {
  std::vector<NodeShards> nodes;
  std::vector<std::string> missing;
  for (uint32_t i = 0; i < group.members.size(); ++i) {
    const PlannedMember& member = group.members[i];
    NodeShards shards{true, IsOn(context, one.parity, first + i, member.place())};
    for (const PlanRank& rank : member.ranks) {
      if (IsOn(context, one.replicas, rank.rank.value, member.place())) continue;
      shards.data = false;
      missing.push_back(fmt::format("{} of node {}", ShardName(rank.rank), member.place()));
    }
    if (!shards.parity) {
      missing.push_back(
          fmt::format("{} of node {}", ShardName(ParityRank(first + i)), member.place()));
    }
    nodes.push_back(shards);
  }
  if (!IsDecodable(group.parity, nodes)) {
    return fmt::format("its parity group can replace {} of its {} nodes, and lacks {}",
                       group.parity, group.members.size(), Join(missing));
  }
  for (const ListedShard& shard : listed.shards) {
    if (!one.replicas.contains(shard.rank.value)) one.decoded[shard.rank.value] = shard;
  }
  return "";
}

bool LacksRank(const Adoptable& one, const PlannedGroup& group) {
  return std::ranges::any_of(group.members, [&](const PlannedMember& member) {
    return std::ranges::any_of(member.ranks, [&](const PlanRank& rank) {
      return !one.replicas.contains(rank.rank.value);
    });
  });
}

/// Decides which missing shards can be decoded. Returns why some cannot, or "".
std::string Decode(const ReadContext& context, Adoptable& one, const DescribedGroups& groups) {
  uint32_t first = 0;
  for (const PlannedGroup& group : one.plan) {
    if (LacksRank(one, group)) {
      std::string why = DecodeGroup(context, one, group, first, *groups.at(first).group);
      if (!why.empty()) return why;
    }
    first += static_cast<uint32_t>(group.members.size());
  }
  return "";
}

/// Returns which ranks have no replica: "rank 1 has none", "ranks 1, 2 have none".
std::string RanksWithout(const Adoptable& one) {
  std::vector<std::string> names;
  for (uint32_t rank = 0; rank < one.world && names.size() <= kNamesMax; ++rank) {
    if (!one.replicas.contains(rank)) names.push_back(std::to_string(rank));
  }
  return (names.size() == 1 ? "rank " : "ranks ") + Join(names) +
         (names.size() == 1 ? " has none" : " have none");
}

/// Returns the digests of all ranks' shards, of a version that is complete.
std::vector<uint64_t> DigestsOf(const Adoptable& one) {
  std::vector<uint64_t> digests;
  for (uint32_t rank = 0; rank < one.world; ++rank) {
    const auto held = one.replicas.find(rank);
    digests.push_back(held != one.replicas.end() ? held->second.front().second.digest
                                                 : one.decoded.at(rank).digest);
  }
  return digests;
}

/// A commit, and the node that knows it.
struct KnownCommit {
  const VersionCommit* commit = nullptr;
  NodeIndex node = kNoNode;
};

/// Returns every node that knows the version as committed, attached or not: what it reported stays
/// true.
std::vector<KnownCommit> KnownCommits(const ReadContext& context, const Adoptable& one) {
  std::vector<KnownCommit> known;
  for (NodeIndex index = 0; index < context.cluster.nodes.size(); ++index) {
    const auto& commits = context.cluster.nodes[index].commits;
    auto commit = commits.lower_bound({one.job, one.life, one.version, 0, 0});
    for (; commit != commits.end(); ++commit) {
      if (commit->job != one.job || commit->life != one.life || commit->version != one.version) {
        break;
      }
      known.push_back({&*commit, index});
    }
  }
  return known;
}

/// Compares the version with the commits that nodes know. Sets `commit`, and `incomplete` when they
/// contradict.
void CompareCommits(const ReadContext& context, Adoptable& one) {
  const std::vector<KnownCommit> known = KnownCommits(context, one);
  if (known.empty()) return;
  const auto contradict = [&one](std::string why) {
    one.commit = CommitEvidence::kContradicted;
    one.incomplete = std::move(why);
  };
  const KnownCommit& first = known.front();
  for (const KnownCommit& other : known) {
    if (*other.commit == *first.commit) continue;
    return contradict(
        fmt::format("nodes {} and {} know commits of it with different digests, {:016x} "
                    "and {:016x}",
                    NameOf(context, first.node), NameOf(context, other.node), first.commit->digest,
                    other.commit->digest));
  }
  if (first.commit->world != one.world) {
    return contradict(
        fmt::format("its seals name {} ranks, but node {} knows it as committed with "
                    "{} ranks",
                    one.world, NameOf(context, first.node), first.commit->world));
  }
  one.commit = CommitEvidence::kCommitted;
  if (!one.incomplete.empty()) return;
  const uint64_t digest = CommitDigest(DigestsOf(one));
  if (digest != first.commit->digest) {
    return contradict(
        fmt::format("its shards are not the committed ones: their digests combine to "
                    "{:016x}, and node {} knows the commit {:016x}",
                    digest, NameOf(context, first.node), first.commit->digest));
  }
  one.commit = CommitEvidence::kProven;
}

/// Decides whether the version is complete.
void FindShards(const ReadContext& context, Adoptable& one) {
  for (const auto& [rank, held] : one.replicas) {
    const auto& [first, replica] = held.front();
    for (const auto& [node, other] : held) {
      if (other.digest == replica.digest) continue;
      one.incomplete = fmt::format("rank {}'s shard is not the same on nodes {} and {}", rank,
                                   NameOf(context, first), NameOf(context, node));
      return;
    }
  }
  DescribedGroups groups;
  std::string why = FindPlan(context, one, &groups);
  if (one.replicas.size() == one.world) return;
  if (why.empty()) why = Decode(context, one, groups);
  if (why.empty()) return;
  one.incomplete = fmt::format("{} of {} ranks have a replica on an attached node; {}; {}",
                               one.replicas.size(), one.world, RanksWithout(one), why);
}
}  // namespace

uint32_t Adoptable::held_at(Tier tier) const {
  return static_cast<uint32_t>(std::ranges::count_if(replicas, [tier](const auto& rank) {
    return std::ranges::any_of(rank.second,
                               [tier](const auto& replica) { return replica.second.tier == tier; });
  }));
}

std::vector<Adoptable> FindAdoptable(const ReadContext& context, const AdoptRequested& event) {
  std::map<std::tuple<std::string, VersionId, LifeId, uint32_t>, Adoptable> found;
  for (NodeIndex index = 0; index < context.cluster.nodes.size(); ++index) {
    for (const auto& [place, report] : context.cluster.nodes[index].other_lives) {
      const bool wanted = (event.job.empty() || report.identity.job == event.job) &&
                          (event.life.value == 0 || report.life == event.life);
      if (!wanted || !report.damage.empty()) continue;
      Adoptable& one =
          found[{report.identity.job, report.identity.version, report.life, report.identity.world}];
      one.job = report.identity.job;
      one.life = report.life;
      one.version = report.identity.version;
      one.world = report.identity.world;
      const bool parity = IsParity(report.identity.rank);
      (parity ? one.parity[ParityNode(report.identity.rank)]
              : one.replicas[report.identity.rank.value])
          .emplace_back(index, report);
    }
  }
  // Parity alone describes no version that this call could adopt.
  std::erase_if(found, [](const auto& entry) { return entry.second.replicas.empty(); });
  std::vector<Adoptable> all;
  for (auto& [key, one] : found) {
    FindShards(context, one);
    CompareCommits(context, one);
    all.push_back(std::move(one));
  }
  std::stable_sort(all.begin(), all.end(), [](const Adoptable& a, const Adoptable& b) {
    return std::tie(a.job, b.version) < std::tie(b.job, a.version);
  });
  return all;
}

}  // namespace holdfast::coord
