#include "coordinator/detect/hang.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "coordinator/detect/connections.h"
#include "coordinator/detect/cut.h"
#include "coordinator/detect/evidence.h"
#include "coordinator/detect/patience.h"
#include "coordinator/detect/waits.h"

namespace holdfast::detect {
namespace {

/// A report older than this does not describe the present state, and its node counts as silent.
constexpr Clock::Duration kReportMaxAge = std::chrono::seconds(3);
/// Nodes probe each other every second and report the answers a second later. After this time, in
/// ns, all nodes have reported which nodes answer them.
constexpr uint64_t kProbeAnswerDelay = 3'000'000'000;
/// Reports arrive with a delay: a reported wait may be shorter than the patience by this time, in
/// ns.
constexpr uint64_t kReportLag = 3'000'000'000;
constexpr Clock::Duration kNeverReported = std::chrono::hours(24);
/// A factor on the time that the other ranks needed to reach their first operation.
constexpr int kUnknownPhaseFactor = 3;
/// Waits of a rank's threads for a processor that explain why it makes no progress.
constexpr uint32_t kWaitingPercent = 50;

class HangFinder {
 public:
  HangFinder(const Table& table, Clock::TimePoint now, const DetectorOptions& options)
      : table_(table),
        now_(now),
        options_(options),
        graph_(BuildWaitsFor(table)),
        patience_(table, options) {}

  Hangs Run() {
    Hangs hangs;
    hangs.found = Find();
    hangs.stall_ns = stall_ns_;
    hangs.waits = waits_;
    return hangs;
  }

 private:
  std::vector<Verdict> Find() {
    const auto least = static_cast<uint64_t>(options_.hang_after.count());
    waits_ = std::any_of(graph_.operations.begin(), graph_.operations.end(),
                         [&](const Operation& operation) { return operation.oldest_ns >= least; });
    if (!waits_) return {};
    if (auto mismatches = Mismatches(least); !mismatches.empty()) return mismatches;
    const auto roots = RootsOf(graph_, least);
    root_ranks_ = std::count_if(roots.begin(), roots.end(), [&](const auto& root) {
      return root.size() == 1 && graph_.is_rank(root.front()) &&
             !HasJustLeft(graph_.rank_of(root.front()));
    });
    FindLongestWaits();
    std::vector<Verdict> verdicts;
    for (const std::vector<uint32_t>& root : roots) {
      std::optional<Verdict> verdict;
      if (root.size() > 1) {
        verdict = JudgeCycle(root);
      } else if (graph_.is_rank(root.front())) {
        verdict = JudgeRank(graph_.rank_of(root.front()));
      } else {
        verdict = JudgeComplete(graph_.operations[root.front()]);
      }
      if (verdict) verdicts.push_back(std::move(*verdict));
    }
    return verdicts;
  }

  Clock::Duration ReportAge(uint32_t rank) const {
    const Index node = table_.rank(rank).node;
    return node == kNone ? Clock::Duration::max() : now_ - table_.node(node).as_of;
  }

  std::string NameOf(const Operation& operation) const {
    if (IsPairwise(operation.kind)) {
      return fmt::format("a transfer of communicator {:x}", table_.comm(operation.comm).id.value);
    }
    return fmt::format("{} {} of communicator {:x}", holdfast::NameOf(operation.kind),
                       operation.sequence, table_.comm(operation.comm).id.value);
  }

  /// Finds, for each absent rank, the operation that has waited for it longest.
  void FindLongestWaits() {
    for (uint32_t i = 0; i < graph_.operations.size(); ++i) {
      for (uint32_t rank : graph_.operations[i].absent) {
        uint32_t& longest = longest_wait_of_.emplace(rank, i).first->second;
        if (graph_.operations[i].oldest_ns > graph_.operations[longest].oldest_ns) longest = i;
      }
    }
  }

