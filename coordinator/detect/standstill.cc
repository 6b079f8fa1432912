#include "coordinator/detect/standstill.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "coordinator/detect/evidence.h"

namespace holdfast::detect {
namespace {

constexpr Clock::Duration kFresh = std::chrono::seconds(3);
constexpr uint32_t kStepsKnown = 2;  // a rank's own, to know how long its steps take
constexpr uint32_t kStepsAhead = 3;  // of the others, to miss a rank that has made none
constexpr double kSteps = 1.5;
constexpr double kPauses = 1.25;

uint64_t Nanos(Clock::Duration duration) {
  return static_cast<uint64_t>(std::max<int64_t>(0, duration.count()));
}

class StandstillFinder {
 public:
  StandstillFinder(const Table& table, Clock::TimePoint now, const DetectorOptions& options)
      : table_(table), now_(now), options_(options) {}

  Hangs Run() {
    Sort();
    Hangs hangs;
    if (fresh_ == 0) return hangs;
    for (const uint32_t rank : stopped_) hangs.found.push_back(Stopped(rank));
    if (!stopped_.empty()) return hangs;
    for (const auto& [node, ranks] : silent_) Silent(node, ranks, hangs);
    if (!hangs.found.empty() || standing_.empty()) return hangs;
    if (moving_ * 2 >= fresh_) {
      for (const uint32_t rank : standing_) Alone(rank, hangs);
    } else if (standing_.size() == fresh_ && silent_.empty()) {
      Together(hangs);
    }
    return hangs;
  }

 private:
  /// Puts each rank where it belongs: stopped, silent, standing, excused or moving.
  void Sort() {
    for (uint32_t rank = 0; rank < table_.world(); ++rank) {
      const RankInfo& info = table_.rank(rank);
      if (info.node == kNone || info.word.finished || !info.word.alive) continue;
      newest_step_ = std::max(newest_step_, info.word.step);
    }
    for (uint32_t rank = 0; rank < table_.world(); ++rank) {
      const RankInfo& info = table_.rank(rank);
      if (info.node == kNone || info.word.finished || !info.word.alive) continue;
      if (now_ - table_.node(info.node).as_of > kFresh) {
        silent_[info.node].push_back(rank);
        continue;
      }
      ++fresh_;
      if (IsStopped(info)) {
        stopped_.push_back(rank);
      } else if (!table_.IsExcused(info) && IsComparable(rank)) {
        if (StandsFor(rank) >= ToSuspect(rank)) {
          standing_.push_back(rank);
        } else {
          ++moving_;
        }
      }
    }
  }

  bool IsStopped(const RankInfo& info) const {
    return info.stopped_since != Clock::TimePoint::min() &&
           table_.node(info.node).as_of - info.stopped_since >= options_.hang_after;
  }

  /// Its steps are known, or it has made none while others made several.
  bool IsComparable(uint32_t rank) const {
    const RankInfo& info = table_.rank(rank);
    return info.steps_ns.size() >= kStepsKnown ||
           (info.word.step == 0 && newest_step_ >= kStepsAhead);
  }

