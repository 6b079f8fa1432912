#include <fmt/format.h>

#include <algorithm>

#include "coordinator/state/peers.h"
#include "coordinator/state/state.h"

// Restore: prepared as ranks connect, decided once for all of them.

namespace holdfast::coord {
namespace {
constexpr uint32_t kAttemptsMax = 3;
// A decode fails also because a member is gone that still counts as there: tried for longer than
// that lasts.
constexpr uint32_t kDecodeAttemptsMax = 50;
// Bytes that the network harmed look like damaged ones: what was decoded in vain counts as so many
// attempts, and not as all of them.
constexpr uint32_t kDecodeInVain = 10;
constexpr auto kRetryPause = std::chrono::milliseconds(200);
constexpr size_t kNamedMax = 8;  // ranks and nodes named in one message

/// Answers after which the copy is not tried again.
bool IsLost(ErrorCode code) {
  return code == ErrorCode::kDataLoss || code == ErrorCode::kIoError ||
         code == ErrorCode::kNotFound;
}

/// The running incarnation has versions of its own, so what its ranks ask for now is to go back: to
/// the one they name, or together to the newest; also where nobody restored at the start. Before
/// that a rank may be a late one of the start.
bool IsRollback(const Job& job, const RestoreWanted& event) {
  const bool own = std::any_of(job.versions.begin(), job.versions.end(), [&](const auto& entry) {
    return entry.first.incarnation == job.incarnation && entry.second.tiers != 0;
  });
  const LineageRecord& lineage = job.lineage();
  return own && (lineage.decision != Decision::kVersion || event.wanted != lineage.restored);
}

bool AnyCommitted(const Job& job) {
  return std::any_of(job.versions.begin(), job.versions.end(),
                     [](const auto& entry) { return entry.second.tiers != 0; });
}
}  // namespace

/// True when every node that may hold something of the job is attached, or has been away for a
/// whole lease: only then is it certain what can be restored.
bool State::GateOpen(const Job& job) const {
  auto counted = [this](NodeIndex index) {
    const Node& node = nodes_[index];
    return node.attached || at_.now - node.lost_at >= options_.node_lease;
  };
  return std::all_of(job.nodes_now.begin(), job.nodes_now.end(), counted) &&
         std::all_of(job.nodes_before.begin(), job.nodes_before.end(), counted);
}

void State::On(const RestoreWanted& event) {
  auto refuse = [&](Status why) { Answer(event.request, std::move(why)); };
  auto found = jobs_.find(event.job);
  if (found == jobs_.end()) {
    return refuse(FailedPreconditionError(fmt::format("job '{}' never started", event.job)));
  }
  Job& job = found->second;
  if (event.incarnation != job.incarnation) {
    std::string text = fmt::format("incarnation {} of job '{}' asks, incarnation {} runs",
                                   event.incarnation.value, job.name, job.incarnation.value);
    return refuse(event.incarnation < job.incarnation ? FencedError(text)
                                                      : FailedPreconditionError(text));
  }
  if (event.rank.value >= job.lineage().world) {
    return refuse(InvalidArgumentError(
        fmt::format("rank {} in a world of {}", event.rank.value, job.lineage().world)));
  }
  Node* node = Find(event.node);
  if (node == nullptr || !node->attached) {
    return refuse(UnavailableError(fmt::format("node {} is not attached yet", event.node)));
  }
  const LineageRecord& lineage = job.lineage();
  bool named = event.wanted.incarnation.value != 0;
  if (IsRollback(job, event)) {
    job.plan.rollbacks.push_back({event.request, event.rank, at_.now, event.view, event.wanted});
    job.plan.open = true;
    return Place(job, event.rank, node_names_.at(event.node));
  }
  if (lineage.decision == Decision::kFresh ||
      (lineage.decision == Decision::kNone && !AnyCommitted(job))) {
    if (named) return refuse(WhyNotWanted(job, event.wanted));
    if (lineage.decision == Decision::kNone) DecideFresh(job);
    return refuse(
        NotFoundError(fmt::format("job '{}' has no committed version: a fresh start", job.name)));
  }
  RestorePlan& plan = job.plan;
  if (lineage.decision == Decision::kVersion) {
    if (named && event.wanted != lineage.restored) {
      return refuse(FailedPreconditionError(fmt::format(
          "incarnation {} of job '{}' restores {}, not {}; start it with another run id to choose "
          "again",
          job.incarnation.value, job.name, ToString(lineage.restored), ToString(event.wanted))));
    }
  } else if (plan.asks.empty()) {
    plan.wanted = event.wanted;
    plan.unusable.clear();
  } else if (plan.wanted != event.wanted) {
    auto name = [](VersionId version) {
      return version.incarnation.value == 0 ? std::string("the newest") : ToString(version);
    };
    return refuse(InvalidArgumentError(fmt::format(
        "rank {} asks for {}, other ranks of this incarnation for {}; all must ask for the same",
        event.rank.value, name(event.wanted), name(plan.wanted))));
  }
  plan.open = true;
  plan.asks.push_back({event.request, event.rank, at_.now, event.view});
  Place(job, event.rank, node_names_.at(event.node));
}

void State::On(const RestoreGivenUp& event) {
  for (auto& [name, job] : jobs_) {
    std::vector<RestoreAsk>& asks = job.plan.asks;
    auto kept = std::remove_if(asks.begin(), asks.end(),
                               [&](const RestoreAsk& ask) { return ask.request == event.request; });
    std::erase_if(job.plan.rollbacks,
                  [&](const RestoreAsk& ask) { return ask.request == event.request; });
    if (kept == asks.end()) continue;
    asks.erase(kept, asks.end());
    if (asks.empty()) job.plan.wanted = {};
    job.changed = true;
  }
}

void State::AdvancePlan(Job& job) {
  if (!job.plan.open) return;
  AdvanceRollback(job);
  if (job.lineage().decision == Decision::kVersion) return AdvanceDecided(job);
  while (AdvanceCandidate(job)) {
  }
}

/// After the decision: ranks that ask late, or again from a new agent, get the same version.
void State::AdvanceDecided(Job& job) {
  RestorePlan& plan = job.plan;
  if (plan.asks.empty()) return;
  const VersionId restored = job.lineage().restored;
  auto found = job.versions.find(restored);
  if (found == job.versions.end() || found->second.phase != Phase::kCommitted) {
    return RefuseAsks(job, FailedPreconditionError(fmt::format(
                               "incarnation {} of job '{}' restored {}, which newer versions have "
                               "replaced; start it with another run id",
                               job.incarnation.value, job.name, ToString(restored))));
  }
  if (found->second.world != job.lineage().world) {
    RefuseAsks(job, OtherWorld(job, found->second), /*views_too=*/false);
  } else if (plan.candidate != restored) {
    SwitchTo(job, restored);
  }
  std::vector<RestoreAsk> waiting;
  for (const RestoreAsk& ask : std::exchange(plan.asks, {})) {
    if (ask.view) {
      if (!AnswerView(job, found->second, ask)) waiting.push_back(ask);
      continue;
    }
    bool stuck = RunLeg(job, ask.rank);
    const RestoreLeg& leg = plan.legs[ask.rank.value];
    if (leg.phase == RestoreLeg::Phase::kReady) {
      effects_.emplace_back(
          Reply{ask.request, {}, job.incarnation, restored, leg.source.tier, found->second.world});
    } else if (GateOpen(job) &&
               (stuck || !IsAvailable(job, found->second, ask.rank, kAnyTier | kDamagedToo))) {
      plan.legs[ask.rank.value].tried.clear();
      Answer(ask.request, FailedPreconditionError(MissingText(job, found->second)));
    } else {
      waiting.push_back(ask);
    }
  }
  plan.asks = std::move(waiting);
}

/// One step towards the decision. True: look again, something was ruled out.
bool State::AdvanceCandidate(Job& job) {
  RestorePlan& plan = job.plan;
  const bool asked = !plan.asks.empty();
  if (!asked && job.newest_seen.value != 0) {
    // It trains already without having asked: nothing to prefetch.
    if (plan.candidate.incarnation.value != 0) SwitchTo(job, {});
    return false;
  }
  const bool gate = GateOpen(job);
  const VersionId best = Choose(job);
  if (best != plan.candidate) {
    const bool named = plan.wanted.incarnation.value != 0 && best == plan.wanted;
    // To a newer version at once; to an older one only when the newer is certain not to come back.
    if (named || best > plan.candidate || gate) SwitchTo(job, best);
  }
  const bool may_refuse = asked && gate &&
                          (job.ranks_joined == job.lineage().world ||
                           at_.now - plan.asks.front().since >= options_.node_lease);
  auto found = job.versions.find(plan.candidate);
  if (found == job.versions.end()) {
    if (!may_refuse) return false;
    const bool named = plan.wanted.incarnation.value != 0;
    RefuseAsks(job, named ? WhyNotWanted(job, plan.wanted) : WhyNothing(job));
    return false;
  }
  const bool other_world = found->second.world != job.lineage().world;
  if (other_world && may_refuse) {
    RefuseAsks(job, OtherWorld(job, found->second), /*views_too=*/false);
  }
  const bool views_only = plan.views_only();
  // Who reads everybody's shards where they lie needs none of them prepared.
  for (uint32_t rank = 0; rank < plan.legs.size() && !views_only && !other_world; ++rank) {
    if (!RunLeg(job, Rank{rank})) continue;
    if (!gate) continue;  // a node that is still to come may bring what is missing
    plan.unusable[plan.candidate] =
        fmt::format("rank {} could not be prepared from any copy", rank);
    return true;
  }
  const bool as_wanted = plan.wanted.incarnation.value == 0 || plan.wanted == plan.candidate;
  const bool ready = views_only || (!other_world && plan.ready == plan.legs.size());
  if (!plan.asks.empty() && gate && as_wanted && ready) Decide(job);
  return false;
}

VersionId State::Choose(const Job& job) const {
  const RestorePlan& plan = job.plan;
  // Without a preparation that would show it, nothing is hoped of damaged copies.
  const auto restorable = plan.views_only() ? IsRestorable : MayBeRestorable;
  if (plan.wanted.incarnation.value != 0) {
    auto found = job.versions.find(plan.wanted);
    bool good = found != job.versions.end() && restorable(job, found->second) &&
                plan.unusable.count(plan.wanted) == 0;
    return good ? plan.wanted : VersionId{};
  }
  for (auto it = job.versions.rbegin(); it != job.versions.rend(); ++it) {
    if (restorable(job, it->second) && plan.unusable.count(it->first) == 0) return it->first;
  }
  return {};
}

void State::SwitchTo(Job& job, VersionId candidate) {
  RestorePlan& plan = job.plan;
  for (RestoreLeg& leg : plan.legs) ResetLeg(job, leg);
  plan.candidate = candidate;
  plan.ready = 0;
  plan.legs.assign(candidate.incarnation.value == 0 ? 0 : job.lineage().world, {});
}

void State::ResetLeg(Job& job, RestoreLeg& leg) {
  if (leg.phase == RestoreLeg::Phase::kReady) --job.plan.ready;
  leg.phase = RestoreLeg::Phase::kIdle;
  leg.request = 0;
}

/// The nearest source that was not tried too often: own memory, another node's, the group's, own
/// disk, another node's, the group's disks. One that failed once comes after all that did not.
std::optional<Copy> State::PickSource(const Job& job, const RestoreLeg& leg,
                                      const VersionState& version, Rank rank) {
  constexpr uint32_t kSources = 6;
  const NodeIndex target = job.rank_nodes[rank.value];
  std::optional<Copy> best;
  uint32_t best_cost = 0;
  auto consider = [&](const Copy& copy, uint32_t distance) {
    uint32_t attempts = 0;
    for (const RestoreLeg::Tried& tried : leg.tried) {
      if (tried.copy == copy) attempts = tried.attempts;
    }
    const uint32_t cost = attempts * kSources + distance;
    const uint32_t most = copy == kDecode ? kDecodeAttemptsMax : kAttemptsMax;
    if (attempts >= most || (best && cost >= best_cost)) return;
    best = copy;
    best_cost = cost;
  };
  for (const Copy& copy : version.ranks[rank.value].copies) {
    consider(copy, (copy.tier == Tier::kMemory ? 0 : 3) + (copy.node == target ? 0 : 1));
  }
  if ((!best || best_cost > 2) && CanDecode(job, version, rank, kAnyTier | kDamagedToo)) {
    consider(kDecode, CanDecode(job, version, rank, TierBit(Tier::kMemory)) ? 2 : 5);
  }
  return best;
}

/// Orders the rank's shard if it is time. True: every source was tried in vain.
bool State::RunLeg(Job& job, Rank rank) {
  RestoreLeg& leg = job.plan.legs[rank.value];
  const NodeIndex target = job.rank_nodes[rank.value];
  if (leg.phase != RestoreLeg::Phase::kIdle || at_.now < leg.retry_at) return false;
  if (target == kNoNode || !nodes_[target].attached) return false;
  const VersionState& version = job.versions.at(job.plan.candidate);
  if (!IsAvailable(job, version, rank, kAnyTier | kDamagedToo)) return false;
  std::optional<Copy> source = PickSource(job, leg, version, rank);
  if (!source) return true;
  leg.phase = RestoreLeg::Phase::kPreparing;
  leg.request = ++next_prepare_;
  leg.target = target;
  leg.source = *source;
  ordered_[leg.request] = {job.name, job.plan.candidate, rank, *source, target};
  PrepareOrder order;
  order.request = leg.request;
  order.job = job.name;
  order.version = job.plan.candidate;
  order.rank = rank;
  order.world = job.lineage().world;
  order.tier = source->tier;
  if (source->tier == Tier::kPeer) {
    const PeerSeats& seats = job.seats.at(version.id.incarnation);
    const uint32_t group = seats.seats[seats.by_rank[rank.value]].group;
    order.group = GroupOf(job, version.id.incarnation, group, &version);
  } else {
    order.source_node = nodes_[source->node].name;
    order.source_address = nodes_[source->node].data_address;
  }
  order.digest = version.ranks[rank.value].digest;
  Say(target, std::move(order));
  return false;
}

void State::OnPrepared(NodeIndex node, const Prepared& prepared) {
  auto found = ordered_.find(prepared.request);
  if (found == ordered_.end() || found->second.target != node) return;
  const Ordered order = std::move(found->second);
  ordered_.erase(found);
  Job& job = jobs_.at(order.job);
  job.changed = true;
  const ErrorCode code = prepared.outcome.code();
  if (!prepared.outcome.ok()) OnSourceFailed(job, order, prepared.outcome);
  if (order.repair) return OnRepaired(job, order, prepared);
  if (order.rank.value >= job.plan.legs.size()) return;
  RestoreLeg& leg = job.plan.legs[order.rank.value];
  if (leg.request != prepared.request) return;
  leg.request = 0;
  if (prepared.outcome.ok()) {
    leg.phase = RestoreLeg::Phase::kReady;
    ++job.plan.ready;
    return;
  }
  leg.phase = RestoreLeg::Phase::kIdle;
  const bool decoded = leg.source == kDecode;
  if (IsLost(code) && !decoded) return;  // the copy is gone
  auto tried = std::find_if(leg.tried.begin(), leg.tried.end(),
                            [&](const RestoreLeg::Tried& t) { return t.copy == leg.source; });
  if (tried == leg.tried.end()) tried = leg.tried.insert(leg.tried.end(), {leg.source, 0});
  const bool in_vain = decoded && code == ErrorCode::kDataLoss;
  tried->attempts += in_vain ? kDecodeInVain : 1;
  leg.retry_at = at_.now + (in_vain ? Clock::Duration::zero() : kRetryPause);
}

/// A copy that is damaged or not there does not count any more, whoever asked for it. What a group
/// could not decode says nothing of any one copy: whoever has a bad one reports that it is gone.
void State::OnSourceFailed(Job& job, const Ordered& order, const Status& why) {
  const std::string shard = ToString(ShardKey{job.name, order.version, order.rank});
  if (order.repair && !IsLost(why.code())) return;  // it is tried again
  if (order.source == kDecode) {
    return Find(
        job.name, order.target,
        Status(why.code(), fmt::format("{} decoded from its group: {}", shard, why.message())));
  }
  const std::string text =
      fmt::format("{} at {} on node {}: {}", shard, ToString(order.source.tier),
                  nodes_[order.source.node].name, why.message());
  auto found = job.versions.find(order.version);
  const bool lost = found != job.versions.end() && IsLost(why.code());
  // Its node said so before.
  if (lost && found->second.Damaged(order.rank, order.source) != nullptr) return;
  Find(job.name, order.target, Status(why.code(), text));
  if (!lost) return;
  VersionState& version = found->second;
  const bool there = version.RemoveCopy(order.rank, order.source);
  if (why.code() == ErrorCode::kNotFound) return;
  version.damaged.push_back({order.rank, order.source, /*readable=*/there});
  version.damage_texts.push_back(text);
}

/// `node` is gone, or attached again; with `keep_ready` it is the same agent, which still has in
/// memory what it prepared.
void State::LegsOfLostNode(Job& job, NodeIndex node, bool keep_ready) {
  for (RestoreLeg& leg : job.plan.legs) {
    const bool ready = leg.phase == RestoreLeg::Phase::kReady;
    if (leg.target == node && !(ready && keep_ready)) ResetLeg(job, leg);
    if (leg.source.node == node && !ready && !keep_ready) ResetLeg(job, leg);
    // What can be decoded depends on who is there.
    std::erase_if(leg.tried, [](const RestoreLeg::Tried& tried) { return tried.copy == kDecode; });
    leg.retry_at = std::min(leg.retry_at, at_.now);
  }
  job.plan.unusable.clear();
}

void State::Decide(Job& job) {
  LineageRecord& lineage = job.lineage();
  lineage.decision = Decision::kVersion;
  lineage.restored = job.plan.candidate;
  effects_.emplace_back(PutLineage{lineage, LineageChange::kDecided});
  const VersionState& version = job.versions.at(lineage.restored);
  if (!version.disputes.empty()) FindDisputed(job, version);
  for (const RestoreAsk& ask : std::exchange(job.plan.asks, {})) {
    const Tier tier = ask.view ? TierOfView(version) : job.plan.legs[ask.rank.value].source.tier;
    effects_.emplace_back(
        Reply{ask.request, {}, job.incarnation, lineage.restored, tier, version.world});
  }
  job.plan.wanted = {};
  job.word_changed = true;
  job.retention_due = true;
}

void State::DecideFresh(Job& job) {
  LineageRecord& lineage = job.lineage();
  lineage.decision = Decision::kFresh;
  effects_.emplace_back(PutLineage{lineage, LineageChange::kDecided});
  job.plan.open = false;
}

void State::RefuseAsks(Job& job, const Status& why, bool views_too) {
  std::vector<RestoreAsk> left;
  for (const RestoreAsk& ask : std::exchange(job.plan.asks, {})) {
    if (views_too || !ask.view) {
      Answer(ask.request, why);
    } else {
      left.push_back(ask);
    }
  }
  job.plan.asks = std::move(left);
  if (job.plan.asks.empty()) job.plan.wanted = {};
}

std::string State::AbsentNodes(const Job& job) const {
  std::set<NodeIndex> nodes = job.nodes_now;
  nodes.insert(job.nodes_before.begin(), job.nodes_before.end());
  std::string text;
  size_t count = 0;
  for (NodeIndex node : nodes) {
    if (nodes_[node].attached || ++count > kNamedMax) continue;
    text += (text.empty() ? "" : ", ") + nodes_[node].name;
  }
  if (count > kNamedMax) text += fmt::format(" and {} more", count - kNamedMax);
  return text;
}

std::string State::MissingText(const Job& job, const VersionState& version) const {
  std::string text;
  size_t count = 0;
  for (uint32_t rank = 0; rank < version.world; ++rank) {
    const RankShard& shard = version.ranks[rank];
    if (IsAvailable(job, version, Rank{rank}) || ++count > kNamedMax) continue;
    text += fmt::format("{}rank {}", text.empty() ? "" : ", ", rank);
    if (shard.last_node != kNoNode)
      text += fmt::format(" (last on {})", nodes_[shard.last_node].name);
  }
  if (count > kNamedMax) text += fmt::format(" and {} more", count - kNamedMax);
  text = count == 0 ? fmt::format("version {} could not be prepared", ToString(version.id))
                    : fmt::format("version {} has no copy of {}", ToString(version.id), text);
  text += LostGroupsText(job, version);
  for (const std::string& damage : version.damage_texts) text += "; damaged: " + damage;
  std::string absent = AbsentNodes(job);
  if (!absent.empty()) text += "; not attached: " + absent;
  return text;
}

/// Groups of a version that cannot decode a rank without any copy, and what they miss.
std::string State::LostGroupsText(const Job& job, const VersionState& version) const {
  const PeerSeats* seats = job.seats_of(version.id.incarnation);
  if (seats == nullptr || !MayDecode(version) || IsWhole(job, version)) return "";
  std::string text;
  size_t named = 0;
  for (uint32_t group = 0; group < seats->firsts.size(); ++group) {
    const PlannedGroup& planned = job.lineages.at(version.id.incarnation).peers[group];
    const uint32_t first = seats->firsts[group];
    const auto end = first + static_cast<uint32_t>(planned.members.size());
    std::string missing;
    uint32_t members = 0;
    bool needed = false;
    for (uint32_t number = first; number < end; ++number) {
      const std::string lacks = LackedText(job, version, number);
      if (lacks.empty()) continue;
      ++members;
      missing += fmt::format("{} {} ({})", missing.empty() ? "" : ",",
                             nodes_[seats->seats[number].node].name, lacks);
      for (const PeerRank& rank : planned.members[number - first].ranks) {
        needed = needed || version.ranks[rank.rank.value].copies.empty();
      }
    }
    const uint32_t erasures = Erasures(job, version, group, kAnyTier);
    if (!needed || erasures <= planned.parity || ++named > kNamedMax) continue;
    text +=
        fmt::format("; parity group {} of {} nodes can decode without {} of them, it misses {}:{}",
                    group, planned.members.size(), planned.parity, members, missing);
  }
  return text;
}

/// The shards that a member of a group should have and has not.
std::string State::LackedText(const Job& job, const VersionState& version, uint32_t number) const {
  std::string text;
  const NodeIndex node = job.seats.at(version.id.incarnation).seats[number].node;
  const auto name = [&](Rank rank, const RankShard& shard) {
    const bool held = std::any_of(shard.copies.begin(), shard.copies.end(),
                                  [&](const Copy& copy) { return copy.node == node; });
    if (!held) text += (text.empty() ? "" : ", ") + ShardName(rank);
  };
  for (const PeerRank& rank : MemberAt(job, version.id.incarnation, number).ranks) {
    name(rank.rank, version.ranks[rank.rank.value]);
  }
  name(ParityRank(number), version.parity[number]);
  return text;
}

Status State::WhyNothing(const Job& job) const {
  for (auto it = job.versions.rbegin(); it != job.versions.rend(); ++it) {
    if (!it->second.committed() || IsAbandoned(job, it->first)) continue;
    std::string text = MissingText(job, it->second);
    auto unusable = job.plan.unusable.find(it->first);
    if (unusable != job.plan.unusable.end()) text += "; " + unusable->second;
    return FailedPreconditionError(fmt::format(
        "job '{}' has committed versions but none can be restored now: {}. Bring the missing nodes "
        "back, or start under another job name",
        job.name, text));
  }
  return FailedPreconditionError(
      fmt::format("job '{}': every committed version was abandoned or is being removed", job.name));
}

Status State::WhyNotWanted(const Job& job, VersionId wanted) const {
  auto found = job.versions.find(wanted);
  if (found == job.versions.end() || !found->second.committed()) {
    return NotFoundError(
        fmt::format("job '{}' has no committed version {}", job.name, ToString(wanted)));
  }
  if (IsAbandoned(job, wanted)) {
    return FailedPreconditionError(
        fmt::format("version {} of job '{}' was abandoned: a later incarnation restarted before it",
                    ToString(wanted), job.name));
  }
  return FailedPreconditionError(
      fmt::format("job '{}': {}", job.name, MissingText(job, found->second)));
}

}  // namespace holdfast::coord