  std::vector<Verdict> Mismatches(uint64_t least) {
    std::vector<Verdict> verdicts;
    for (const Operation& operation : graph_.operations) {
      if (operation.oldest_ns < least || IsPairwise(operation.kind) ||
          operation.kind == CollectiveKind::kAllToAll || operation.kind == CollectiveKind::kOther) {
        continue;
      }
      std::map<std::pair<uint64_t, uint8_t>, std::vector<uint32_t>> kinds;
      for (const Operation::Starter& starter : operation.starters) {
        kinds[{starter.flight->record.bytes, starter.flight->record.dtype}].push_back(starter.rank);
      }
      if (kinds.size() < 2) continue;
      stall_ns_ = std::max(stall_ns_, operation.oldest_ns);
      Verdict verdict = ProgramFault(FaultClass::kSoftwareMismatch);
      verdict.lasting_ns = operation.oldest_ns;
      for (const auto& [kind, ranks] : kinds) {
        verdict.evidence.push_back(
            fmt::format("{} of {} ranks call {} with {} bytes of type {}: {}", ranks.size(),
                        table_.comm(operation.comm).members.size(), NameOf(operation), kind.first,
                        kind.second, RanksInWords(ranks)));
      }
      // Names the ranks that differ from the most common kind, unless there are just as many of
      // them.
      const auto most = std::max_element(
          kinds.begin(), kinds.end(),
          [](const auto& a, const auto& b) { return a.second.size() < b.second.size(); });
      for (const auto& [kind, ranks] : kinds) {
        if (kind == most->first || ranks.size() >= most->second.size()) continue;
        for (uint32_t rank : ranks) verdict.ranks.push_back(Rank{rank});
      }
      verdicts.push_back(std::move(verdict));
    }
    return verdicts;
  }

  Verdict ProgramFault(FaultClass fault) const {
    return {.fault = fault,
            .ranks = {},
            .edge = {},
            .nodes = {},
            .confidence = 0.95,
            .action = Action::kRestartInPlace,
            .evidence = {}};
  }

  /// Returns the rank of a cycle that has started nothing but sends, if there is exactly one. A
  /// rank need not wait for its sends, so this rank may compute or hang while the others wait for
  /// it.
  std::optional<uint32_t> FindOnlySender(const std::vector<uint32_t>& members) const {
    std::optional<uint32_t> sender;
    for (uint32_t vertex : members) {
      if (!graph_.is_rank(vertex)) continue;
      const uint32_t rank = graph_.rank_of(vertex);
      const auto& flights = table_.rank(rank).flights;
      const bool only_sends =
          std::none_of(flights.begin(), flights.end(), [](const Flight& flight) {
            return flight.started && flight.record.kind != CollectiveKind::kSend;
          });
      if (!only_sends) continue;
      if (sender) return std::nullopt;
      sender = rank;
    }
    return sender;
  }

  std::optional<Verdict> JudgeCycle(const std::vector<uint32_t>& members) {
    if (const auto sender = FindOnlySender(members)) return JudgeRank(*sender);
    uint64_t blocked_ns = ~uint64_t{0};
    uint64_t suspect_after = 0;
    uint64_t patience = 0;
    std::map<Index, uint32_t> comms;
    for (uint32_t vertex : members) {
      if (graph_.is_rank(vertex)) {
        const uint32_t rank = graph_.rank_of(vertex);
        if (ReportAge(rank) > kReportMaxAge || HasJustLeft(rank)) return std::nullopt;
        continue;
      }
      const Operation& operation = graph_.operations[vertex];
      ++comms[operation.comm];
      // Every operation of the cycle must be old: reports of different times can form a cycle that
      // never existed.
      blocked_ns = std::min(blocked_ns, operation.oldest_ns);
      suspect_after = std::max(suspect_after, patience_.ToSuspect(operation));
      patience =
          std::max(patience, patience_.ToBlame(operation, kNone, RootState::kCommunicating, now_));
    }
    stall_ns_ = std::max(stall_ns_, blocked_ns);
    if (blocked_ns < suspect_after) return std::nullopt;
    const bool same_comm =
        std::any_of(comms.begin(), comms.end(), [](const auto& entry) { return entry.second > 1; });
    // Ranks of one communicator that call different operations run different programs. In a cycle
    // over several communicators, the order of calls may be the same within each of them.
    Verdict verdict =
        ProgramFault(same_comm ? FaultClass::kSoftwareMismatch : FaultClass::kProgramDeadlock);
    verdict.lasting_ns = blocked_ns;
    const Operation* largest = nullptr;
    for (uint32_t vertex : members) {
      if (graph_.is_rank(vertex)) continue;
      const Operation& operation = graph_.operations[vertex];
      if (largest == nullptr || operation.starters.size() > largest->starters.size()) {
        largest = &operation;
      }
      if (verdict.evidence.size() < 8) {
        verdict.evidence.push_back(fmt::format("{} started {} and wait for {}",
                                               RanksInWords(StartersOf(operation)),
                                               NameOf(operation), RanksInWords(operation.absent)));
      }
    }
    // Name the ranks that are absent from the operation with the most starters.
    if (largest->absent.size() < largest->starters.size()) {
      for (uint32_t rank : largest->absent) verdict.ranks.push_back(Rank{rank});
    }
    if (blocked_ns < patience) return AsSuspicion(std::move(verdict), patience);
    return verdict;
  }

