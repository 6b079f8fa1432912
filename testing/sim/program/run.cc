#include "testing/sim/program/run.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

namespace holdfast::sim::program {
namespace {

using detect::Action;
using detect::Verdict;

constexpr double kTickS = 1;
constexpr int kTicksAfter = 3;  // after all faults are found, to catch false verdicts

/// Returns a key that is equal for verdicts of the same class and blame that both restart or not.
std::vector<uint32_t> KeyOf(const Verdict& verdict) {
  std::vector<uint32_t> key = {static_cast<uint32_t>(verdict.fault),
                               verdict.action >= Action::kRestartWithoutRoot ? 1U : 0U};
  if (verdict.edge) {
    key.insert(key.end(), {~0U, verdict.edge->from.value, verdict.edge->to.value});
  }
  for (const Rank rank : verdict.ranks) key.push_back(rank.value);
  return key;
}

/// The ground truth of one fault of a run.
class Truth {
 public:
  Truth(const Job& job, const Fault& fault) : job_(job), fault_(fault) {
    ranks_ = {fault.rank};
    if (fault.kind == FaultKind::kNodeLost) {
      ranks_.clear();
      for (uint32_t rank = 0; rank < job.world; ++rank) {
        if (job.node_of(rank) == job.node_of(fault.rank)) ranks_.insert(rank);
      }
    }
  }

  const Fault& fault() const { return fault_; }
  double onset_s(const Engine& engine) const {
    return engine.fault().kind == fault_.kind && engine.fault().rank == fault_.rank
               ? engine.effect_s()
               : fault_.onset_s;
  }

  /// How a verdict fits this fault.
  struct Judgement {
    bool found = false;  // the right class, and nothing else named
    bool right = false;  // everything it names is at fault, for any class
  };
  Judgement Judge(const Verdict& verdict) {
    std::set<uint32_t> named;
    Judgement judgement{.found = false, .right = Right(verdict, named)};
    if (RightClass(verdict) && !Names(verdict) && Pair()) named.insert(fault_.rank);
    judgement.found = RightClass(verdict) && (judgement.right || !Names(verdict));
    if (judgement.found) found_.insert(named.begin(), named.end());
    return judgement;
  }
  bool exact() const { return found_.size() >= ranks_.size(); }

  bool RightClass(const Verdict& verdict) const {
    const auto right = RightClasses(fault_.kind);
    return std::find(right.begin(), right.end(), verdict.fault) != right.end();
  }

  static bool Names(const Verdict& verdict) { return verdict.edge || !verdict.ranks.empty(); }

  /// Whether everything the verdict blames is at fault. Adds the faulty ranks it names to `found`.
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
      // Naming one end of a faulty link is right but not exact.
      if (!IsLink()) found.insert(rank.value);
    }
    return true;
  }

  /// Whether only two ranks call different operations. Neither of them is then the odd one.
  bool Pair() const {
    return fault_.kind == FaultKind::kMismatched &&
           std::any_of(job_.channels.begin(), job_.channels.end(), [&](const Channel& channel) {
             return !channel.pair && channel.members.size() == 2 &&
                    std::find(channel.members.begin(), channel.members.end(), fault_.rank) !=
                        channel.members.end();
           });
  }

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
  std::set<uint32_t> found_;
};

/// Whether any verdict is on a fault of this sort: hangs, or slowness.
bool AnyLike(const std::vector<Verdict>& verdicts, bool hang) {
  return std::any_of(verdicts.begin(), verdicts.end(), [&](const Verdict& verdict) {
    const bool slow = verdict.fault == detect::FaultClass::kComputeSlow ||
                      verdict.fault == detect::FaultClass::kCommSlow;
    return verdict.fault != detect::FaultClass::kFabric && slow != hang;
  });
}

/// Whether the detector has a suspicion of this sort. False for detectors without suspicions.
template <typename Detector>
bool Suspects(const Detector& detector, bool hang) {
  if constexpr (requires { detector.suspicions(); }) {
    return AnyLike(detector.suspicions(), hang);
  } else {
    return false;
  }
}

