#include <fmt/format.h>

#include <algorithm>

#include "coordinator/state/peers.h"
#include "coordinator/state/state.h"

// The life of a job beside its incarnations: whether it has trainers, its newest version at every
// tier once nothing newer comes, and the end of what it has in memory.

namespace holdfast::coord {
namespace {
// Trainers outlive their agent: those of a lost node are taken for gone only after so long.
constexpr auto kLostTrainers = std::chrono::seconds(30);
// A job that runs is always a little behind: so many times `settle_after` is no finding.
constexpr int kBehind = 10;
// A target that leads nowhere for so long.
constexpr int kStuck = 30;

bool IsHeldAt(const RankShard& shard, Tier tier) {
  return std::any_of(shard.copies.begin(), shard.copies.end(),
                     [tier](const Copy& copy) { return copy.tier == tier; });
}

/// Writers have a version that `target` leads to, and are not done with it.
bool IsLedTo(const Job& job, const TierTarget& target) {
  auto it = job.versions.lower_bound({job.incarnation, target.step()});
  return std::any_of(it, job.versions.end(), [](const auto& entry) {
    const VersionState& version = entry.second;
    const bool open = ((version.tiers | version.failed_tiers) & TierBit(Tier::kDisk)) == 0;
    return open && (version.phase == Phase::kPending || version.committed());
  });
}
}  // namespace

/// `ranks` is all that the node says of its trainers.
void State::HearRanks(NodeIndex index, const std::vector<LocalRank>& ranks) {
  Node& node = nodes_[index];
  if (node.ranks == ranks) return;
  const auto job_of = [this](const LocalRank& rank) -> Job* {
    auto found = jobs_.find(rank.job);
    const bool current = found != jobs_.end() && found->second.incarnation == rank.incarnation;
    return current && rank.rank.value < found->second.lineage().world ? &found->second : nullptr;
  };
  for (const LocalRank& rank : node.ranks) {
    Job* job = job_of(rank);
    if (job == nullptr) continue;
    auto connected = job->connected.find(rank.rank);
    if (connected != job->connected.end() && connected->second == index) {
      job->connected.erase(connected);
      job->alive_at = at_.now;
    }
  }
  node.ranks = ranks;
  for (const LocalRank& rank : ranks) {
    Job* job = job_of(rank);
    if (job == nullptr) continue;
    if (rank.said_goodbye) {
      job->goodbyes.insert(rank.rank);
      continue;
    }
    job->connected[rank.rank] = index;
    job->goodbyes.erase(rank.rank);
    if (job->phase != JobPhase::kRunning) SetPhase(*job, JobPhase::kRunning);
  }
}

void State::HearWanted(const TierWanted& wanted) {
  auto found = jobs_.find(wanted.job);
  if (found == jobs_.end() || found->second.versions.count(wanted.version) == 0) return;
  found->second.wanted = std::max(found->second.wanted, wanted.version);
  found->second.repair_due = true;
}

void State::On(const RunSeen& event) {
  if (event.active) {
    active_runs_.insert(event.job);
    return;
  }
  active_runs_.erase(event.job);
  auto found = jobs_.find(event.job);
  if (found == jobs_.end() || !event.finished || found->second.finished) return;
  found->second.finished = true;
  effects_.emplace_back(PutJob{RecordOf(found->second)});
}

void State::On(const RetentionSet& event) {
  auto found = jobs_.find(event.job);
  if (found == jobs_.end()) {
    return Answer(event.request, NotFoundError(fmt::format("no job '{}'", event.job)));
  }
  Job& job = found->second;
  job.keep_last = event.keep_last;
  job.keep_every = event.keep_last == 0 ? 0 : event.keep_every;
  job.retention_due = true;
  job.changed = true;
  effects_.emplace_back(PutJob{RecordOf(job)});
  Answer(event.request, Status::Ok());
}

bool State::HasTrainers(const Job& job) const {
  if (active_runs_.count(job.name) != 0) return true;
  return std::any_of(job.connected.begin(), job.connected.end(), [this](const auto& entry) {
    const Node& node = nodes_[entry.second];
    return node.attached || at_.now - node.lost_at < kLostTrainers;
  });
}

void State::SetPhase(Job& job, JobPhase phase) {
  if (phase == job.phase && !(phase == JobPhase::kRunning && job.finished)) return;
  job.phase = phase;
  job.finished = phase == JobPhase::kFinished;
  job.released = false;
  job.changed = true;
  job.word_changed = true;
  job.repair_due = true;
  if (phase == JobPhase::kRunning) {
    job.alive_at = at_.now;
    job.ended_wall_nanos = 0;
  } else {
    job.ended_at = at_.now;
    if (job.ended_wall_nanos == 0) job.ended_wall_nanos = at_.wall_nanos;
  }
  effects_.emplace_back(PutJob{RecordOf(job)});
}

/// Time passed.
void State::AdvanceLife(Job& job) {
  if (HasTrainers(job)) {
    job.alive_at = at_.now;
  } else if (at_.now - job.alive_at >= options_.end_grace && GateOpen(job)) {
    const bool all_left = job.goodbyes.size() == job.lineage().world;
    const bool finished = job.finished || all_left || job.phase == JobPhase::kFinished;
    SetPhase(job, finished ? JobPhase::kFinished : JobPhase::kEnded);
  }
  if (job.phase != JobPhase::kRunning && !job.released) {
    const auto after = job.phase == JobPhase::kFinished ? options_.release_after
                                                        : options_.release_dead_after;
    if (at_.now - job.ended_at >= after && MayRelease(job)) Release(job);
  }
  if (!job.released && Unsettled(job) != nullptr) job.repair_due = true;
}

/// Everything that a restart would want is on disk, with its parity.
bool State::MayRelease(const Job& job) const {
  if (!job.repairs.empty()) return false;
  const VersionId newest =
      std::max(NewestCommitted(job, Tier::kMemory), NewestCommitted(job, Tier::kDisk));
  if (newest.incarnation.value == 0) return true;
  const VersionState& version = job.versions.at(newest);
  if (!version.committed_at(Tier::kDisk) || version.held_at(Tier::kDisk) != version.world) {
    return false;
  }
  const PeerSeats* seats = job.seats_of(newest.incarnation);
  return seats == nullptr || version.parity_held_at(Tier::kDisk) == seats->seats.size();
}

void State::Release(Job& job) {
  job.released = true;
  job.repair_due = true;
  job.word_changed = true;
  job.changed = true;
  // Nobody is left who could complete it, and its slots go.
  for (auto& [id, version] : job.versions) {
    if (version.phase == Phase::kPending) Abort(job, version, true);
  }
}

/// Nothing newer than `newest` is on its way.
bool State::IsQuiet(const Job& job, VersionId newest) const {
  if (job.phase != JobPhase::kRunning || job.wanted == newest) return true;
  const auto still = at_.now - job.newest_at;
  if (still < options_.settle_after) return false;
  // The disks are at work: what they bring there next is chosen when they are done.
  if (IsLedTo(job, job.disk_target) && still < kStuck * options_.settle_after) return false;
  // Of a job that runs, nodes write what they are configured to write.
  return std::all_of(job.nodes_now.begin(), job.nodes_now.end(), [&](NodeIndex index) {
    const uint64_t every = nodes_[index].disk_every;
    return every == 0 || newest.step.value % every == 0;
  });
}

/// Its group can make its parity, and has not.
bool State::LacksPeer(const Job& job, const VersionState& version) {
  const PeerSeats* seats = job.seats_of(version.id.incarnation);
  if (seats == nullptr || version.committed_at(Tier::kPeer)) return false;
  if (!version.committed_at(Tier::kMemory) || job.released) return false;
  // The memory of a job that runs is for the versions of that run.
  if (job.phase == JobPhase::kRunning && version.id.incarnation != job.incarnation) return false;
  for (uint32_t number = 0; number < seats->seats.size(); ++number) {
    if (!HasData(job, version, number, TierBit(Tier::kMemory))) return false;
  }
  return true;
}

VersionState* State::Unsettled(Job& job) {
  const VersionId newest =
      std::max(NewestCommitted(job, Tier::kMemory), NewestCommitted(job, Tier::kDisk));
  if (newest.incarnation.value == 0) return nullptr;
  VersionState& version = job.versions.at(newest);
  if (version.committed_at(Tier::kDisk) && !LacksPeer(job, version)) return nullptr;
  return IsQuiet(job, newest) ? &version : nullptr;
}

/// What the newest version lacks, as orders: ranks' shards for the disk from where they are in
/// memory, then its parity. The targets of the tiers lead to newer versions only, and there is
/// none.
void State::FindUnsettled(Job& job, std::map<RepairKey, Repair>& missing) {
  VersionState* version = Unsettled(job);
  if (version == nullptr) return;
  // A write of its own may be under way.
  const auto not_before = at_.now + options_.settle_after;
  const auto want = [&](NodeIndex node, Rank rank, Tier tier) {
    Repair repair;
    repair.target = node;
    repair.not_before = not_before;
    missing.emplace(RepairKey{version->id, rank, tier}, repair);
  };
  // What failed once is tried again: the disk was full, a member away.
  const auto retry = [&](Tier tier) {
    if ((version->failed_tiers & TierBit(tier)) == 0) return;
    version->failed_tiers &= ~TierBit(tier);
    Store(job, *version, 0);
  };
  if (!version->committed_at(Tier::kDisk)) {
    retry(Tier::kDisk);
    for (uint32_t rank = 0; rank < version->world; ++rank) {
      const RankShard& shard = version->ranks[rank];
      if (IsHeldAt(shard, Tier::kDisk)) continue;
      auto copy = std::find_if(shard.copies.begin(), shard.copies.end(), [](const Copy& one) {
        return one.tier == Tier::kMemory;
      });
      if (copy != shard.copies.end()) {
        want(copy->node, Rank{rank}, Tier::kDisk);
      } else if (CanDecode(job, *version, Rank{rank})) {
        const PeerSeats& seats = *job.seats_of(version->id.incarnation);
        const NodeIndex node = seats.seats[seats.by_rank[rank]].node;
        if (nodes_[node].attached) want(node, Rank{rank}, Tier::kDisk);
      }
    }
  }
  if (!LacksPeer(job, *version)) return;
  retry(Tier::kPeer);
  const PeerSeats& seats = *job.seats_of(version->id.incarnation);
  for (uint32_t number = 0; number < seats.seats.size(); ++number) {
    if (HasParity(job, *version, number, TierBit(Tier::kMemory))) continue;
    const NodeIndex node = seats.seats[number].node;
    if (nodes_[node].attached) want(node, ParityRank(number), Tier::kMemory);
  }
}

/// Of a job whose newest version nothing newer follows; empty: it is at every tier.
std::string State::WhyNotDurable(const Job& job) const {
  const VersionId newest =
      std::max(NewestCommitted(job, Tier::kMemory), NewestCommitted(job, Tier::kDisk));
  if (newest.incarnation.value == 0 || !IsQuiet(job, newest)) return "";
  const bool runs = job.phase == JobPhase::kRunning;
  if (runs && at_.now - job.newest_at < kBehind * options_.settle_after) return "";
  const VersionState& version = job.versions.at(newest);
  std::string lacks;
  if (!version.committed_at(Tier::kDisk)) lacks = "on disk";
  if (job.seats_of(newest.incarnation) != nullptr && !version.committed_at(Tier::kPeer)) {
    lacks += lacks.empty() ? "at tier peer" : " and not at tier peer";
  }
  if (lacks.empty()) return "";
  return fmt::format("version {} is the newest and not {}", ToString(newest), lacks);
}

}  // namespace holdfast::coord