  static std::vector<uint32_t> StartersOf(const Operation& operation) {
    std::vector<uint32_t> ranks;
    for (const Operation::Starter& starter : operation.starters) ranks.push_back(starter.rank);
    return ranks;
  }

  /// Judges a rank that others wait for and that waits for no rank. Returns a verdict, a suspicion
  /// (no action), or nullopt.
  std::optional<Verdict> JudgeRank(uint32_t rank) {
    const RankInfo& info = table_.rank(rank);
    const auto found = longest_wait_of_.find(rank);
    if (found == longest_wait_of_.end() || HasJustLeft(rank)) return std::nullopt;
    const Operation& operation = graph_.operations[found->second];
    const bool stopped = info.stopped_since != Clock::TimePoint::min();
    const bool silent = ReportAge(rank) > kReportMaxAge;
    if (!stopped && !silent && table_.IsExcused(info)) return JudgeFirstPhase(rank, operation);
    // The time that the others waited for the rank's marked phases does not count.
    const uint64_t grace = stopped || silent ? 0 : std::min(info.grace_ns, operation.oldest_ns);
    const uint64_t waited = operation.oldest_ns - grace;
    stall_ns_ = std::max(stall_ns_, waited);
    const uint64_t suspect_after = stopped ? static_cast<uint64_t>(options_.hang_after.count())
                                           : patience_.ToSuspect(operation);
    if (waited < suspect_after) return std::nullopt;

    Verdict verdict{.fault = FaultClass::kComputeHang,
                    .ranks = {Rank{rank}},
                    .edge = {},
                    .nodes = {table_.NodeNameOf(rank)},
                    .confidence = 0.95,
                    .action = Action::kRestartWithoutRoot,
                    .evidence = {},
                    .lasting_ns = waited};
    verdict.evidence.push_back(fmt::format(
        "{} of {} ranks have been in {} for up to {}; rank {} {}", operation.starters.size(),
        Participants(operation), NameOf(operation), InSeconds(operation.oldest_ns), rank,
        info.latest.process_state == 'T' ? "is stopped" : "has not started it"));
    if (silent) return JudgeSilentNode(rank, operation, waited, std::move(verdict));
    if (graph_.outdated[rank] || (!stopped && !IsMember(rank, operation.comm))) return std::nullopt;
    if (!stopped && (InOperation(rank) || ProgressedRecently(rank, suspect_after))) {
      return std::nullopt;
    }
    if (!IsAbsentLongEnough(rank, operation, suspect_after)) return std::nullopt;
    verdict.evidence.push_back(DescribeState(rank, operation));
    if (stopped && StoppedFor(info) >= options_.hang_after) {
      verdict.confidence = 1;
      return verdict;
    }
    const uint64_t patience = PatienceWith(rank, operation);
    const bool awaited = waited >= patience && IsAbsentLongEnough(rank, operation, patience);
    // The others may have reached the operation long after the rank's last step.
    const uint64_t idle = patience_.IdleFor(rank);
    if ((!awaited && idle < patience) || ProgressedRecently(rank, patience)) {
      // On a machine with too many processes the rank is slow. Whether it hangs does not show yet.
      if (WaitsForProcessor(info.latest)) return std::nullopt;
      return AsSuspicion(std::move(verdict), patience);
    }
    verdict.lasting_ns = std::max(waited, idle);
    // A person has stopped the process in a debugger: alert only.
    if (info.latest.process_state == 't') verdict.action = Action::kAlert;
    return verdict;
  }

