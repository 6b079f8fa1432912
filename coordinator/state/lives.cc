#include <fmt/format.h>

#include <algorithm>
#include <tuple>

#include "coordinator/state/state.h"

// Copies of other lives of the store: nodes keep them, they count for nothing, and an operator may
// adopt the versions among them that are complete.

namespace holdfast::coord {
namespace {
// Agents that are refused try again every second or so.
constexpr std::chrono::seconds kRefusedShown(30);
constexpr size_t kRefusedMax = 1024;

LifeId LifeOf(const Job& job, Incarnation incarnation) {
  auto lineage = job.lineages.find(incarnation);
  return lineage == job.lineages.end() ? LifeId{} : lineage->second.life;
}
}  // namespace

/// A version of another life with the copies that attached nodes have of it.
struct State::Adoption {
  std::string job;
  LifeId life;
  VersionId version;
  uint32_t world = 0;
  std::map<uint32_t, std::vector<std::pair<NodeIndex, Holding>>> copies;  // by rank

  /// Ranks that have a copy at the tier.
  uint32_t held_at(Tier tier) const {
    return static_cast<uint32_t>(
        std::count_if(copies.begin(), copies.end(), [tier](const auto& rank) {
          return std::any_of(rank.second.begin(), rank.second.end(),
                             [tier](const auto& copy) { return copy.second.tier == tier; });
        }));
  }
};

/// The incarnations were opened in different lives of the store.
bool State::OfOtherLives(const Job& job, Incarnation a, Incarnation b) {
  const LifeId life_a = LifeOf(job, a);
  const LifeId life_b = LifeOf(job, b);
  return life_a.value != 0 && life_b.value != 0 && life_a != life_b;
}

/// A copy without a life belongs to the one that its node meets first; what an older agent lists or
/// reports is of this one.
std::vector<Holding> State::Claimed(std::vector<Holding> holdings, LifeId life_seen) const {
  for (Holding& holding : holdings) {
    if (holding.life.value == 0 && life_seen.value == 0) holding.life = options_.life;
  }
  return holdings;
}

/// The copy is of this life, or a record has its digest: then whoever wrote it wrote these bytes.
bool State::IsOurs(const Holding& holding) const {
  if (options_.life.value == 0 || holding.life == options_.life) return true;
  auto job = jobs_.find(holding.job);
  if (job == jobs_.end()) return false;
  auto found = job->second.versions.find(holding.version);
  if (found == job->second.versions.end()) return false;
  const VersionState& version = found->second;
  if (!version.recorded || version.tiers == 0 || version.world != holding.world) return false;
  const std::vector<RankShard>& shards = IsParity(holding.rank) ? version.parity : version.ranks;
  const uint32_t index = IsParity(holding.rank) ? ParityNode(holding.rank) : holding.rank.value;
  return index < shards.size() && shards[index].known && shards[index].digest == holding.digest;
}

void State::KeepAside(NodeIndex node, const Holding& holding) {
  const ShardKey key{holding.job, holding.version, holding.rank};
  nodes_[node].other_lives.insert_or_assign({key, holding.tier}, holding);
}

/// Some attached node keeps copies of the job aside.
bool State::KeepsAside(const std::string& job) const {
  return std::any_of(nodes_.begin(), nodes_.end(), [&](const Node& node) {
    return std::any_of(node.other_lives.begin(), node.other_lives.end(),
                       [&](const auto& entry) { return entry.second.job == job; });
  });
}

void State::ForgetAside(NodeIndex node, const Gone& gone) {
  nodes_[node].other_lives.erase({ShardKey{gone.job, gone.version, gone.rank}, gone.tier});
}

/// An agent is turned away: status shows it while it goes on trying.
void State::ShowRefused(const NodeAttached& event, const Status& why) {
  std::erase_if(refused_,
                [this](const auto& entry) { return at_.now - entry.second.at > kRefusedShown; });
  if (refused_.size() >= kRefusedMax) return;
  refused_[event.node] = {event.node, why.message(), at_.wall_nanos, at_.now};
}

std::vector<RefusedView> State::Refused() const {
  std::vector<RefusedView> all;
  for (const auto& [node, view] : refused_) {
    if (at_.now - view.at <= kRefusedShown) all.push_back(view);
  }
  return all;
}

/// What is left of a life that the job was adopted from is not complete, and no news any more.
std::vector<OtherLifeView> State::OtherLivesOf(const Node& node) const {
  std::map<std::pair<LifeId, std::string>, OtherLifeView> found;
  for (const auto& [place, holding] : node.other_lives) {
    auto job = jobs_.find(holding.job);
    if (job != jobs_.end() && job->second.adopted_lives.count(holding.life) != 0) continue;
    OtherLifeView& view = found[{holding.life, holding.job}];
    view.life = holding.life;
    view.job = holding.job;
    ++view.shards;
    view.newest = std::max(view.newest, holding.version);
  }
  std::vector<OtherLifeView> all;
  for (auto& [key, view] : found) all.push_back(std::move(view));
  return all;
}

/// By job, newest first.
std::vector<State::Adoption> State::Adoptable(const AdoptWanted& event) const {
  std::map<std::tuple<std::string, VersionId, LifeId, uint32_t>, Adoption> found;
  for (NodeIndex index = 0; index < nodes_.size(); ++index) {
    for (const auto& [place, holding] : nodes_[index].other_lives) {
      const bool wanted = (event.job.empty() || holding.job == event.job) &&
                          (event.life.value == 0 || holding.life == event.life);
      if (!wanted || IsParity(holding.rank) || !holding.damage.empty()) continue;
      Adoption& one = found[{holding.job, holding.version, holding.life, holding.world}];
      one.job = holding.job;
      one.life = holding.life;
      one.version = holding.version;
      one.world = holding.world;
      one.copies[holding.rank.value].emplace_back(index, holding);
    }
  }
  std::vector<Adoption> all;
  for (auto& [key, one] : found) all.push_back(std::move(one));
  std::stable_sort(all.begin(), all.end(), [](const Adoption& a, const Adoption& b) {
    return std::tie(a.job, b.version) < std::tie(b.job, a.version);
  });
  return all;
}

/// Why it is not certain that the version is complete, or that its number is free; empty: it is.
std::string State::WhyNotAdopted(const Adoption& adoption) const {
  if (adoption.life.value == 0) return "its seals name no life: an older Holdfast wrote them";
  for (uint32_t rank = 0; rank < adoption.world; ++rank) {
    auto held = adoption.copies.find(rank);
    if (held == adoption.copies.end()) {
      return fmt::format("{} of {} ranks have a copy on an attached node; rank {} has none",
                         adoption.copies.size(), adoption.world, rank);
    }
    const auto& [first, one] = held->second.front();
    for (const auto& [node, other] : held->second) {
      if (other.digest == one.digest) continue;
      return fmt::format("rank {} is not the same on nodes {} and {}", rank, nodes_[first].name,
                         nodes_[node].name);
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
      return fmt::format("this life of the store has an incarnation {} of its own",
                         incarnation.value);
    }
  }
  if (auto known = job.versions.find(adoption.version); known != job.versions.end()) {
    if (known->second.phase == Phase::kAborted) return "it was given up";
    return "the store has this version, with other bytes";
  }
  const LifeId current = job.lineage().life;
  if (incarnation > job.incarnation && (current == options_.life || current.value == 0)) {
    return fmt::format("the job is at incarnation {} here: start it once more, then adopt",
                       job.incarnation.value);
  }
  if (IsAbandoned(job, adoption.version)) return "a later incarnation restarted before it";
  return "";
}

void State::Adopt(const Adoption& adoption) {
  auto [found, made] = jobs_.try_emplace(adoption.job);
  Job& job = found->second;
  if (made) {
    job.name = adoption.job;
    job.uid = kNobodyYet;
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
    // With a space: the run id of no trainer.
    lineage.run_id = fmt::format("adopted {}-{}", ToString(adoption.life), incarnation.value);
    lineage.world = adoption.world;
    lineage.decision = Decision::kFresh;  // it never restores anything here
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
  for (const auto& [rank, held] : adoption.copies) {
    RankShard& shard = version.ranks[rank];
    shard.known = true;
    shard.digest = held.front().second.digest;
    shard.image_bytes = held.front().second.image_bytes;
    version.bytes += shard.image_bytes;
    for (const auto& [node, holding] : held) {
      version.AddCopy(Rank{rank}, {node, holding.tier});
      job.nodes_before.insert(node);
      if (job.audience.insert(node).second) job.word_to.insert(node);
      nodes_[node].other_lives.erase(
          {ShardKey{holding.job, holding.version, holding.rank}, holding.tier});
    }
  }
  if (version.held_at(Tier::kMemory) == version.world) version.tiers |= TierBit(Tier::kMemory);
  // Partly in memory, partly on disk: what the disks lack is ordered onto them.
  const bool on_disk = version.held_at(Tier::kDisk) == version.world || version.tiers == 0;
  if (on_disk) version.tiers |= TierBit(Tier::kDisk);
  // A job that went on without them must not let its retention take all that was adopted.
  version.pinned =
      on_disk && job.lineage().life == options_.life && job.adopted_lives.count(adoption.life) == 0;
  job.adopted_lives.insert(adoption.life);
  Store(job, version, 0);
  effects_.emplace_back(PutJob{RecordOf(job)});
  ++job.committed_total;
  job.changed = true;
  job.word_changed = true;
  job.repair_due = true;
  Find(job.name, kNoNode,
       Status(ErrorCode::kAborted,
              fmt::format("version {} of life {} was adopted", ToString(adoption.version),
                          ToString(adoption.life))));
}

void State::On(const AdoptWanted& event) {
  Reply reply;
  reply.request = event.request;
  std::map<std::pair<std::string, Incarnation>, LifeId> first;
  for (const Adoption& one : Adoptable(event)) {
    AdoptedVersion adopted;
    adopted.job = one.job;
    adopted.life = one.life;
    adopted.version = one.version;
    adopted.world = one.world;
    adopted.ranks = static_cast<uint32_t>(one.copies.size());
    for (const auto& [rank, copies] : one.copies) {
      adopted.bytes += copies.front().second.image_bytes;
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
