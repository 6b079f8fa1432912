#include "tests/sim/program/run.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

namespace holdfast::sim::program {
namespace {

using detect::Action;
using detect::Verdict;

constexpr double kTickS = 1;
constexpr int kTicksAfter = 3;  // once all is found, for what is said wrongly then

/// What makes two verdicts the same: class, blame, and whether they restart.
std::vector<uint32_t> KeyOf(const Verdict& verdict) {
  std::vector<uint32_t> key = {static_cast<uint32_t>(verdict.fault),
                               verdict.action >= Action::kRestartWithoutRoot ? 1U : 0U};
  if (verdict.edge) {
    key.insert(key.end(), {~0U, verdict.edge->from.value, verdict.edge->to.value});
  }
  for (const Rank rank : verdict.ranks) key.push_back(rank.value);
  return key;
}

/// What is true of a run.
class Truth {
 public:
  Truth(const Job& job, const Fault& fault) : job_(job), fault_(fault) {
    ranks_ = {fault.rank};
    if (fault.kind == FaultKind::kNodeGone) {
      ranks_.clear();
      for (uint32_t rank = 0; rank < job.world; ++rank) {
        if (job.node_of(rank) == job.node_of(fault.rank)) ranks_.insert(rank);
      }
    }
  }

  bool RightClass(const Verdict& verdict) const {
    const auto right = RightClasses(fault_.kind);
    return std::find(right.begin(), right.end(), verdict.fault) != right.end();
  }

  static bool Names(const Verdict& verdict) { return verdict.edge || !verdict.ranks.empty(); }

  /// Whether all that it blames is at fault; the ranks that it rightly names go to `found`.
  bool Right(const Verdict& verdict, std::set<uint32_t>& found) const {
    if (!Names(verdict)) return false;
    if (verdict.edge) {
      if (!RightEdge(verdict.edge->from.value, verdict.edge->to.value)) return false;
      found.insert(ranks_.begin(), ranks_.end());
      return true;
    }
    for (const Rank rank : verdict.ranks) {
      const bool end = IsLink() && rank.value == fault_.peer;
      if (ranks_.count(rank.value) == 0 && !end) return false;
      // Of a link, an end is not the whole truth.
      if (!IsLink()) found.insert(rank.value);
    }
    return true;
  }

  /// Two ranks that call different operations: neither is the odd one.
  bool Pair() const {
    return fault_.kind == FaultKind::kMismatched &&
           std::any_of(job_.channels.begin(), job_.channels.end(), [&](const Channel& channel) {
             return !channel.pair && channel.members.size() == 2 &&
                    std::find(channel.members.begin(), channel.members.end(), fault_.rank) !=
                        channel.members.end();
           });
  }
  size_t size() const { return ranks_.size(); }

 private:
  bool IsLink() const {
    return fault_.kind == FaultKind::kDroppedLink || fault_.kind == FaultKind::kLossyLink ||
           fault_.kind == FaultKind::kHungCollective;
  }

  bool RightEdge(uint32_t from, uint32_t to) const {
    const auto between_nodes = [&](uint32_t a, uint32_t b) {
      return job_.node_of(a) == job_.node_of(fault_.rank) &&
             job_.node_of(b) == job_.node_of(fault_.peer);
    };
    switch (fault_.kind) {
      case FaultKind::kDroppedLink:
        return between_nodes(from, to) || between_nodes(to, from);
      case FaultKind::kHungCollective:
        return (from == fault_.rank && to == fault_.peer) ||
               (to == fault_.rank && from == fault_.peer);
      case FaultKind::kLossyLink:
        return from == fault_.rank && to == fault_.peer;
      case FaultKind::kSlowNic:
      case FaultKind::kPcie:
        return from == fault_.rank || to == fault_.rank;
      default:
        return false;
    }
  }