  /// Whether the rank's newest report, if it is recent, lacks an operation that the rank was in
  /// before. The rank has left it, or a record was lost.
  bool HasJustLeft(uint32_t rank) const {
    return ReportAge(rank) <= kReportMaxAge && Table::HasLeft(table_.rank(rank));
  }

  /// Returns the patience with a rank that others wait for, and whose process is not stopped.
  uint64_t PatienceWith(uint32_t rank, const Operation& operation) const {
    const auto with = [&](RootState state) {
      return patience_.ToBlame(operation, rank, state, now_);
    };
    const RankInfo& info = table_.rank(rank);
    uint64_t patience = with(RootState::kGpuStalled);
    // If several ranks are absent, the GPU may wait for another of them in a communication that is
    // not recorded.
    if (root_ranks_ == 1 && EnqueuedFor(rank) + kReportLag >= patience) return patience;
    if (info.latest.process_state == 'R' && EnqueuedBy(rank, operation) == nullptr) {
      return with(RootState::kRunning);
    }
    patience = with(RootState::kIdle);
    const bool is_idle =
        table_.IsIdle(info, Clock::Duration(patience) - Clock::Duration(kReportLag));
    return is_idle ? patience : with(RootState::kOutsideCommunication);
  }

  /// Judges a rank that others wait for and whose node is silent.
  std::optional<Verdict> JudgeSilentNode(uint32_t rank, const Operation& operation, uint64_t waited,
                                         Verdict verdict) {
    const RankInfo& info = table_.rank(rank);
    const auto age = static_cast<uint64_t>(std::min(ReportAge(rank), kNeverReported).count());
    if (age < static_cast<uint64_t>(options_.hang_after.count())) return std::nullopt;
    if (info.node != kNone) {
      // A lost node takes all of its ranks along: report them once.
      if (!reported_nodes_.insert(info.node).second) return std::nullopt;
      verdict.ranks.clear();
      for (uint32_t other = 0; other < table_.world(); ++other) {
        const RankInfo& theirs = table_.rank(other);
        if (theirs.node == info.node && !theirs.latest.ended_orderly)
          verdict.ranks.push_back(Rank{other});
      }
    }
    verdict.fault = FaultClass::kDead;
    verdict.confidence = 0.9;
    verdict.evidence.push_back(info.node == kNone
                                   ? fmt::format("rank {} has never been reported", rank)
                                   : fmt::format("its node {} has been silent for {}",
                                                 table_.NodeNameOf(rank), InSeconds(age)));
    RootState state =
        info.node == kNone ? RootState::kOutsideCommunication : RootState::kNodeSilent;
    if (const auto [answered, failed] = ProbeResultsOf(table_, info.node, now_, kReportMaxAge);
        answered + failed > 0) {
      state = answered > 0 ? RootState::kAgentSilent : RootState::kUnreachable;
      verdict.evidence.push_back(
          fmt::format("it answered {} of {} nodes that probed it over the network", answered,
                      answered + failed));
      if (answered == 0) verdict.confidence = 1;
    }
    const uint64_t patience = patience_.ToBlame(operation, rank, state, now_);
    if (std::min(age, waited) < patience) return AsSuspicion(std::move(verdict), patience);
    return verdict;
  }

  static bool WaitsForProcessor(const RankState& state) {
    return state.processor_wait_percent >= kWaitingPercent;
  }

  static Verdict AsSuspicion(Verdict verdict, uint64_t patience) {
    verdict.action = Action::kNone;
    verdict.confidence = std::min(verdict.confidence, 0.5);
    verdict.evidence.push_back(
        fmt::format("suspicion; becomes a verdict after {}", InSeconds(patience)));
    return verdict;
  }