double OnsetOf(const Setting& setting, Noise& noise) {
  double paused_s = 0;
  for (const Pause& pause : setting.pauses) {
    if (pause.first_step == 0) paused_s += pause.seconds;
  }
  return paused_s + std::max(noise.Uniform(60, 150), noise.Uniform(5, 8) * setting.step_s);
}

/// Adds the pauses in which the fault takes effect.
void AddPausesFor(const FaultSpec& fault, Setting& setting, Noise& noise) {
  const bool storage =
      fault.kind == FaultKind::kStorageMarked || fault.kind == FaultKind::kStorageUnmarked;
  const bool evaluation =
      fault.when == When::kEvaluation || fault.when == When::kUnmarkedEvaluation;
  if (!storage && !evaluation) return;
  Pause pause;
  if (storage) {
    std::erase_if(setting.pauses,
                  [](const Pause& other) { return other.phase == detect::Phase::kCheckpoint; });
    pause.phase = detect::Phase::kCheckpoint;
    pause.marked = fault.kind == FaultKind::kStorageMarked;
    pause.states = "DS";
    pause.seconds = noise.Uniform(0.5, 4);
  } else {
    pause.marked = fault.when == When::kEvaluation;
    pause.states = "RS";
  }
  pause.first_step = pause.every_steps =
      std::max(2U, static_cast<uint32_t>((storage ? 40 : 90) / setting.step_s));
  setting.pauses.push_back(pause);
}

/// Returns a moment in the first evaluation of a rank, from a run of the healthy job.
double InEvaluation(const RunSetup& setup, uint32_t rank) {
  Engine engine(setup.job, setup.setting, {}, setup.seed);
  const auto evaluation = static_cast<uint8_t>(detect::Phase::kEvaluation);
  for (double at_s = 10; at_s < 5000; at_s += 10) {
    engine.RunUntil(at_s);
    const PhaseMark& paused = engine.rank(rank).paused;
    if (paused.bit == evaluation) return paused.from_s + 0.4 * (paused.to_s - paused.from_s);
  }
  return kNever;
}

/// Returns how long a run continues after the fault, in seconds.
double LimitOf(const Case& what, const Setting& setting) {
  if (what.fault.kind == FaultKind::kNone) {
    if (what.healthy_s > 0) return what.healthy_s;
    return setting.step_s < 0.1 ? 300 : setting.step_s > 10 ? 9000 : 1800;
  }
  if (IsHang(what.fault.kind) && what.fault.second == FaultKind::kNone) {
    const bool local = what.family == Family::kLocalSgd;
    return 180 + (local ? 110 : 3) * setting.step_s;
  }
  return std::max(900.0, 100 * setting.step_s);
}

}  // namespace

Clock::TimePoint DetectorTime(double true_s) {
  return Clock::TimePoint(std::chrono::nanoseconds(static_cast<int64_t>((true_s + 5000) * 1e9)));
}

RunSetup MakeRunSetup(const Case& what, Noise& noise) {
  RunSetup setup;
  std::vector<std::string> behaviours = what.behaviours;
  if (what.fault.when == When::kRestarted) behaviours.emplace_back("elastic restart");
  setup.setting = DrawSetting(what.family, what.world, behaviours, noise);
  AddPausesFor(what.fault, setup.setting, noise);
  setup.job = MakeJob(what.family, what.world, setup.setting.job);
  setup.seed = noise.random().Next();
  const FaultSpec& spec = what.fault;
  if (spec.kind == FaultKind::kNone) return setup;
  double onset_s = OnsetOf(setup.setting, noise);
  if (spec.when == When::kFirst) onset_s = 0;
  if (spec.when == When::kRestarted) onset_s = std::max(15.0, noise.Uniform(1, 3) * 15);
  Fault first = PlaceFault(spec.kind, spec.magnitude, setup.job, onset_s, noise);
  if (spec.when == When::kEvaluation || spec.when == When::kUnmarkedEvaluation) {
    first.onset_s = InEvaluation(setup, first.rank);
  }
  if (spec.heals_after_s < 1e17) first.heals_s = first.onset_s + spec.heals_after_s;
  setup.faults.push_back(first);
  if (spec.second == FaultKind::kNone) return setup;
  Fault second = first;
  for (int attempt = 0; attempt < 100 && second.rank == first.rank; ++attempt) {
    second = PlaceFault(spec.second, spec.second_magnitude, setup.job,
                        first.onset_s + spec.second_after_s, noise);
  }
  setup.faults.push_back(second);
  return setup;
}

