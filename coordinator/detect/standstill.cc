#include "coordinator/detect/standstill.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "coordinator/detect/evidence.h"

namespace holdfast::detect {
namespace {

constexpr Clock::Duration kReportMaxAge = std::chrono::seconds(3);
/// How much later than the stall begins a report may still show the rank running.
constexpr uint64_t kReportLag = 3'000'000'000;
/// Steps of a rank that show how long its steps take. In its first steps, a CPU may only enqueue
/// work.
constexpr uint32_t kStepsKnown = 4;
constexpr uint32_t kStepsAhead = 3;   // steps of others from which a rank without steps is judged
constexpr uint64_t kStepsMissed = 2;  // that half of the ranks have made and a stalled one has not
constexpr double kStandstillSteps = 1.5;
constexpr double kStandstillPauses = 1.25;

uint64_t Nanos(Clock::Duration duration) {
  return static_cast<uint64_t>(std::max<int64_t>(0, duration.count()));
}

class StandstillFinder {
 public:
  StandstillFinder(const Table& table, Clock::TimePoint now, const DetectorOptions& options,
                   bool communicates)
      : table_(table), now_(now), options_(options), communicates_(communicates) {}

  Hangs Run() {
    ClassifyRanks();
    Hangs hangs;
    if (reported_ == 0) return hangs;
    for (const uint32_t rank : stopped_) hangs.found.push_back(StoppedVerdict(rank));
    if (!stopped_.empty()) return hangs;
    for (const auto& [node, ranks] : silent_) JudgeSilentNode(node, ranks, hangs);
    if (!hangs.found.empty() || stalled_.empty()) return hangs;
    if (progressing_ * 2 >= reported_) {
      for (const uint32_t rank : stalled_) JudgeStalledRank(rank, hangs);
    } else if (stalled_.size() == reported_ && silent_.empty() && !communicates_) {
      JudgeStalledJob(hangs);
    }
    return hangs;
  }

 private:
  /// Sorts the ranks into stopped, silent, stalled, excused and progressing ones.
  void ClassifyRanks() {
    for (uint32_t rank = 0; rank < table_.world(); ++rank) {
      const RankInfo& info = table_.rank(rank);
      if (info.node == kNone || info.latest.ended_orderly || !info.latest.alive) continue;
      newest_step_ = std::max(newest_step_, info.latest.step);
    }
    std::vector<uint64_t> steps;
    for (uint32_t rank = 0; rank < table_.world(); ++rank) {
      const RankInfo& info = table_.rank(rank);
      if (info.node == kNone || info.latest.ended_orderly || !info.latest.alive) continue;
      if (now_ - table_.node(info.node).as_of > kReportMaxAge) {
        silent_[info.node].push_back(rank);
        continue;
      }
      ++reported_;
      steps.push_back(info.latest.step);
      if (IsStopped(info)) {
        stopped_.push_back(rank);
      } else if (table_.IsFirstPhaseOver(info)) {
        stalled_.push_back(rank);
      } else if (!table_.IsExcused(info) && IsComparable(rank)) {
        if (StalledFor(rank) >= ToSuspect(rank)) {
          stalled_.push_back(rank);
        } else {
          ++progressing_;
        }
      }
    }
    if (steps.empty()) return;
    const auto middle = steps.begin() + static_cast<std::ptrdiff_t>(steps.size() / 2);
    std::nth_element(steps.begin(), middle, steps.end());
    usual_step_ = *middle;
  }

  bool IsStopped(const RankInfo& info) const {
    return info.stopped_since != Clock::TimePoint::min() &&
           table_.node(info.node).as_of - info.stopped_since >= options_.hang_after;
  }

  /// Whether the rank's usual step is known, or the rank has made no step while others made
  /// several. In a job that communicates, a rank without steps may have other work.
  bool IsComparable(uint32_t rank) const {
    const RankInfo& info = table_.rank(rank);
    return info.steps_ns.size() >= kStepsKnown ||
           (!communicates_ && info.latest.step == 0 && newest_step_ >= kStepsAhead);
  }

  /// Returns for how long the rank has made no step and neither entered nor left a phase, in ns.
  uint64_t StalledFor(uint32_t rank) const {
    const RankInfo& info = table_.rank(rank);
    const Clock::TimePoint since =
        info.moved_at == Clock::TimePoint::min() ? table_.first_report() : info.moved_at;
    return Nanos(table_.node(info.node).as_of - since);
  }

  uint64_t LongestStep(uint32_t rank) const {
    const auto& steps = table_.rank(rank).steps_ns.values();
    return steps.empty() ? 0
                         : static_cast<uint64_t>(std::max(0.0F, *std::ranges::max_element(steps)));
  }