  Clock::Duration StoppedFor(const RankInfo& info) const {
    return table_.node(info.node).as_of - info.stopped_since;
  }

  /// Returns the number of ranks that take part in an operation.
  size_t Participants(const Operation& operation) const {
    return IsPairwise(operation.kind) ? 2 : table_.comm(operation.comm).members.size();
  }

  /// Whether the rank has started a transfer whose peer is unknown. It may wait for that peer.
  bool InOperation(uint32_t rank) const {
    const auto& flights = table_.rank(rank).flights;
    return std::any_of(flights.begin(), flights.end(), [](const Flight& flight) {
      return flight.started && IsPairwise(flight.record.kind) && !flight.edge;
    });
  }

  /// Whether the rank's own agent has reported the communicator. Only then are its reports of
  /// operations there known.
  bool IsMember(uint32_t rank, Index comm) const {
    const std::vector<Membership>& memberships = table_.rank(rank).memberships;
    return std::any_of(memberships.begin(), memberships.end(),
                       [&](const Membership& membership) { return membership.comm == comm; });
  }

  /// Judges a rank in a marked phase before its first operation, while the others wait for it. The
  /// usual length of the phase is unknown, so a long one is only an alert.
  std::optional<Verdict> JudgeFirstPhase(uint32_t rank, const Operation& operation) {
    const RankInfo& info = table_.rank(rank);
    if (info.has_begun() || table_.phase_lengths().Known(info.phases)) return std::nullopt;
    const auto reached = now_ - Clock::Duration(static_cast<int64_t>(operation.oldest_ns));
    const auto others =
        std::max<Clock::Duration>(reached - table_.first_report(), Clock::Duration(0));
    const auto patience = static_cast<uint64_t>(
        std::max<Clock::Duration>(options_.absent_after, kUnknownPhaseFactor * others).count());
    if (operation.oldest_ns < patience && !table_.IsFirstPhaseOver(info)) return std::nullopt;
    Verdict verdict{.fault = FaultClass::kComputeHang,
                    .ranks = {Rank{rank}},
                    .edge = {},
                    .nodes = {table_.NodeNameOf(rank)},
                    .confidence = 0.6,
                    .action = Action::kAlert,
                    .evidence = {},
                    .lasting_ns = operation.oldest_ns};
    verdict.evidence.push_back(fmt::format(
        "{} of {} ranks have been in {} for up to {}; rank {} has been in a marked phase for {}, "
        "whose usual length is unknown; a fault if the phase lasts for {}",
        operation.starters.size(), Participants(operation), NameOf(operation),
        InSeconds(operation.oldest_ns), rank,
        InSeconds(static_cast<uint64_t>((table_.node(info.node).as_of - info.phase_since).count())),
        InSeconds(static_cast<uint64_t>(table_.phase_lengths().Limit(info.phases).count()))));
    return verdict;
  }

  /// Whether the rank made progress within the patience: it was waiting elsewhere until recently.
  bool ProgressedRecently(uint32_t rank, uint64_t patience) const {
    const RankInfo& info = table_.rank(rank);
    return info.moved_at != Clock::TimePoint::min() &&
           (table_.node(info.node).as_of - info.moved_at).count() <
               static_cast<int64_t>(patience - std::min(patience / 10 * 3, kReportLag));
  }

  /// Whether the rank's own report is from a time when the others had already waited for long, and
  /// the rank has not completed the operation since. Counts of completed operations would show
  /// that. Without them, another rank must have reported the wait after the rank's previous report.
  bool IsAbsentLongEnough(uint32_t rank, const Operation& operation, uint64_t patience) const {
    const NodeInfo& node = table_.node(table_.rank(rank).node);
    const bool has_counts =
        !IsPairwise(operation.kind) &&
        !table_.comm(operation.comm).completed[static_cast<size_t>(operation.kind)].empty();
    for (const Operation::Starter& starter : operation.starters) {
      const auto theirs = table_.node(table_.rank(starter.rank).node).as_of;
      const auto waited = Clock::Duration(starter.flight->age_ns) - (theirs - node.as_of);
      if (waited.count() >= static_cast<int64_t>(patience - std::min(patience / 5, kReportLag)) &&
          (has_counts || theirs >= node.as_of_before)) {
        return true;
      }
    }
    return false;
  }

