#include "coordinator/detect/detector.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <set>
#include <utility>

#include "coordinator/detect/hang.h"
#include "coordinator/detect/probe_times.h"
#include "coordinator/detect/slow.h"
#include "coordinator/detect/standstill.h"

namespace holdfast::detect {

/// Detects stalls that end without help. A lost or late digest shortens a stall for a moment only.
class PauseClock {
 public:
  /// `stall_ns`: how long the job has made no progress. Returns the length of a pause that has just
  /// ended, else 0.
  uint64_t Update(uint64_t stall_ns, Clock::TimePoint now) {
    if (stall_ns * 2 >= longest_ns_) {
      longest_ns_ = std::max(longest_ns_, stall_ns);
      calm_since_.reset();
      return 0;
    }
    if (!calm_since_) calm_since_ = now;
    if (now - *calm_since_ < kCalm) return 0;
    calm_since_.reset();
    return std::exchange(longest_ns_, stall_ns);
  }

 private:
  static constexpr Clock::Duration kCalm = std::chrono::seconds(3);
  uint64_t longest_ns_ = 0;
  std::optional<Clock::TimePoint> calm_since_;
};

struct Detector::State {
  State(Incarnation incarnation, uint32_t world, const DetectorOptions& given)
      : options(given), table(incarnation, world, given), slowness(given) {}

