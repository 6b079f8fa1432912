#include <fmt/format.h>

#include <algorithm>
#include <tuple>

#include "coordinator/state/state.h"

// Quarantined replicas, of other lives of the store: nodes keep them, they do not count, and an
// operator may adopt complete versions among them.

namespace holdfast::coord {
namespace {
// How long a refused agent is listed after its last attempt. Refused agents try again about once a
// second.
constexpr std::chrono::seconds kRefusedShown(30);
constexpr size_t kRefusedMax = 1024;

LifeId LifeOf(const Job& job, Incarnation incarnation) {
  auto lineage = job.lineages.find(incarnation);
  return lineage == job.lineages.end() ? LifeId{} : lineage->second.life;
}
}  // namespace

/// A version of another life with the replicas that attached nodes have of it.
struct State::Adoption {
  std::string job;
  LifeId life;
  VersionId version;
  uint32_t world = 0;
  std::map<uint32_t, std::vector<std::pair<NodeIndex, StoredReplica>>> replicas;  // by rank

  /// The number of ranks that have a replica at the tier.
  uint32_t held_at(Tier tier) const {
    return static_cast<uint32_t>(
        std::count_if(replicas.begin(), replicas.end(), [tier](const auto& rank) {
          return std::any_of(rank.second.begin(), rank.second.end(),
                             [tier](const auto& replica) { return replica.second.tier == tier; });
        }));
  }
};

/// Whether the two incarnations were opened in different, known lives of the store.
bool State::AreOfDifferentLives(const Job& job, Incarnation a, Incarnation b) {
  const LifeId life_a = LifeOf(job, a);
  const LifeId life_b = LifeOf(job, b);
  return life_a.value != 0 && life_b.value != 0 && life_a != life_b;
}

/// Assigns replicas without a life to this one if their node has seen no other life before.
std::vector<StoredReplica> State::AssignLife(std::vector<StoredReplica> replicas,
                                             LifeId life_seen) const {
  for (StoredReplica& report : replicas) {
    if (report.life.value == 0 && life_seen.value == 0) report.life = options_.life;
  }
  return replicas;
}

/// Whether the replica counts: it is of this life, or a record has its digest, which proves that
/// its bytes are the committed ones.
bool State::CountsInThisLife(const StoredReplica& report) const {
  if (options_.life.value == 0 || report.life == options_.life) return true;
  auto job = jobs_.find(report.identity.job);
  if (job == jobs_.end()) return false;
  auto found = job->second.versions.find(report.identity.version);
  if (found == job->second.versions.end()) return false;
  const VersionState& version = found->second;
  if (!version.recorded || version.tiers == 0 || version.world != report.identity.world)
    return false;
  const std::vector<RankShard>& shards =
      IsParity(report.identity.rank) ? version.parity : version.ranks;
  const uint32_t index = IsParity(report.identity.rank) ? ParityNode(report.identity.rank)
                                                        : report.identity.rank.value;
  return index < shards.size() && shards[index].known && shards[index].digest == report.digest;
}

void State::QuarantineReplica(NodeIndex node, const StoredReplica& report) {
  nodes_[node].other_lives.insert_or_assign({report.identity.key(), report.tier}, report);
}

/// Whether an attached node has quarantined replicas of the job.
bool State::HasQuarantined(const std::string& job) const {
  return std::any_of(nodes_.begin(), nodes_.end(), [&](const Node& node) {
    return std::any_of(node.other_lives.begin(), node.other_lives.end(),
                       [&](const auto& entry) { return entry.second.identity.job == job; });
  });
}

void State::DropQuarantined(NodeIndex node, const RemovedReplica& removed) {
  nodes_[node].other_lives.erase({removed.key, removed.tier});
}

/// Records a refused attach: `holdfast status` lists the agent while it keeps trying.
void State::RecordRefused(const NodeAttached& event, const Status& why) {
  std::erase_if(refused_,
                [this](const auto& entry) { return at_.now - entry.second.at > kRefusedShown; });
  if (refused_.size() >= kRefusedMax) return;
  refused_[event.node] = {event.node, why.message(), at_.wall_nanos, at_.now};
}

std::vector<RefusedNode> State::Refused() const {
  std::vector<RefusedNode> all;
  for (const auto& [name, refused] : refused_) {
    if (at_.now - refused.at <= kRefusedShown) all.push_back(refused);
  }
  return all;
}

/// Lists a node's quarantined replicas by life and job. A life that versions of the job were
/// adopted from is left out: what remains of it is incomplete.
std::vector<OtherLifeStatus> State::OtherLivesOf(const Node& node) const {
  std::map<std::pair<LifeId, std::string>, OtherLifeStatus> found;
  for (const auto& [place, report] : node.other_lives) {
    auto job = jobs_.find(report.identity.job);
    if (job != jobs_.end() && job->second.adopted_lives.count(report.life) != 0) continue;
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

/// Returns the quarantined versions that `event` names, complete or not, by job, newest first.
std::vector<State::Adoption> State::FindAdoptable(const AdoptRequested& event) const {
  std::map<std::tuple<std::string, VersionId, LifeId, uint32_t>, Adoption> found;
  for (NodeIndex index = 0; index < nodes_.size(); ++index) {
    for (const auto& [place, report] : nodes_[index].other_lives) {
      const bool wanted = (event.job.empty() || report.identity.job == event.job) &&
                          (event.life.value == 0 || report.life == event.life);
      if (!wanted || IsParity(report.identity.rank) || !report.damage.empty()) continue;
      Adoption& one =
          found[{report.identity.job, report.identity.version, report.life, report.identity.world}];
      one.job = report.identity.job;
      one.life = report.life;
      one.version = report.identity.version;
      one.world = report.identity.world;
      one.replicas[report.identity.rank.value].emplace_back(index, report);
    }
  }
  std::vector<Adoption> all;
  for (auto& [key, one] : found) all.push_back(std::move(one));
  std::stable_sort(all.begin(), all.end(), [](const Adoption& a, const Adoption& b) {
    return std::tie(a.job, b.version) < std::tie(b.job, a.version);
  });
  return all;
}

/// Returns why the version cannot be adopted: it is incomplete, or its number is not free here.
/// Empty if it can be adopted.
std::string State::WhyNotAdopted(const Adoption& adoption) const {
  if (adoption.life.value == 0) return "its seals name no life: an older Holdfast wrote them";
  for (uint32_t rank = 0; rank < adoption.world; ++rank) {
    auto held = adoption.replicas.find(rank);
    if (held == adoption.replicas.end()) {
      return fmt::format("{} of {} ranks have a replica on an attached node; rank {} has none",
                         adoption.replicas.size(), adoption.world, rank);
    }
    const auto& [first, one] = held->second.front();
    for (const auto& [node, other] : held->second) {
      if (other.digest == one.digest) continue;
      return fmt::format("rank {}'s shard is not the same on nodes {} and {}", rank,
                         nodes_[first].name, nodes_[node].name);
    }
  }
  auto found = jobs_.find(adoption.job);
  if (found == jobs_.end()) return "";
  const Job& job = found->second;
  const Incarnation incarnation = adoption.version.incarnation;
  auto lineage = job.lineages.find(incarnation);
  if (lineage != job.lineages.end()) {
    const bool same = lineage->second.life == adoption.life && adoption.life != options_.life &&
                      lineage->second.world == adoption.world;
    if (!same) {
      return fmt::format("this life of the store has its own incarnation {}", incarnation.value);
    }
  }
  if (auto known = job.versions.find(adoption.version); known != job.versions.end()) {
    if (known->second.phase == Phase::kAborted) return "it was aborted";
    return "the store has this version with other bytes";
  }
  const LifeId current = job.lineage().life;
  if (incarnation > job.incarnation && (current == options_.life || current.value == 0)) {
    return fmt::format("the job is at incarnation {} here: start it once more, then adopt",
                       job.incarnation.value);
  }
  if (IsAbandoned(job, adoption.version)) return "a later incarnation restored an older version";
  return "";
}

void State::Adopt(const Adoption& adoption) {
  auto [found, made] = jobs_.try_emplace(adoption.job);
  Job& job = found->second;
  if (made) {
    job.name = adoption.job;
    job.uid = kNoOwner;
    job.joined_at = job.alive_at = job.newest_at = at_.now;
    if (auto forgotten = forgotten_.find(job.name); forgotten != forgotten_.end()) {
      job.forgotten_upto = forgotten->second.upto;
      forgotten_.erase(forgotten);
    }
  }
  const Incarnation incarnation = adoption.version.incarnation;
  if (job.lineages.count(incarnation) == 0) {
    LineageRecord lineage;
    lineage.job = job.name;
    lineage.incarnation = incarnation;
    // The space keeps it different from all run IDs of trainers.
    lineage.run_id = fmt::format("adopted {}-{}", ToString(adoption.life), incarnation.value);
    lineage.world = adoption.world;
    lineage.decision = Decision::kFresh;  // this incarnation never restores a version here
    lineage.life = adoption.life;
    job.lineages[incarnation] = lineage;
    effects_.emplace_back(PutLineage{lineage});
  }
  if (incarnation > job.incarnation) {
    job.incarnation = incarnation;
    job.rank_nodes.assign(adoption.world, kNoNode);
    job.slot_bytes.assign(adoption.world, 0);
  }
  VersionState& version = Create(job, adoption.version, adoption.world, Phase::kCommitted);
  version.adopted_from = adoption.life;
  version.wall_nanos = at_.wall_nanos;
  for (const auto& [rank, held] : adoption.replicas) {
    RankShard& shard = version.ranks[rank];
    shard.known = true;
    shard.digest = held.front().second.digest;
    shard.image_bytes = held.front().second.image_bytes;
    version.bytes += shard.image_bytes;
    for (const auto& [node, report] : held) {
      version.AddReplica(Rank{rank}, {node, report.tier});
      job.nodes_before.insert(node);
      if (job.subscribers.insert(node).second) job.job_state_to.insert(node);
      nodes_[node].other_lives.erase({report.identity.key(), report.tier});
    }
  }
  if (version.held_at(Tier::kMemory) == version.world) version.tiers |= TierBit(Tier::kMemory);
  // If some ranks' shards are only in memory, the others' only on disk, the version counts as
  // committed on disk, and repairs write the missing shards there.
  const bool on_disk = version.held_at(Tier::kDisk) == version.world || version.tiers == 0;
  if (on_disk) version.tiers |= TierBit(Tier::kDisk);
  // If the job has started again since, its retention must not remove all adopted versions.
  version.pinned =
      on_disk && job.lineage().life == options_.life && job.adopted_lives.count(adoption.life) == 0;
  job.adopted_lives.insert(adoption.life);
  Store(job, version, 0);
  effects_.emplace_back(PutJob{RecordOf(job)});
  ++job.committed_total;
  job.changed = true;
  job.job_state_changed = true;
  job.repair_due = true;
  RecordFinding(job.name, kNoNode,
                Status(ErrorCode::kAborted,
                       fmt::format("version {} of life {} was adopted", ToString(adoption.version),
                                   ToString(adoption.life))));
}

void State::On(const AdoptRequested& event) {
  Reply reply;
  reply.request = event.request;
  // One call adopts an incarnation from one life only: the life of its newest adoptable version.
  std::map<std::pair<std::string, Incarnation>, LifeId> first;
  for (const Adoption& one : FindAdoptable(event)) {
    AdoptedVersion adopted;
    adopted.job = one.job;
    adopted.life = one.life;
    adopted.version = one.version;
    adopted.world = one.world;
    adopted.ranks = static_cast<uint32_t>(one.replicas.size());
    for (const auto& [rank, replicas] : one.replicas) {
      adopted.bytes += replicas.front().second.image_bytes;
    }
    const bool in_memory = one.held_at(Tier::kMemory) == one.world;
    if (in_memory) adopted.tiers |= TierBit(Tier::kMemory);
    if (!in_memory || one.held_at(Tier::kDisk) == one.world) adopted.tiers |= TierBit(Tier::kDisk);
    adopted.why_not = WhyNotAdopted(one);
    if (adopted.why_not.empty()) {
      const auto life = first.try_emplace({one.job, one.version.incarnation}, one.life).first;
      if (life->second != one.life) {
        adopted.why_not = fmt::format("life {} has the same incarnation: name one with --life",
                                      ToString(life->second));
      } else if (!event.dry_run) {
        Adopt(one);
      }
    }
    reply.adopted.push_back(std::move(adopted));
  }
  if (event.request != 0) effects_.emplace_back(std::move(reply));
}

}  // namespace holdfast::coord