  /// Returns an operation of this kind that the rank has enqueued and not started; nullptr if there
  /// is none.
  const Flight* EnqueuedBy(uint32_t rank, const Operation& operation) const {
    const auto& flights = table_.rank(rank).flights;
    const auto found = std::find_if(flights.begin(), flights.end(), [&](const Flight& flight) {
      return flight.comm == operation.comm && flight.record.kind == operation.kind &&
             !flight.started;
    });
    return found == flights.end() ? nullptr : &*found;
  }

  /// Returns for how long an operation has been enqueued that the rank's GPU does not start, in ns.
  uint64_t EnqueuedFor(uint32_t rank) const {
    uint64_t longest = 0;
    for (const Flight& flight : table_.rank(rank).flights) {
      if (!flight.started) longest = std::max(longest, flight.age_ns);
    }
    return longest;
  }

  std::string DescribeState(uint32_t rank, const Operation& operation) const {
    const RankState& state = table_.rank(rank).latest;
    if (const Flight* flight = EnqueuedBy(rank, operation)) {
      return fmt::format("rank {} enqueued it {} ago and its GPU has not started it", rank,
                         InSeconds(flight->age_ns));
    }
    const std::string_view meaning = state.process_state == 'T'   ? "stopped"
                                     : state.process_state == 'Z' ? "zombie"
                                     : state.process_state == 'D' ? "waiting for I/O in the kernel"
                                     : state.process_state == 'S' ? "sleeping"
                                     : state.process_state == 'R' ? "running"
                                     : state.process_state == 't' ? "held by a debugger"
                                                                  : "unknown";
    std::string text =
        fmt::format("rank {} has not called it; process state {} ({}); in step {} for {}", rank,
                    state.process_state == 0 ? '?' : state.process_state, meaning, state.step,
                    InSeconds(state.since_step_ns));
    if (WaitsForProcessor(state)) {
      text += fmt::format("; its threads wait for a processor, together for {} % of the time",
                          state.processor_wait_percent);
    }
    return text;
  }

  /// Judges an operation that all members have started and none completes.
  std::optional<Verdict> JudgeComplete(const Operation& operation) {
    stall_ns_ = std::max(stall_ns_, operation.youngest_ns);
    const uint64_t suspect_after = patience_.ToSuspect(operation);
    if (operation.youngest_ns < suspect_after) return std::nullopt;
    // If a member has completed the operation and continues, the others' reports are out of date.
    for (uint32_t rank : operation.left) {
      const auto& flights = table_.rank(rank).flights;
      const bool also_blocked = std::any_of(
          flights.begin(), flights.end(),
          [&](const Flight& flight) { return flight.age_ns * 2 >= operation.youngest_ns; });
      if (!also_blocked) return std::nullopt;
    }
    // A member that has completed it may wait for a rank that is or just was in a marked phase.
    if (!operation.left.empty() && table_.excused_at() != Clock::TimePoint::min() &&
        now_ - table_.excused_at() < options_.hang_after) {
      return std::nullopt;
    }
    const auto outdated = std::count_if(
        operation.starters.begin(), operation.starters.end(),
        [&](const Operation::Starter& starter) { return ReportAge(starter.rank) > kReportMaxAge; });
    if (static_cast<size_t>(outdated) * 20 > operation.starters.size()) return std::nullopt;
    Verdict verdict{.fault = FaultClass::kCommHang,
                    .ranks = {},
                    .edge = {},
                    .nodes = {},
                    .confidence = 0.5,
                    .action = Action::kRestartInPlace,
                    .evidence = {},
                    .lasting_ns = operation.youngest_ns};
    verdict.evidence.push_back(fmt::format(
        "all {} ranks have started {}, the last one {} ago, and it does not complete",
        operation.starters.size(), NameOf(operation), InSeconds(operation.youngest_ns)));
    const bool is_cut = BlameCut(operation, verdict);
    // A single failed link may be the first one reported of a node that is cut off from all others.
    const bool answers_pending = operation.youngest_ns < suspect_after + kProbeAnswerDelay;
    if (answers_pending && verdict.ranks.empty() && AnyProbeFailed(table_, now_, kReportMaxAge)) {
      return std::nullopt;
    }
    if (!is_cut) BlameConnection(table_, operation, verdict);
    // A rank that works outside communication notices the end of an operation late.
    const RootState state = is_cut                   ? RootState::kUnreachable
                            : operation.left.empty() ? RootState::kCommunicating
                                                     : RootState::kOutsideCommunication;
    const uint64_t patience = patience_.ToBlame(operation, kNone, state, now_);
    if (operation.youngest_ns >= patience) return verdict;
    // A rank without a processor neither sends nor notices that the operation has ended.
    const bool any_waits = std::any_of(
        operation.starters.begin(), operation.starters.end(),
        [&](const auto& starter) { return WaitsForProcessor(table_.rank(starter.rank).latest); });
    if (any_waits && !is_cut) return std::nullopt;
    return AsSuspicion(std::move(verdict), patience);
  }