  /// How long it has made no step, and neither entered nor left a phase.
  uint64_t StandsFor(uint32_t rank) const {
    const RankInfo& info = table_.rank(rank);
    const Clock::TimePoint since =
        info.moved_at == Clock::TimePoint::min() ? table_.first_heard() : info.moved_at;
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

  uint64_t ToBlame(uint32_t rank) const {
    const auto& steps = table_.rank(rank).steps_ns;
    const auto usual = steps.size() == 0 ? 0 : static_cast<uint64_t>(steps.Median());
    const double shown = std::max(kSteps * static_cast<double>(LongestStep(rank)),
                                  kPauses * static_cast<double>(table_.longest_pause_ns()));
    return std::max(Nanos(options_.absent_after) + usual, static_cast<uint64_t>(shown));
  }

  Verdict About(std::vector<uint32_t> ranks, uint64_t lasting_ns) const {
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

  Verdict Stopped(uint32_t rank) const {
    const RankInfo& info = table_.rank(rank);
    const uint64_t lasting = Nanos(table_.node(info.node).as_of - info.stopped_since);
    Verdict verdict = About({rank}, lasting);
    verdict.confidence = 1;
    verdict.action = Action::kRestartWithoutRoot;
    verdict.evidence.push_back(fmt::format(
        "the process of rank {} has been stopped (state {}) for {}; its last step was {}", rank,
        info.word.process_state, InSeconds(lasting), info.word.step));
    return verdict;
  }

  void Silent(Index node, const std::vector<uint32_t>& ranks, Hangs& hangs) const {
    const uint64_t age = Nanos(now_ - table_.node(node).as_of);
    if (age < Nanos(options_.hang_after)) return;
    Verdict verdict = About(ranks, age);
    verdict.fault = FaultClass::kDead;
    verdict.evidence.push_back(
        fmt::format("node {} has been silent for {}", table_.node(node).name, InSeconds(age)));
    const bool all_stand = standing_.size() == fresh_;
    if (all_stand) {
      verdict.evidence.push_back(
          fmt::format("none of the {} other ranks makes a step", standing_.size()));
      verdict.action = Action::kRestartWithoutRoot;
      verdict.confidence = 0.9;
    }
    Judge(std::move(verdict), Nanos(all_stand ? options_.silent_after : options_.absent_after),
          hangs);
  }

  /// Others make steps, and it makes none.
  void Alone(uint32_t rank, Hangs& hangs) const {
    const uint64_t stands = StandsFor(rank);
    hangs.stall_ns = std::max(hangs.stall_ns, stands);
    Verdict verdict = About({rank}, stands);
    verdict.evidence.push_back(fmt::format(
        "rank {} has made no step for {} since step {}, while {} of {} ranks make steps; process "
        "state {}",
        rank, InSeconds(stands), table_.rank(rank).word.step, moving_, fresh_, StateOf(rank)));
    Judge(std::move(verdict), ToBlame(rank), hangs);
  }

  /// No rank makes a step. One of few that are a step behind is the one the others wait for.
  void Together(Hangs& hangs) const {
    uint64_t stands = ~uint64_t{0};
    uint64_t patience = 0;
    std::vector<uint32_t> behind;
    for (const uint32_t rank : standing_) {
      stands = std::min(stands, StandsFor(rank));
      patience = std::max(patience, ToBlame(rank));
      if (table_.rank(rank).word.step < newest_step_) behind.push_back(rank);
    }
    hangs.stall_ns = std::max(hangs.stall_ns, stands);
    // A pause of a job of one rank, in a notebook for instance, is no news for its user.
    if (standing_.size() == 1 && stands < patience) return;
    if (behind.size() * 2 >= standing_.size()) behind.clear();
    Verdict verdict = About(behind, stands);
    verdict.evidence.push_back(
        fmt::format("none of {} ranks has made a step for {}; the newest step is {}{}",
                    standing_.size(), InSeconds(stands), newest_step_,
                    behind.empty() ? "" : ", and " + RanksInWords(behind) + " did not reach it"));
    for (const uint32_t rank : standing_) {
      if (table_.rank(rank).word.process_state != 'D') continue;
      verdict.evidence.push_back(fmt::format("rank {} waits for I/O in the kernel", rank));
      if (verdict.evidence.size() >= 4) break;
    }
    Judge(std::move(verdict), patience, hangs);
  }

  static void Judge(Verdict verdict, uint64_t patience, Hangs& hangs) {
    if (verdict.lasting_ns < patience) {
      verdict.action = Action::kNone;
      verdict.confidence = std::min(verdict.confidence, 0.5);
      verdict.evidence.push_back(
          fmt::format("suspected; a fault if it lasts for {}", InSeconds(patience)));
    }
    hangs.found.push_back(std::move(verdict));
  }

  char StateOf(uint32_t rank) const {
    const char state = table_.rank(rank).word.process_state;
    return state == 0 ? '?' : state;
  }

  const Table& table_;
  const Clock::TimePoint now_;
  const DetectorOptions& options_;
  uint64_t newest_step_ = 0;
  size_t fresh_ = 0;   // ranks whose words are new
  size_t moving_ = 0;  // of them, those that make steps
  std::vector<uint32_t> stopped_;
  std::vector<uint32_t> standing_;
  std::map<Index, std::vector<uint32_t>> silent_;
};

}  // namespace

Hangs FindStandstill(const Table& table, Clock::TimePoint now, const DetectorOptions& options) {
  return StandstillFinder(table, now, options).Run();
}

}  // namespace holdfast::detect
