#include <fmt/format.h>

#include <algorithm>

#include "coordinator/state/peers.h"
#include "coordinator/state/state.h"

// Facts from agents, and the two things that follow from them: commit and abort.

namespace holdfast::coord {
namespace {
constexpr size_t kDamageTextsMax = 16;
// No count of starts gets here: what an agent has beyond it is not taken for one.
constexpr uint64_t kIncarnationMax = uint64_t{1} << 48;
}  // namespace

VersionState& State::Create(Job& job, VersionId id, uint32_t world, Phase phase) {
  VersionState& version = job.versions[id];
  version.id = id;
  version.world = world;
  version.phase = phase;
  version.ranks.resize(world);
  if (const PeerSeats* seats = job.seats_of(id.incarnation)) {
    version.parity.resize(seats->seats.size());
  }
  return version;
}

bool State::IsDead(const Job& job, VersionId version) {
  if (version.incarnation < job.incarnation) return true;
  if (version.step <= job.abort_floor && job.abort_floor.value != 0) return true;
  for (auto it = job.versions.rbegin(); it != job.versions.rend() && it->first > version; ++it) {
    if (it->second.tiers != 0) return true;
  }
  return false;
}

bool State::IsAbandoned(const Job& job, VersionId version) {
  for (auto it = job.lineages.upper_bound(version.incarnation); it != job.lineages.end(); ++it) {
    const LineageRecord& later = it->second;
    if (later.decision != Decision::kVersion || version.step <= later.restored.step) continue;
    // A start that knew nothing of the version's life did not go back before it.
    const Incarnation restored = later.restored.incarnation;
    if (restored > version.incarnation && OfOtherLives(job, version.incarnation, restored)) {
      continue;
    }
    return true;
  }
  return false;
}

bool State::IsRestorable(const Job& job, const VersionState& version) {
  return version.committed() && !IsAbandoned(job, version.id) && IsWhole(job, version);
}

bool State::MayBeRestorable(const Job& job, const VersionState& version) {
  return version.committed() && !IsAbandoned(job, version.id) && MayBeWhole(job, version);
}

VersionId State::NewestCommitted(const Job& job, Tier tier) {
  for (auto it = job.versions.rbegin(); it != job.versions.rend(); ++it) {
    if (it->second.committed_at(tier) && !IsAbandoned(job, it->first)) return it->first;
  }
  return {};
}

VersionId State::NewestRestorable(const Job& job) {
  for (auto it = job.versions.rbegin(); it != job.versions.rend(); ++it) {
    if (IsRestorable(job, it->second)) return it->first;
  }
  return {};
}

void State::AddHoldings(NodeIndex node, std::vector<Holding> holdings, bool inventory) {
  // In the order of the versions, so that a late report commits the older one before the newer one
  // overtakes it.
  std::stable_sort(holdings.begin(), holdings.end(),
                   [](const Holding& a, const Holding& b) { return a.version < b.version; });
  for (const Holding& holding : holdings) AddHolding(node, holding, inventory);
}

/// The version that `holding` belongs to, or nothing with a finding when it is refused.
VersionState* State::Admit(NodeIndex node, const Holding& holding, Job& job) {
  const std::string shard = ToString(ShardKey{job.name, holding.version, holding.rank});
  auto lineage = job.lineages.find(holding.version.incarnation);
  if (lineage == job.lineages.end()) {
    Find(job.name, node,
         FailedPreconditionError(fmt::format(
             "{}: the job is at incarnation {} and never had this one; it is left alone", shard,
             job.incarnation.value)));
    KeepAside(node, holding);
    return nullptr;
  }
  if (lineage->second.world != holding.world) {
    Find(job.name, node,
         InvalidArgumentError(fmt::format("{}: saved in a world of {}, that incarnation has {}",
                                          shard, holding.world, lineage->second.world)));
    return nullptr;
  }
  if (IsParity(holding.rank) && !AdmitParity(node, holding, job)) return nullptr;
  auto found = job.versions.find(holding.version);
  if (found == job.versions.end()) return AdmitNew(holding, job);
  const RankShard& known = *found->second.Shard(holding.rank);
  if (known.known && known.digest != holding.digest) {
    Find(job.name, node,
         DataLossError(fmt::format("{} at {}: digest {:016x}, known is {:016x}; this copy does not "
                                   "count",
                                   shard, ToString(holding.tier), holding.digest, known.digest)));
    return nullptr;
  }
  return &found->second;
}

/// Makes the version that `holding` is the first word of, unless it is dead.
VersionState* State::AdmitNew(const Holding& holding, Job& job) {
  if (!IsDead(job, holding.version)) {
    return &Create(job, holding.version, holding.world, Phase::kPending);
  }
  // What it was is forgotten; it may have been committed once. On disk it is removed, in memory
  // a newer commit frees it by itself.
  if (holding.tier == Tier::kDisk) {
    return &Create(job, holding.version, holding.world, Phase::kRemoving);
  }
  if (holding.version < NewestCommitted(job, Tier::kMemory)) return nullptr;
  return &Create(job, holding.version, holding.world, Phase::kAborted);
}

/// Whether `holding`, of parity, is where the plan has it.
bool State::AdmitParity(NodeIndex node, const Holding& holding, Job& job) {
  const Incarnation incarnation = holding.version.incarnation;
  auto known = job.versions.find(holding.version);
  const bool over = known == job.versions.end() || known->second.phase == Phase::kRemoving;
  // A plan is forgotten with the last version of its incarnation; what disks still have is removed.
  if (over && incarnation < job.incarnation && job.seats_of(incarnation) == nullptr &&
      holding.tier == Tier::kDisk) {
    job.remove_disk.insert({node, holding.version});
    job.changed = true;
    return false;
  }
  if (!SitsThere(node, {job.name, holding.version, holding.rank}, job)) return false;
  if (incarnation == job.incarnation && holding.tier == Tier::kMemory) {
    // Also for a version that is gone: the target may have led there.
    job.peer_target.Answered(holding.rank, holding.version.step);
    job.changed = true;
  }
  return true;
}

/// Whether the plan of its incarnation has the parity of `shard` on this node; a finding if not.
bool State::SitsThere(NodeIndex node, const ShardKey& shard, Job& job) {
  auto refuse = [&](const std::string& why) {
    Find(job.name, node,
         FailedPreconditionError(fmt::format("{}: {}; it is left alone", ToString(shard), why)));
    return false;
  };
  const PeerSeats* seats = job.seats_of(shard.version.incarnation);
  if (seats == nullptr) {
    return refuse(
        fmt::format("incarnation {} has no parity groups", shard.version.incarnation.value));
  }
  const uint32_t number = ParityNode(shard.rank);
  if (number >= seats->seats.size()) {
    return refuse(fmt::format("the parity groups have {} nodes", seats->seats.size()));
  }
  const NodeIndex planned = seats->seats[number].node;
  if (planned == node) return true;
  return refuse(fmt::format("number {} is node {}", number, nodes_[planned].name));
}

void State::AddHolding(NodeIndex node, const Holding& holding, bool inventory) {
  if (IsForgotten(node, holding)) return;
  if (holding.version.incarnation.value < kIncarnationMax) {
    Incarnation& highest = nodes_[node].reported[holding.job];
    highest = std::max(highest, holding.version.incarnation);
  }
  if (!IsOurs(holding)) return KeepAside(node, holding);
  auto found = jobs_.find(holding.job);
  if (found == jobs_.end() || (holding.tier != Tier::kMemory && holding.tier != Tier::kDisk)) {
    Find(holding.job, node,
         FailedPreconditionError(
             fmt::format("{} at {}: unknown job or tier; it is left alone",
                         ToString(ShardKey{holding.job, holding.version, holding.rank}),
                         ToString(holding.tier))));
    if (found == jobs_.end()) KeepAside(node, holding);
    return;
  }
  Job& job = found->second;
  VersionState* version = Admit(node, holding, job);
  if (version == nullptr) return;
  Copy copy{node, holding.tier};
  if (!holding.damage.empty()) return AddDamaged(node, holding, job, *version);
  if (DamagedCopy* damaged = version->Damaged(holding.rank, copy)) {
    if (inventory) {  // the damaged copy, listed again
      damaged->readable = true;
      job.changed = true;
      return;
    }
    version->damaged.erase(version->damaged.begin() + (damaged - version->damaged.data()));
  }
  RankShard& shard = *version->Shard(holding.rank);
  shard.known = true;
  shard.digest = holding.digest;
  shard.image_bytes = holding.image_bytes;
  bool added = version->AddCopy(holding.rank, copy);
  if (job.audience.insert(node).second) job.word_to.insert(node);
  if (!IsParity(holding.rank)) AddRank(node, holding, inventory, job);
  if (!IsParity(holding.rank) && version->phase == Phase::kPending) {
    for (const ReplicaSample& sample : holding.samples) {
      const TensorBytes bytes{sample.tensor, sample.first, sample.first + sample.bytes};
      version->samples[bytes][holding.rank.value] = sample.crc;
    }
  }
  if (version->phase == Phase::kAborted || version->phase == Phase::kRemoving) {
    job.word_to.insert(node);
    if (holding.tier == Tier::kDisk) job.remove_disk.insert({node, version->id});
  } else {
    if (!IsParity(holding.rank)) TryCommit(job, *version, holding.tier);
    TryCommit(job, *version, Tier::kPeer);
  }
  job.changed = job.changed || added;
}

/// A copy that is bad in places: no copy any more, but of use to its group until it is mended.
void State::AddDamaged(NodeIndex node, const Holding& holding, Job& job, VersionState& version) {
  const Copy copy{node, holding.tier};
  version.RemoveCopy(holding.rank, copy);
  RecordDamage(job, version, holding.rank, copy, holding.damage).readable = true;
  if (job.audience.insert(node).second) job.word_to.insert(node);
  job.changed = true;
  if (version.phase != Phase::kAborted && version.phase != Phase::kRemoving) return;
  job.word_to.insert(node);
  if (holding.tier == Tier::kDisk) job.remove_disk.insert({node, version.id});
}

/// Once for each copy it is a finding.
DamagedCopy& State::RecordDamage(Job& job, VersionState& version, Rank rank, Copy copy,
                                 const std::string& what) {
  job.repair_due = true;
  if (DamagedCopy* known = version.Damaged(rank, copy)) return *known;
  const std::string text =
      fmt::format("{} at {} on node {}: {}", ToString(ShardKey{job.name, version.id, rank}),
                  ToString(copy.tier), nodes_[copy.node].name, what);
  if (version.damage_texts.size() < kDamageTextsMax) version.damage_texts.push_back(text);
  Find(job.name, copy.node, DataLossError(text));
  return version.damaged.emplace_back(DamagedCopy{rank, copy});
}

/// What follows from a rank's shard beside the commit.
void State::AddRank(NodeIndex node, const Holding& holding, bool inventory, Job& job) {
  if (holding.version.incarnation != job.incarnation) return;
  if (holding.version.step > job.newest_seen) job.newest_at = at_.now;
  job.newest_seen = std::max(job.newest_seen, holding.version.step);
  NodeIndex& place = job.rank_nodes[holding.rank.value];
  if (place == kNoNode && holding.tier == Tier::kMemory) {
    place = node;
    ++job.ranks_joined;
  }
  if (holding.tier == Tier::kDisk) job.disk_target.Answered(holding.rank, holding.version.step);
  if (holding.tier == Tier::kMemory && !inventory) AbortOvertaken(job, holding);
}

/// A rank seals its steps in order: one it has not reported when it reports a newer one will never
/// come (its trainer was cut off from its agent meanwhile). The others' slots must not wait for it.
void State::AbortOvertaken(Job& job, const Holding& newer) {
  auto it = job.versions.lower_bound(newer.version);
  while (it != job.versions.begin()) {
    VersionState& version = (--it)->second;
    // Whatever is pending below a commit was aborted with it.
    if (version.id.incarnation != job.incarnation || version.committed()) return;
    const bool passed_over = !version.ranks[newer.rank.value].known;
    if (version.phase == Phase::kPending && passed_over) Abort(job, version, true);
  }
}

void State::TryCommit(Job& job, VersionState& version, Tier tier) {
  if (version.phase != Phase::kPending && version.phase != Phase::kCommitted) return;
  if (version.committed_at(tier)) return;
  // Parity that could not be made in memory may have been made on disk since.
  if ((version.failed_tiers & TierBit(tier)) != 0 && tier != Tier::kPeer) return;
  const bool complete =
      tier == Tier::kPeer ? IsCompleteAtPeer(job, version) : version.held_at(tier) == version.world;
  if (!complete) return;
  // A new version only of the current incarnation; a committed one may reach further tiers later.
  if (version.id.incarnation != job.incarnation && version.tiers == 0) return;
  if (version.tiers == 0) {
    CompareReplicas(job, version);
    version.wall_nanos = at_.wall_nanos;
    ++job.committed_total;
  }
  version.phase = Phase::kCommitted;
  version.tiers |= TierBit(tier);
  version.failed_tiers &= ~TierBit(tier);
  version.whole.reset();
  version.bytes = 0;
  for (const RankShard& shard : version.ranks) version.bytes += shard.image_bytes;
  Store(job, version, TierBit(tier));
  if (version.id.incarnation == job.incarnation) {
    for (auto& [id, older] : job.versions) {
      if (id >= version.id) break;
      if (older.phase == Phase::kPending) Abort(job, older, false);
    }
    if (TierTarget* target = job.target(tier)) target->Resolve(version.id.step);
  }
  job.changed = true;
  job.word_changed = true;
  job.retention_due = true;
  if (tier != Tier::kMemory) job.repair_due = true;
}

void State::Abort(Job& job, VersionState& version, bool store) {
  if (version.phase != Phase::kPending) return;
  for (TierTarget* target : {&job.disk_target, &job.peer_target}) {
    if (LeadsTo(job, *target, version.id)) target->Resolve(version.id.step);
  }
  version.phase = Phase::kAborted;
  version.samples.clear();
  ++job.aborted_total;
  if (store) Store(job, version, 0);
  version.ForEachCopy([&](const Copy& copy) {
    if (copy.tier == Tier::kDisk) job.remove_disk.insert({copy.node, version.id});
  });
  job.changed = true;
  job.word_changed = true;
}

void State::OnMissing(NodeIndex node, const Missing& missing) {
  auto found = jobs_.find(missing.job);
  if (found == jobs_.end()) return;
  Job& job = found->second;
  const ShardKey key{job.name, missing.version, missing.rank};
  auto lineage = job.lineages.find(missing.version.incarnation);
  if (lineage == job.lineages.end()) return;
  const bool parity = IsParity(missing.rank);
  if (parity ? !SitsThere(node, key, job) : missing.rank.value >= lineage->second.world) return;
  const bool current = missing.version.incarnation == job.incarnation;
  if (current && missing.version.step > job.newest_seen) job.newest_at = at_.now;
  if (current) job.newest_seen = std::max(job.newest_seen, missing.version.step);
  if (current && parity && missing.tier != Tier::kDisk) {
    // Also for a version that is gone: the target may have led there.
    job.peer_target.Resolve(missing.version.step);
    job.changed = true;
  }
  auto known = job.versions.find(missing.version);
  if (known == job.versions.end()) {
    if (IsDead(job, missing.version)) return;
    Create(job, missing.version, lineage->second.world, Phase::kPending);
    known = job.versions.find(missing.version);
  }
  VersionState& version = known->second;
  Find(job.name, node,
       AbortedError(fmt::format("{} will not reach {}: {}", ToString(key), ToString(missing.tier),
                                missing.why)));
  job.changed = true;
  if (!parity) {
    version.RemoveCopy(missing.rank, {node, missing.tier});
    return missing.tier == Tier::kMemory ? Abort(job, version, true)
                                         : FailTier(job, version, missing.tier);
  }
  // Parity is what makes the tier peer, and in memory is where it is made.
  const bool on_disk = missing.tier == Tier::kDisk;
  version.RemoveCopy(missing.rank, {node, on_disk ? Tier::kDisk : Tier::kMemory});
  if (!on_disk) FailTier(job, version, Tier::kPeer);
}

/// The version will never be at `tier`; elsewhere it may.
void State::FailTier(Job& job, VersionState& version, Tier tier) {
  if (version.phase != Phase::kPending && version.phase != Phase::kCommitted) return;
  if (((version.tiers | version.failed_tiers) & TierBit(tier)) != 0) return;
  version.failed_tiers |= TierBit(tier);
  if (version.recorded) Store(job, version, 0);
  TierTarget* target = job.target(tier);
  if (target != nullptr && version.id.incarnation == job.incarnation) {
    target->Resolve(version.id.step);
  }
  job.retention_due = true;
}

void State::OnGone(NodeIndex node, const Gone& gone) {
  OnForgottenGone(node, gone);
  ForgetAside(node, gone);
  auto found = jobs_.find(gone.job);
  if (found == jobs_.end()) return;
  auto version = found->second.versions.find(gone.version);
  if (version == found->second.versions.end()) return;
  Job& job = found->second;
  const Copy copy{node, gone.tier};
  if (version->second.RemoveCopy(gone.rank, copy)) {
    job.changed = true;
    if (gone.tier == Tier::kDisk && version->second.committed()) job.repair_due = true;
  }
  if (DamagedCopy* damaged = version->second.Damaged(gone.rank, copy)) damaged->readable = false;
  if (gone.damage.empty() || version->second.Shard(gone.rank) == nullptr) return;
  RecordDamage(job, version->second, gone.rank, copy, gone.damage);
}

void State::Store(const Job& job, VersionState& version, uint32_t committed_tier_bit) {
  version.recorded = true;
  VersionRecord record;
  record.job = job.name;
  record.version = version.id;
  record.world = version.world;
  record.phase = version.phase;
  record.tiers = version.tiers;
  record.failed_tiers = version.failed_tiers;
  record.pinned = version.pinned;
  record.wall_nanos = version.wall_nanos;
  record.bytes = version.bytes;
  record.disputes = version.disputes;
  record.adopted_from = version.adopted_from;
  if (version.tiers != 0) {
    record.digests.reserve(version.ranks.size());
    for (const RankShard& shard : version.ranks) record.digests.push_back(shard.digest);
  }
  if (version.committed_at(Tier::kPeer)) {
    for (const RankShard& shard : version.parity) record.parity_digests.push_back(shard.digest);
  }
  effects_.emplace_back(PutVersion{std::move(record), committed_tier_bit});
}

/// The version is the first at or after the target that may come true.
bool State::LeadsTo(const Job& job, const TierTarget& target, VersionId version) {
  if (version.incarnation != job.incarnation || version.step < target.step()) return false;
  auto it = job.versions.lower_bound({job.incarnation, target.step()});
  for (; it != job.versions.end() && it->first < version; ++it) {
    if (it->second.phase == Phase::kPending || it->second.committed()) return false;
  }
  return true;
}

void State::AdvanceTargets(Job& job) {
  if (job.disk_target.AllAnswered(job.lineage().world)) job.disk_target.GiveUp();
  const Step next{job.newest_seen.value + 1};
  if (job.disk_target.Advance(next)) job.word_changed = true;
  const PeerSeats* seats = job.seats_of(job.incarnation);
  if (seats == nullptr) return;
  if (job.peer_target.AllAnswered(seats->seats.size()) && !ParityAwaitsMemory(job)) {
    job.peer_target.GiveUp();
  }
  // What is on its way to disk gets its parity, so that the disks alone survive lost nodes too;
  // else the next step.
  const Step to_disk = job.disk_target.step();
  const bool together = to_disk > job.peer_target.reached() && to_disk < next;
  if (!job.peer_target.Advance(together ? to_disk : next)) return;
  job.word_changed = true;
  job.retention_due = true;  // what was on its way to the peers counted until now
}

}  // namespace holdfast::coord