  uint64_t ToSuspect(uint32_t rank) const {
    return std::max(Nanos(options_.hang_after), 2 * LongestStep(rank));
  }

  /// Returns how long the others needed for their first step, if the rank has made none; else 0.
  uint64_t ToBegin(uint32_t rank) const {
    const auto others = table_.time_to_begin();
    return others && !table_.rank(rank).has_begun() ? Nanos(*others) : 0;
  }

  /// `least`: the patience with a rank whose steps are short.
  uint64_t ToBlame(uint32_t rank, Clock::Duration least) const {
    const auto& steps = table_.rank(rank).steps_ns;
    const auto usual = steps.size() == 0 ? 0 : static_cast<uint64_t>(steps.Median());
    const double shown =
        std::max({kStandstillSteps * static_cast<double>(LongestStep(rank)),
                  kStandstillPauses * static_cast<double>(table_.longest_pause_ns()),
                  kStandstillSteps * static_cast<double>(ToBegin(rank))});
    return std::max(Nanos(least) + usual, static_cast<uint64_t>(shown));
  }

  Verdict VerdictOn(std::vector<uint32_t> ranks, uint64_t lasting_ns) const {
    Verdict verdict{.fault = FaultClass::kComputeHang,
                    .ranks = {},
                    .edge = {},
                    .nodes = {},
                    .confidence = 0.7,
                    .action = Action::kAlert,
                    .evidence = {},
                    .lasting_ns = lasting_ns};
    for (const uint32_t rank : ranks) {
      verdict.ranks.push_back(Rank{rank});
      const std::string& node = table_.NodeNameOf(rank);
      if (std::ranges::find(verdict.nodes, node) == verdict.nodes.end()) {
        verdict.nodes.push_back(node);
      }
    }
    return verdict;
  }

  Verdict StoppedVerdict(uint32_t rank) const {
    const RankInfo& info = table_.rank(rank);
    const uint64_t lasting = Nanos(table_.node(info.node).as_of - info.stopped_since);
    Verdict verdict = VerdictOn({rank}, lasting);
    verdict.confidence = 1;
    verdict.action = Action::kRestartWithoutRoot;
    verdict.evidence.push_back(fmt::format(
        "the process of rank {} has been stopped (state {}) for {}; its last step was {}", rank,
        info.latest.process_state, InSeconds(lasting), info.latest.step));
    return verdict;
  }

  void JudgeSilentNode(Index node, const std::vector<uint32_t>& ranks, Hangs& hangs) const {
    const uint64_t age = Nanos(now_ - table_.node(node).as_of);
    if (age < Nanos(options_.hang_after)) return;
    if (communicates_ && (progressing_ * 2 < reported_ || HasCommunicated(ranks, node))) return;
    Verdict verdict = VerdictOn(ranks, age);
    verdict.fault = FaultClass::kDead;
    verdict.evidence.push_back(
        fmt::format("node {} has been silent for {}", table_.node(node).name, InSeconds(age)));
    const bool all_stalled = stalled_.size() == reported_;
    if (all_stalled) {
      verdict.evidence.push_back(
          fmt::format("none of the {} other ranks makes a step", stalled_.size()));
      verdict.action = Action::kRestartWithoutRoot;
      verdict.confidence = 0.9;
    }
    const auto patience = all_stalled ? options_.silent_after : options_.absent_after;
    AddVerdict(std::move(verdict), Nanos(patience), hangs);
  }

  /// Whether an operation of these ranks has completed since their node fell silent. The ranks have
  /// then taken part in it, and only their agent is silent.
  bool HasCommunicated(const std::vector<uint32_t>& ranks, Index node) const {
    return std::ranges::any_of(ranks, [&](uint32_t rank) {
      return std::ranges::any_of(table_.rank(rank).memberships, [&](const Membership& membership) {
        const CommInfo& comm = table_.comm(membership.comm);
        return comm.members.size() > 1 && comm.advanced_at > table_.node(node).as_of;
      });
    });
  }

  /// Judges a rank that makes no step while other ranks do.
  void JudgeStalledRank(uint32_t rank, Hangs& hangs) const {
    const uint64_t stalled_ns = StalledFor(rank);
    hangs.stall_ns = std::max(hangs.stall_ns, stalled_ns);
    // All ranks may be in a long step, and this one a little behind.
    if (usual_step_ < table_.rank(rank).latest.step + kStepsMissed) return;
    Verdict verdict = VerdictOn({rank}, stalled_ns);
    verdict.evidence.push_back(fmt::format(
        "rank {} has made no step for {} since step {}, while {} of {} ranks make steps; process "
        "state {}",
        rank, InSeconds(stalled_ns), table_.rank(rank).latest.step, progressing_, reported_,
        StateOf(rank)));
    const bool idle = table_.IsIdle(table_.rank(rank), options_.idle_after);
    const auto least = idle ? options_.idle_after : options_.absent_after;
    AddVerdict(std::move(verdict), ToBlame(rank, least), hangs);
  }