  const Job& job_;
  const Fault fault_;
  std::set<uint32_t> ranks_;
};

double OnsetOf(const Setting& setting, Noise& noise) {
  double paused_s = 0;
  for (const Pause& pause : setting.pauses) {
    if (pause.first_step == 0) paused_s += pause.seconds;
  }
  return paused_s + std::max(noise.Uniform(60, 150), noise.Uniform(5, 8) * setting.step_s);
}

/// How long a fault is looked for.
double LimitOf(const Case& what, const Setting& setting) {
  if (what.fault.kind == FaultKind::kNone) {
    if (what.healthy_s > 0) return what.healthy_s;
    return setting.step_s < 0.1 ? 300 : setting.step_s > 10 ? 9000 : 1800;
  }
  if (IsHang(what.fault.kind)) {
    const bool local = what.family == Family::kLocalSgd;
    return 180 + (local ? 110 : 3) * setting.step_s;
  }
  return std::max(900.0, 100 * setting.step_s);
}

}  // namespace

Clock::TimePoint ListenerTime(double true_s) {
  return Clock::TimePoint(std::chrono::nanoseconds(static_cast<int64_t>((true_s + 5000) * 1e9)));
}

World MakeWorld(const Case& what, Noise& noise) {
  World world;
  world.setting = DrawSetting(what.family, what.world, what.behaviours, noise);
  const FaultKind kind = what.fault.kind;
  if (kind == FaultKind::kStorageMarked || kind == FaultKind::kStorageUnmarked) {
    std::erase_if(world.setting.pauses,
                  [](const Pause& pause) { return pause.phase == detect::Phase::kCheckpoint; });
    Pause pause{.phase = detect::Phase::kCheckpoint, .marked = kind == FaultKind::kStorageMarked};
    pause.seconds = noise.Uniform(0.5, 4);
    pause.first_step = pause.every_steps =
        std::max(2U, static_cast<uint32_t>(40 / world.setting.step_s));
    world.setting.pauses.push_back(pause);
  }
  world.job = MakeJob(what.family, what.world, world.setting.job);
  const double onset_s = kind == FaultKind::kNone ? kNever : OnsetOf(world.setting, noise);
  world.fault = PlaceFault(what.fault, world.job, onset_s, noise);
  return world;
}

Outcome RunCase(const Case& what, uint64_t seed) {
  Noise noise(Random(seed).Next());  // neighbouring seeds have nothing in common
  const World world = MakeWorld(what, noise);
  Engine engine(world.job, world.setting, world.fault, noise.random().Next());
  Agents agents(engine, what.rule, noise.random().Next());
  detect::Detector detector(Agents::kIncarnation, what.world);
  const Truth truth(world.job, world.fault);
  const double limit_s = LimitOf(what, world.setting);
  Outcome outcome;
  std::set<std::vector<uint32_t>> seen;
  std::set<uint32_t> found;
  int ticks_left = kTicksAfter;
  const bool healthy = what.fault.kind == FaultKind::kNone;
  double at_s = 0;
  for (bool done = false; !done;) {
    at_s += kTickS;
    engine.RunUntil(at_s);
    agents.LookUntil(at_s);
    while (auto delivery = agents.Next(at_s)) {
      detector.Observe(*delivery->digest, ListenerTime(delivery->at_s));
    }
    const double struck_s = engine.struck_s();
    for (const Verdict& verdict : detector.Evaluate(ListenerTime(at_s))) {
      // What triggers nothing is no verdict.
      if (verdict.action == Action::kNone) continue;
      const bool new_one = seen.insert(KeyOf(verdict)).second;
      std::set<uint32_t> named;
      const bool after = !healthy && at_s >= struck_s;
      bool right = after && truth.Right(verdict, named);
      const bool right_class = after && truth.RightClass(verdict);
      if (right_class && !Truth::Names(verdict) && truth.Pair()) {
        right = true;
        named.insert(world.fault.rank);
      }
      const bool names = Truth::Names(verdict);
      const bool restarts = verdict.action >= Action::kRestartWithoutRoot;
      const bool wrong = !right && (names || (restarts && !right_class));
      if (new_one) outcome.said.push_back({at_s, wrong, verdict});
      const bool unnamed = healthy && !names && !restarts;
      if (new_one && (wrong || unnamed)) {
        outcome.wrong.push_back({verdict.fault, names, restarts});
      }
      if (!right_class || (names && !right)) continue;
      if (!outcome.found) {
        outcome.found = true;
        outcome.latency_s = at_s - struck_s;
        outcome.latency_steps = outcome.latency_s / world.setting.step_s;
      }
      found.insert(named.begin(), named.end());
      outcome.exact = found.size() >= truth.size();
    }
    engine.WantPeerSums(detector.wanted_peer_sums());
    if (outcome.exact && ticks_left-- == 0) done = true;
    const double from_s = healthy ? 0 : std::min(struck_s, world.fault.onset_s + 600);
    if (at_s >= from_s + limit_s) done = true;
  }
  outcome.job_s = at_s;
  outcome.onset_s = engine.struck_s();
  outcome.took_effect = healthy || engine.struck_s() < at_s;
  outcome.truth = fmt::format(
      "rank {} peer {} channel of {}", world.fault.rank, world.fault.peer,
      world.job.channels.empty() ? 0 : world.job.channels[world.fault.channel].members.size());
  return outcome;
}

}  // namespace holdfast::sim::program