  DetectorOptions options;
  Table table;
  SlownessDetector slowness;
  ProbeTimes probe_times;
  std::optional<ProbeTimes::Slow> slow_link;  // found while transfers are slow
  std::vector<Verdict> suspicions;
  PauseClock pauses;
};

namespace {

constexpr size_t kSuspicionsMax = 16;

size_t CountNodes(const std::vector<Verdict>& verdicts) {
  std::set<std::string> nodes;
  for (const Verdict& verdict : verdicts) {
    if (verdict.edge) {
      nodes.insert(verdict.nodes.front());  // one of its two ends
    } else {
      nodes.insert(verdict.nodes.begin(), verdict.nodes.end());
    }
  }
  return nodes.size();
}

/// Replaces the verdicts by one on the fabric if they blame many nodes at once, since that many
/// nodes rarely fail independently. Verdicts that are certain (dead or stopped processes) stay.
void SuspectFabric(const Table& table, const DetectorOptions& options,
                   std::vector<Verdict>& verdicts) {
  std::vector<Verdict> uncertain;
  for (const Verdict& verdict : verdicts) {
    if (verdict.confidence < 1) uncertain.push_back(verdict);
  }
  const size_t blamed = CountNodes(uncertain);
  const auto share = static_cast<double>(blamed) / static_cast<double>(table.nodes().size());
  if (blamed <= 2 || share <= options.blamed_nodes_share_max) return;
  Verdict fabric{.fault = FaultClass::kFabric,
                 .ranks = {},
                 .edge = {},
                 .nodes = {},
                 .confidence = 0.7,
                 .action = Action::kAlert,
                 .evidence = {fmt::format("{} of {} nodes look faulty at once and probably share a "
                                          "cause: no node is blamed",
                                          blamed, table.nodes().size())}};
  for (size_t i = 0; i < std::min<size_t>(uncertain.size(), 8); ++i) {
    fabric.evidence.push_back(
        fmt::format("{}: {}", ToString(uncertain[i].fault), uncertain[i].evidence.front()));
  }
  std::erase_if(verdicts, [](const Verdict& verdict) { return verdict.confidence < 1; });
  verdicts.push_back(std::move(fabric));
}

}  // namespace

Detector::Detector(Incarnation incarnation, uint32_t world, const DetectorOptions& options)
    : state_(std::make_unique<State>(incarnation, world, options)) {}
Detector::~Detector() = default;
Detector::Detector(Detector&& other) noexcept = default;
Detector& Detector::operator=(Detector&& other) noexcept = default;

void Detector::Observe(const Digest& digest, Clock::TimePoint now) {
  const auto admitted = state_->table.Admit(digest, now);
  if (!admitted) return;
  state_->table.TakeState(digest, *admitted);
  if (state_->slowness.has_slow_transfers()) {
    for (const Reach& probe : digest.reach) {
      state_->probe_times.Add(digest.node, probe.node, probe.took_ns);
    }
  }
  state_->slowness.Observe(digest, admitted->node, state_->table, now);
}

std::vector<Verdict> Detector::Evaluate(Clock::TimePoint now) {
  std::vector<Verdict> verdicts = FindDead(state_->table);
  std::set<Rank> dead;
  for (const Verdict& verdict : verdicts) dead.insert(verdict.ranks.front());
  const bool communicates = state_->table.any_operation();
  Hangs hangs;
  if (communicates) hangs = FindHangs(state_->table, now, state_->options);
  // In a job that communicates rarely, a rank may hang long before the others wait for it.
  if (!hangs.waits) hangs = FindStandstill(state_->table, now, state_->options, communicates);
  state_->table.NotePause(state_->pauses.Update(hangs.stall_ns, now));
  state_->suspicions.clear();
  for (Verdict& verdict : hangs.found) {
    const bool known = !verdict.ranks.empty() && dead.count(verdict.ranks.front()) != 0;
    // A transfer with a process that has ended cannot complete either.
    if (known || (!dead.empty() && verdict.fault != FaultClass::kComputeHang)) continue;
    if (verdict.action != Action::kNone) {
      verdicts.push_back(std::move(verdict));
    } else if (state_->suspicions.size() < kSuspicionsMax) {
      state_->suspicions.push_back(std::move(verdict));
    }
  }
  // Slowness is not reported while there are other faults: a job that hangs looks slow.
  const bool probed = state_->slow_link || state_->probe_times.Find();
  std::vector<Verdict> slow = state_->slowness.Evaluate(state_->table, now, probed);
  if (!state_->slowness.has_slow_transfers()) {
    state_->probe_times.Clear();
    state_->slow_link.reset();
  }
  for (Verdict& verdict : slow) LocateByProbes(verdict);
  if (verdicts.empty()) verdicts = std::move(slow);
  SuspectFabric(state_->table, state_->options, verdicts);
  return verdicts;
}

/// Adds the slow node or link to a verdict that names none. The first finding stays, so that the
/// same fault is not reported under two names.
void Detector::LocateByProbes(Verdict& verdict) {
  if (verdict.fault != FaultClass::kCommSlow || verdict.edge || !verdict.ranks.empty()) return;
  if (!state_->slow_link) state_->slow_link = state_->probe_times.Find();
  if (!state_->slow_link) return;
  const ProbeTimes::Slow& slow = *state_->slow_link;
  verdict.nodes = slow.nodes;
  if (slow.nodes.size() == 1) verdict.ranks = state_->table.RanksOn(slow.nodes.front());
  verdict.confidence = std::max(verdict.confidence, 0.7);
  verdict.evidence.push_back(
      fmt::format("probes between {} take {:.3g} ms instead of {:.3g} ms ({} of {} pairs of nodes)",
                  slow.nodes.size() == 1 ? slow.nodes.front() + " and other nodes"
                                         : slow.nodes[0] + " and " + slow.nodes[1],
                  slow.took_ns / 1e6, slow.usual_ns / 1e6, slow.pairs, slow.of));
}

const std::vector<Verdict>& Detector::suspicions() const { return state_->suspicions; }
Clock::Duration Detector::longest_pause() const {
  return Clock::Duration(state_->table.longest_pause_ns());
}
const std::vector<CommunicatorId>& Detector::wanted_transfers() const {
  return state_->slowness.wanted();
}
bool Detector::needs_probes() const { return state_->slowness.has_slow_transfers(); }
const DetectorCounters& Detector::counters() const { return state_->table.counters(); }

}  // namespace holdfast::detect