  /// Judges a job in which no rank makes a step. If few ranks are a step behind, the others wait
  /// for one of them.
  void JudgeStalledJob(Hangs& hangs) const {
    uint64_t stalled_ns = ~uint64_t{0};
    uint64_t patience = 0;
    std::vector<uint32_t> behind;
    for (const uint32_t rank : stalled_) {
      stalled_ns = std::min(stalled_ns, StalledFor(rank));
      patience = std::max(patience, ToBlame(rank, options_.absent_after));
      if (table_.rank(rank).latest.step < newest_step_) behind.push_back(rank);
    }
    hangs.stall_ns = std::max(hangs.stall_ns, stalled_ns);
    // The user of a job of one rank, for example in a notebook, knows of its pauses: no suspicion.
    if (stalled_.size() == 1 && stalled_ns < patience) return;
    if (behind.size() * 2 >= stalled_.size()) behind.clear();
    std::string why = behind.empty() ? "" : ", which " + RanksInWords(behind) + " did not reach";
    if (behind.empty()) {
      behind = FewOf([](const RankInfo& info) { return info.phases != 0; });
      if (!behind.empty()) why = "; only " + RanksInWords(behind) + " did not leave a marked phase";
    }
    if (behind.empty()) {
      behind = FewOf([](const RankInfo& info) { return info.latest.process_state == 'D'; });
      if (!behind.empty()) why = "; only " + RanksInWords(behind) + " waits for I/O in the kernel";
    }
    if (behind.empty()) {
      behind = IdleRanks(stalled_ns);
      if (!behind.empty()) why = "; only the process of " + RanksInWords(behind) + " did not run";
    }
    Verdict verdict = VerdictOn(behind, stalled_ns);
    verdict.evidence.push_back(
        fmt::format("none of {} ranks has made a step for {}; the newest step is {}{}",
                    stalled_.size(), InSeconds(stalled_ns), newest_step_, why));
    AddVerdict(std::move(verdict), patience, hangs);
  }

  /// Returns the stalled ranks in a state that fewer than half of them are in. The others may wait
  /// for them.
  template <typename Has>
  std::vector<uint32_t> FewOf(Has has) const {
    std::vector<uint32_t> few;
    for (const uint32_t rank : stalled_) {
      if (has(table_.rank(rank))) few.push_back(rank);
    }
    if (few.size() * 2 >= stalled_.size()) few.clear();
    return few;
  }

  /// Returns the ranks whose processes have not run during the stall, if most others run. A rank
  /// that was never seen running may wait in that way.
  std::vector<uint32_t> IdleRanks(uint64_t stalled_ns) const {
    const Clock::Duration lag(kReportLag);
    const Clock::Duration stalled(stalled_ns - std::min(stalled_ns, kReportLag));
    if (FewOf([&](const RankInfo& info) { return table_.IsIdle(info, lag); }).empty()) return {};
    return FewOf([&](const RankInfo& info) {
      return info.ran_at != Clock::TimePoint::min() && table_.IsIdle(info, stalled);
    });
  }

  static void AddVerdict(Verdict verdict, uint64_t patience, Hangs& hangs) {
    if (verdict.lasting_ns < patience) {
      verdict.action = Action::kNone;
      verdict.confidence = std::min(verdict.confidence, 0.5);
      verdict.evidence.push_back(
          fmt::format("suspicion; becomes a verdict after {}", InSeconds(patience)));
    }
    hangs.found.push_back(std::move(verdict));
  }

  char StateOf(uint32_t rank) const {
    const char state = table_.rank(rank).latest.process_state;
    return state == 0 ? '?' : state;
  }

  const Table& table_;
  const Clock::TimePoint now_;
  const DetectorOptions& options_;
  const bool communicates_;
  uint64_t newest_step_ = 0;
  uint64_t usual_step_ = 0;  // which half of the ranks have reached
  size_t reported_ = 0;      // ranks with recent reports
  size_t progressing_ = 0;   // of these, ranks that make steps
  std::vector<uint32_t> stopped_;
  std::vector<uint32_t> stalled_;
  std::map<Index, std::vector<uint32_t>> silent_;
};

}  // namespace

Hangs FindStandstill(const Table& table, Clock::TimePoint now, const DetectorOptions& options,
                     bool communicates) {
  return StandstillFinder(table, now, options, communicates).Run();
}

}  // namespace holdfast::detect