Outcome RunCase(const Case& what, uint64_t seed) {
  Noise noise(Random(seed).Next());  // makes neighbouring seeds independent
  const RunSetup setup = MakeRunSetup(what, noise);
  Engine engine(setup.job, setup.setting, setup.faults, setup.seed);
  Agents agents(engine, what.rule, noise.random().Next());
  detect::Detector detector(Agents::kIncarnation, what.world);
  std::vector<Truth> truths;
  for (const Fault& fault : setup.faults) truths.emplace_back(setup.job, fault);
  const double limit_s = LimitOf(what, setup.setting);
  const bool healthy = truths.empty();
  Outcome outcome;
  std::set<std::vector<uint32_t>> seen;
  std::vector<bool> found(truths.size());
  int ticks_left = kTicksAfter;
  double at_s = 0;
  for (bool done = false; !done;) {
    at_s += kTickS;
    engine.RunUntil(at_s);
    agents.SampleUntil(at_s);
    while (auto delivery = agents.Next(at_s)) {
      detector.Observe(*delivery->digest, DetectorTime(delivery->at_s));
    }
    const std::vector<Verdict> verdicts = detector.Evaluate(DetectorTime(at_s));
    const bool hang = IsHang(what.fault.kind);
    const bool suspicious = AnyLike(verdicts, hang) || Suspects(detector, hang);
    if (!healthy && outcome.suspicion_s < 0 && at_s >= engine.effect_s() && suspicious) {
      outcome.suspicion_s = at_s - engine.effect_s();
    }
    for (const Verdict& verdict : verdicts) {
      // A suspicion is not a verdict.
      if (verdict.action == Action::kNone) continue;
      bool right = false;
      bool any_found = false;
      for (size_t i = 0; i < truths.size(); ++i) {
        const double effect_s = truths[i].onset_s(engine);
        if (at_s < effect_s) continue;
        const Truth::Judgement judgement = truths[i].Judge(verdict);
        right |= judgement.right;
        any_found |= judgement.found;
        if (!judgement.found || found[i]) continue;
        found[i] = true;
        outcome.latency_s = std::max(outcome.latency_s, at_s - effect_s);
      }
      const bool names = Truth::Names(verdict);
      const bool restarts = verdict.action >= Action::kRestartWithoutRoot;
      const bool wrong = !right && !any_found && (names || restarts);
      const bool unnamed = healthy && !names && !restarts;
      if (!seen.insert(KeyOf(verdict)).second) continue;
      outcome.reported.push_back({at_s, wrong, verdict});
      if (wrong || unnamed) outcome.wrong.push_back({verdict.fault, names, restarts});
    }
    engine.WantTransfers(detector.wanted_transfers());
    outcome.found = !healthy && std::count(found.begin(), found.end(), false) == 0;
    outcome.exact = outcome.found && std::all_of(truths.begin(), truths.end(),
                                                 [](const Truth& truth) { return truth.exact(); });
    if (outcome.exact && ticks_left-- == 0) done = true;
    const double from_s = healthy ? 0 : std::min(engine.effect_s(), engine.fault().onset_s + 600);
    if (at_s >= from_s + limit_s) done = true;
  }
  outcome.job_s = at_s;
  outcome.latency_steps = outcome.latency_s / setup.setting.step_s;
  outcome.onset_s = engine.effect_s();
  outcome.reports_edges = setup.setting.reports_edges;
  outcome.took_effect = healthy || engine.effect_s() < at_s;
  for (const Fault& fault : setup.faults) {
    outcome.truth += fmt::format("{}rank {} (peer {})", outcome.truth.empty() ? "" : " and ",
                                 fault.rank, fault.peer);
  }
  return outcome;
}

}  // namespace holdfast::sim::program