  /// Blames a node or a link that is cut off, and returns whether there is one. Such a cut blocks
  /// all connections of the operation, so following them would name an arbitrary one.
  bool BlameCut(const Operation& operation, Verdict& verdict) const {
    std::set<Index> nodes;
    for (const Operation::Starter& starter : operation.starters) {
      nodes.insert(table_.rank(starter.rank).node);
    }
    const auto cut = FindCut(table_, nodes, now_, kReportMaxAge);
    if (!cut) return false;
    verdict.action = Action::kRestartWithoutRoot;
    verdict.confidence = 0.95;
    verdict.evidence.push_back(cut->evidence);
    for (const Operation::Starter& starter : operation.starters) {
      const Index node = table_.rank(starter.rank).node;
      if (std::find(cut->nodes.begin(), cut->nodes.end(), node) == cut->nodes.end()) continue;
      verdict.ranks.push_back(Rank{starter.rank});
    }
    for (const Index node : cut->nodes) verdict.nodes.push_back(table_.node(node).name);
    if (!cut->link) return true;
    const auto rank_on = [&](Index node) {
      const auto found =
          std::find_if(operation.starters.begin(), operation.starters.end(),
                       [&](const auto& starter) { return table_.rank(starter.rank).node == node; });
      return Rank{found->rank};
    };
    if (!cut->certain) verdict.action = Action::kRestartInPlace;
    const auto [a, b] = *cut->link;
    verdict.edge = Edge{rank_on(a), rank_on(b)};
    verdict.nodes = {table_.node(a).name, table_.node(b).name};
    return true;
  }

  const Table& table_;
  const Clock::TimePoint now_;
  const DetectorOptions& options_;
  const WaitsForGraph graph_;
  const Patience patience_;
  uint64_t stall_ns_ = 0;
  bool waits_ = false;
  int64_t root_ranks_ = 0;                        // roots that are ranks outside communication
  std::set<Index> reported_nodes_;                // silent nodes with a verdict or a suspicion
  std::map<uint32_t, uint32_t> longest_wait_of_;  // absent rank → operation
};

}  // namespace

std::vector<Verdict> FindDead(const Table& table) {
  std::vector<Verdict> verdicts;
  for (uint32_t rank = 0; rank < table.world(); ++rank) {
    const RankInfo& info = table.rank(rank);
    if (info.node == kNone || info.latest.alive || info.latest.ended_orderly) continue;
    verdicts.push_back({.fault = FaultClass::kDead,
                        .ranks = {Rank{rank}},
                        .edge = {},
                        .nodes = {table.NodeNameOf(rank)},
                        .confidence = 1,
                        .action = Action::kRestartWithoutRoot,
                        .evidence = {fmt::format("the process of rank {} on {} has ended, as its "
                                                 "agent reports; its last step was {}",
                                                 rank, table.NodeNameOf(rank), info.latest.step)}});
  }
  return verdicts;
}

Hangs FindHangs(const Table& table, Clock::TimePoint now, const DetectorOptions& options) {
  return HangFinder(table, now, options).Run();
}

}  // namespace holdfast::detect
