#include <fmt/format.h>

#include <algorithm>

#include "coordinator/state/peers.h"
#include "coordinator/state/state.h"

// Redundancy that is missing, and the orders that bring it back: parity that a replaced node has
// lost or never had on disk, shards that were found damaged.

namespace holdfast::coord {
namespace {
constexpr auto kRetryFirst = std::chrono::seconds(1);
constexpr uint32_t kRetryDoublings = 6;
// So many failures pass as bad luck: a slot in use, a file that is just being written.
constexpr uint32_t kAttemptsQuiet = 4;
// Ranks that joined and neither ask nor save are waited for so long: they may be loading.
constexpr auto kRestorePatience = std::chrono::minutes(1);
// What is missing for so long is not just on its way.
constexpr auto kLackingPatience = std::chrono::seconds(15);
constexpr size_t kShardsNamed = 6;  // shards in one text

bool IsAt(const RankShard& shard, NodeIndex node, Tier tier) {
  return std::find(shard.copies.begin(), shard.copies.end(), Copy{node, tier}) !=
         shard.copies.end();
}

bool IsAnywhereAt(const RankShard& shard, Tier tier) {
  return std::any_of(shard.copies.begin(), shard.copies.end(),
                     [tier](const Copy& copy) { return copy.tier == tier; });
}

Tier OtherOf(Tier tier) { return tier == Tier::kMemory ? Tier::kDisk : Tier::kMemory; }
}  // namespace

/// A restore has the nodes to itself, and brings back by itself what its ranks need. A start that
/// came to nothing keeps nobody waiting for long.
bool State::IsRestoring(const Job& job) const {
  if (!job.plan.asks.empty()) return true;
  const bool undecided = job.phase == JobPhase::kRunning &&
                         job.lineage().decision == Decision::kNone && job.newest_seen.value == 0;
  return undecided && at_.now - job.joined_at < kRestorePatience;
}

/// Looks at everything that should be there. Costs as much as a commit, so only after events that
/// make redundancy due, and while something is missing. Whether the job runs makes no difference to
/// what is on disk.
void State::AdvanceRepairs(Job& job) {
  job.repair_due = false;
  RehomeLost(job);
  CountLacking(job);
  if (IsRestoring(job)) {
    job.repair_due = true;
    return;
  }
  std::map<RepairKey, Repair> wanted;
  for (auto& [id, version] : job.versions) {
    if (version.committed() && !IsAbandoned(job, id)) FindMissing(job, version, wanted);
  }
  FindUnsettled(job, wanted);
  std::set<NodeIndex> busy;
  for (auto& [key, repair] : wanted) {
    auto known = job.repairs.find(key);
    if (known == job.repairs.end() || known->second.target != repair.target) continue;
    const auto not_before = repair.not_before;
    repair = known->second;
    if (repair.attempts == 0) repair.not_before = std::min(repair.not_before, not_before);
    if (repair.request != 0) busy.insert(repair.target);
  }
  job.repairs = std::move(wanted);
  // The newest first, one at a time for each node.
  for (auto it = job.repairs.rbegin(); it != job.repairs.rend(); ++it) {
    Repair& repair = it->second;
    if (repair.request != 0 || at_.now < repair.not_before) continue;
    if (busy.insert(repair.target).second) OrderRepair(job, it->first, repair);
  }
}

/// What the version lacks where it is committed and should be, and can be brought back.
void State::FindMissing(const Job& job, const VersionState& version,
                        std::map<RepairKey, Repair>& missing) const {
  const PeerSeats* seats = job.seats_of(version.id.incarnation);
  if (seats == nullptr) return;
  // Memory only while the job runs: what starts again needs its nodes for the restore.
  const bool runs = job.ranks_joined == job.lineage().world && !job.released;
  const bool in_memory = runs && version.committed_at(Tier::kPeer) && version.id == PeerFloor(job);
  const bool on_disk = version.committed_at(Tier::kDisk);
  for (uint32_t group = 0; (in_memory || on_disk) && group < seats->firsts.size(); ++group) {
    const PlannedGroup& planned = job.lineages.at(version.id.incarnation).peers[group];
    const bool decodes = Erasures(job, version, group, kAnyTier | kDamagedToo) <= planned.parity;
    for (uint32_t i = 0; i < planned.members.size(); ++i) {
      const uint32_t number = seats->firsts[group] + i;
      const NodeIndex node = seats->seats[number].node;
      if (!nodes_[node].attached) continue;
      const auto want = [&](Rank rank, const RankShard& shard, Tier tier) {
        const bool beside = IsAt(shard, node, OtherOf(tier));
        if (!decodes && !beside) return;
        Repair repair;
        repair.target = node;
        const bool damaged = version.IsReadable(rank, {node, tier});
        // What is damaged is mended at once; what is not there may be on its way already: the
        // agents write parity of what is on disk by themselves.
        const bool follows = !beside || (IsParity(rank) && tier == Tier::kDisk);
        repair.not_before =
            at_.now + (follows && !damaged ? options_.repair_grace : Clock::Duration::zero());
        missing.emplace(RepairKey{version.id, rank, tier}, repair);
      };
      for (const PeerRank& planned_rank : planned.members[i].ranks) {
        const Rank rank = planned_rank.rank;
        const RankShard& shard = version.ranks[rank.value];
        // Its memory is its trainer's: of the incarnation that runs, on the node where it runs.
        const bool runs_here =
            version.id.incarnation == job.incarnation && job.rank_nodes[rank.value] == node;
        if (in_memory && runs_here && !IsAnywhereAt(shard, Tier::kMemory)) {
          want(rank, shard, Tier::kMemory);
        }
        if (on_disk && !IsAt(shard, node, Tier::kDisk)) want(rank, shard, Tier::kDisk);
      }
      const RankShard& parity = version.parity[number];
      if (in_memory && !IsAt(parity, node, Tier::kMemory)) {
        want(ParityRank(number), parity, Tier::kMemory);
      }
      if (on_disk && !IsAt(parity, node, Tier::kDisk)) {
        want(ParityRank(number), parity, Tier::kDisk);
      }
    }
  }
}

void State::OrderRepair(Job& job, const RepairKey& key, Repair& repair) {
  VersionState& version = job.versions.at(key.version);
  const RankShard& shard = *version.Shard(key.rank);
  repair.request = ++next_prepare_;
  PrepareOrder order;
  order.request = repair.request;
  order.job = job.name;
  order.version = key.version;
  order.rank = key.rank;
  order.world = version.world;
  order.into = key.tier;
  order.digest = shard.known ? shard.digest : 0;
  if (const PeerSeats* seats = job.seats_of(key.version.incarnation)) {
    const uint32_t number =
        IsParity(key.rank) ? ParityNode(key.rank) : seats->by_rank[key.rank.value];
    order.group = GroupOf(job, key.version.incarnation, seats->seats[number].group, &version);
  }
  Copy source = kDecode;
  if (IsAt(shard, repair.target, OtherOf(key.tier))) {
    source = {repair.target, OtherOf(key.tier)};
    order.source_node = nodes_[repair.target].name;
    order.source_address = nodes_[repair.target].data_address;
  }
  order.tier = source.tier;
  ordered_[repair.request] = {job.name,      key.version, key.rank,       source,
                              repair.target, key.tier,    /*repair=*/true};
  // The peers of a node that does not know the incarnation refuse it.
  if (job.audience.insert(repair.target).second) Say(repair.target, WordOn(job));
  Say(repair.target, std::move(order));
}

void State::OnRepaired(Job& job, const Ordered& order, const Prepared& prepared) {
  job.repair_due = true;
  // The shard itself may have been reported before, and its order forgotten.
  if (prepared.outcome.ok()) {
    const ShardKey key{job.name, order.version, order.rank};
    effects_.emplace_back(Repaired{job.name, nodes_[order.target].name, key, order.into});
  }
  auto found = job.repairs.find({order.version, order.rank, order.into});
  if (found == job.repairs.end() || found->second.request != prepared.request) return;
  Repair& repair = found->second;
  repair.request = 0;
  if (prepared.outcome.ok()) return;
  repair.failure = prepared.outcome.message();
  repair.not_before = at_.now + kRetryFirst * (1U << std::min(repair.attempts, kRetryDoublings));
  if (++repair.attempts != kAttemptsQuiet) return;
  Find(job.name, order.target,
       Status(prepared.outcome.code(),
              fmt::format("{} is still missing at {}: {}",
                          ToString(ShardKey{job.name, order.version, order.rank}),
                          ToString(order.into), prepared.outcome.message())));
}

/// Counts what each version on disk lacks there of what its parity groups are to keep.
void State::CountLacking(Job& job) {
  job.lacking_at = at_.now;
  std::map<VersionId, Lacking> known = std::exchange(job.lacking, {});
  for (const auto& [id, version] : job.versions) {
    const PeerSeats* seats = job.seats_of(id.incarnation);
    if (seats == nullptr || !version.committed_at(Tier::kDisk) || IsAbandoned(job, id)) continue;
    Lacking lacking;
    std::string which;
    size_t missing = 0;
    const auto count = [&](Rank rank, const RankShard& shard, NodeIndex node) {
      ++lacking.shards;
      if (IsAt(shard, node, Tier::kDisk)) {
        ++lacking.present;
      } else if (++missing <= kShardsNamed) {
        which += fmt::format("{}{} of node {}{}", missing == 1 ? "" : ", ", ShardName(rank),
                             nodes_[node].name, nodes_[node].attached ? "" : " (down)");
      }
    };
    for (uint32_t number = 0; number < seats->seats.size(); ++number) {
      const NodeIndex node = seats->seats[number].node;
      for (const PeerRank& rank : MemberAt(job, id.incarnation, number).ranks) {
        count(rank.rank, version.ranks[rank.rank.value], node);
      }
      count(ParityRank(number), version.parity[number], node);
    }
    if (missing == 0) continue;
    if (missing > kShardsNamed) which += ", …";
    lacking.which = std::move(which);
    auto before = known.find(id);
    lacking.since = before == known.end() ? at_.now : before->second.since;
    job.lacking.emplace(id, std::move(lacking));
  }
}

std::vector<UnderProtectedView> State::UnderProtectedOf(const Job& job) const {
  std::vector<UnderProtectedView> views;
  for (auto it = job.lacking.rbegin(); it != job.lacking.rend(); ++it) {
    const auto& [id, lacking] = *it;
    auto version = job.versions.find(id);
    const bool gone = version == job.versions.end() || !version->second.committed();
    // A node that is away takes its shards with it at once; the rest may be on its way.
    const bool away = lacking.which.find("(down)") != std::string::npos;
    if (gone || (!away && at_.now - lacking.since < kLackingPatience)) continue;
    UnderProtectedView view{id, lacking.shards, lacking.present, 0, lacking.which};
    size_t due = 0;
    std::string failure;
    for (auto repair = job.repairs.lower_bound({id, Rank{0}, Tier::kMemory});
         repair != job.repairs.end() && repair->first.version == id; ++repair) {
      if (repair->first.tier != Tier::kDisk) continue;
      ++due;
      if (repair->second.request != 0) ++view.ordered;
      if (!repair->second.failure.empty()) failure = repair->second.failure;
    }
    if (!failure.empty()) {
      view.why += "; the last attempt failed: " + failure;
    } else if (away) {
      view.why += fmt::format(
          "; another node outside the parity group takes the place of one that is away for {} s",
          std::chrono::duration_cast<std::chrono::seconds>(options_.rehome_after).count());
    } else if (due == 0) {
      view.why += IsRestoring(job) ? "; a restore comes first"
                                   : "; what is left of the parity group cannot give them back";
    }
    views.push_back(std::move(view));
  }
  return views;
}

/// The node will not answer what it was told.
void State::ForgetRepairsOf(NodeIndex node) {
  for (auto& [name, job] : jobs_) {
    for (auto& [key, repair] : job.repairs) {
      if (repair.target == node) repair.request = 0;
    }
    job.repair_due = true;
  }
}

}  // namespace holdfast::coord
