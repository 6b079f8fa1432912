#include "coordinator/detect/hang.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "coordinator/detect/cut.h"
#include "coordinator/detect/evidence.h"
#include "coordinator/detect/patience.h"
#include "coordinator/detect/waits.h"

namespace holdfast::detect {
namespace {

/// A word this old says nothing about now; a node this long silent is taken for lost.
constexpr Clock::Duration kFresh = std::chrono::seconds(3);
/// Nodes ask each other every second, and the answers of a second take one more: by then all have
/// told who answers them.
constexpr uint64_t kAnswersFollow = 3'000'000'000;  // ns
/// How much younger than what they tell of words may be.
constexpr uint64_t kWordsLag = 3'000'000'000;  // ns
constexpr Clock::Duration kNeverHeard = std::chrono::hours(24);
/// Times what the others needed to come to their first operation.
constexpr int kUnknownPhase = 3;

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
    return hangs;
  }

 private:
  std::vector<Verdict> Find() {
    const auto least = static_cast<uint64_t>(options_.hang_after.count());
    const bool any_old =
        std::any_of(graph_.operations.begin(), graph_.operations.end(),
                    [&](const Operation& operation) { return operation.oldest_ns >= least; });
    if (!any_old) return {};
    if (auto mismatches = Mismatches(least); !mismatches.empty()) return mismatches;
    const auto roots = RootsOf(graph_, least);
    WhoWaits();
    std::vector<Verdict> verdicts;
    for (const std::vector<uint32_t>& root : roots) {
      std::optional<Verdict> verdict;
      if (root.size() > 1) {
        verdict = Circle(root);
      } else if (graph_.is_rank(root.front())) {
        verdict = Hung(graph_.rank_of(root.front()));
      } else {
        verdict = Complete(graph_.operations[root.front()]);
      }
      if (verdict) verdicts.push_back(std::move(*verdict));
    }
    return verdicts;
  }

  Clock::Duration WordAge(uint32_t rank) const {
    const Index node = table_.rank(rank).node;
    return node == kNone ? Clock::Duration::max() : now_ - table_.node(node).as_of;
  }

  std::string NameOf(const Operation& operation) const {
    if (IsPairwise(operation.func)) {
      return fmt::format("a transfer of communicator {:x}", table_.comm(operation.comm).id.value);
    }
    return fmt::format("{} {} of communicator {:x}", ToString(operation.func), operation.seq,
                       table_.comm(operation.comm).id.value);
  }

  /// By operation that waits for a rank: the longest wait.
  void WhoWaits() {
    for (uint32_t i = 0; i < graph_.operations.size(); ++i) {
      for (uint32_t rank : graph_.operations[i].absent) {
        uint32_t& longest = waiting_for_.emplace(rank, i).first->second;
        if (graph_.operations[i].oldest_ns > graph_.operations[longest].oldest_ns) longest = i;
      }
    }
  }

  std::vector<Verdict> Mismatches(uint64_t least) {
    std::vector<Verdict> verdicts;
    for (const Operation& operation : graph_.operations) {
      if (operation.oldest_ns < least || IsPairwise(operation.func) ||
          operation.func == Func::kAllToAll || operation.func == Func::kOther) {
        continue;
      }
      std::map<std::pair<uint64_t, uint8_t>, std::vector<uint32_t>> kinds;
      for (const Operation::Starter& starter : operation.starters) {
        kinds[{starter.flight->bytes, starter.flight->dtype}].push_back(starter.rank);
      }
      if (kinds.size() < 2) continue;
      stall_ns_ = std::max(stall_ns_, operation.oldest_ns);
      Verdict verdict = Program(FaultClass::kSoftwareMismatch);
      verdict.lasting_ns = operation.oldest_ns;
      for (const auto& [kind, ranks] : kinds) {
        verdict.evidence.push_back(
            fmt::format("{} of {} ranks call {} with {} bytes of type {}: {}", ranks.size(),
                        table_.comm(operation.comm).members.size(), NameOf(operation), kind.first,
                        kind.second, RanksInWords(ranks)));
      }
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

  Verdict Program(FaultClass fault) const {
    return {.fault = fault,
            .ranks = {},
            .edge = {},
            .nodes = {},
            .confidence = 0.95,
            .action = Action::kRestartInPlace,
            .evidence = {}};
  }

  /// A send need not be waited for: who has only sends under way in a circle may be the one that
  /// computes or hangs, whom the others wait for.
  std::optional<uint32_t> OnlySender(const std::vector<uint32_t>& members) const {
    std::optional<uint32_t> sender;
    for (uint32_t vertex : members) {
      if (!graph_.is_rank(vertex)) continue;
      const uint32_t rank = graph_.rank_of(vertex);
      const auto& flights = table_.rank(rank).flights;
      const bool only_sends =
          std::none_of(flights.begin(), flights.end(), [](const Flight& flight) {
            return flight.state == FlightState::kStarted && flight.func != Func::kSend;
          });
      if (!only_sends) continue;
      if (sender) return std::nullopt;
      sender = rank;
    }
    return sender;
  }

  std::optional<Verdict> Circle(const std::vector<uint32_t>& members) {
    if (const auto sender = OnlySender(members)) return Hung(*sender);
    uint64_t stuck_ns = ~uint64_t{0};
    uint64_t suspicious = 0;
    uint64_t patience = 0;
    std::map<Index, uint32_t> comms;
    for (uint32_t vertex : members) {
      if (graph_.is_rank(vertex)) {
        if (WordAge(graph_.rank_of(vertex)) > kFresh) return std::nullopt;
        continue;
      }
      const Operation& operation = graph_.operations[vertex];
      ++comms[operation.comm];
      // Each of its operations must be old: words of different times make circles that never were.
      stuck_ns = std::min(stuck_ns, operation.oldest_ns);
      suspicious = std::max(suspicious, patience_.ToSuspect(operation));
      patience = std::max(patience, patience_.ToBlame(operation, kNone, Standing::kStuck, now_));
    }
    stall_ns_ = std::max(stall_ns_, stuck_ns);
    if (stuck_ns < suspicious) return std::nullopt;
    const bool same_comm =
        std::any_of(comms.begin(), comms.end(), [](const auto& entry) { return entry.second > 1; });
    // Ranks of one communicator that call different operations do not agree on the program; over
    // several communicators each may be right by itself.
    Verdict verdict =
        Program(same_comm ? FaultClass::kSoftwareMismatch : FaultClass::kProgramDeadlock);
    verdict.lasting_ns = stuck_ns;
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
    // Who is missing where most ranks are is the one to look at.
    if (largest->absent.size() < largest->starters.size()) {
      for (uint32_t rank : largest->absent) verdict.ranks.push_back(Rank{rank});
    }
    if (stuck_ns < patience) return Suspicion(std::move(verdict), patience);
    return verdict;
  }

  static std::vector<uint32_t> StartersOf(const Operation& operation) {
    std::vector<uint32_t> ranks;
    for (const Operation::Starter& starter : operation.starters) ranks.push_back(starter.rank);
    return ranks;
  }

  /// A rank that others wait for and that waits for nobody. Only suspected when the action is none.
  std::optional<Verdict> Hung(uint32_t rank) {
    const RankInfo& info = table_.rank(rank);
    const auto found = waiting_for_.find(rank);
    if (found == waiting_for_.end()) return std::nullopt;
    const Operation& operation = graph_.operations[found->second];
    const bool stopped = info.stopped_since != Clock::TimePoint::min();
    const bool silent = WordAge(rank) > kFresh;
    if (!stopped && !silent && table_.IsExcused(info)) return LongPhase(rank, operation);
    // Others have waited for the end of its marked phases as well; that is no pause.
    const uint64_t grace = stopped || silent ? 0 : std::min(info.grace_ns, operation.oldest_ns);
    const uint64_t waited = operation.oldest_ns - grace;
    stall_ns_ = std::max(stall_ns_, waited);
    const uint64_t suspicious = stopped ? static_cast<uint64_t>(options_.hang_after.count())
                                        : patience_.ToSuspect(operation);
    if (waited < suspicious) return std::nullopt;

    Verdict verdict{.fault = FaultClass::kComputeHang,
                    .ranks = {Rank{rank}},
                    .edge = {},
                    .nodes = {table_.NodeNameOf(rank)},
                    .confidence = 0.95,
                    .action = Action::kRestartWithoutRoot,
                    .evidence = {},
                    .lasting_ns = waited};
    verdict.evidence.push_back(fmt::format(
        "{} of {} ranks have been in {} for {} (longest); rank {} {}", operation.starters.size(),
        Participants(operation), NameOf(operation), InSeconds(operation.oldest_ns), rank,
        info.word.process_state == 'T' ? "is not running" : "has not started it"));
    if (silent) return Silent(rank, operation, waited, std::move(verdict));
    if (graph_.outdated[rank] || (!stopped && !Seated(rank, operation.comm))) return std::nullopt;
    if (!stopped && (InOperation(rank) || MovedLately(rank, suspicious))) return std::nullopt;
    if (!AbsentLongEnough(rank, operation, suspicious)) return std::nullopt;
    verdict.evidence.push_back(WhereItIs(rank, operation));
    if (stopped && StoppedFor(info) >= options_.hang_after) {
      verdict.confidence = 1;
      return verdict;
    }
    const bool runs = info.word.process_state == 'R' && EnqueuedBy(rank, operation) == nullptr;
    const uint64_t patience =
        patience_.ToBlame(operation, rank, runs ? Standing::kRunning : Standing::kElsewhere, now_);
    if (waited < patience || MovedLately(rank, patience) ||
        !AbsentLongEnough(rank, operation, patience)) {
      return Suspicion(std::move(verdict), patience);
    }
    // Who holds it in a debugger knows.
    if (info.word.process_state == 't') verdict.action = Action::kAlert;
    return verdict;
  }

  /// Others wait for a rank whose node says nothing.
  std::optional<Verdict> Silent(uint32_t rank, const Operation& operation, uint64_t waited,
                                Verdict verdict) {
    const RankInfo& info = table_.rank(rank);
    const auto age = static_cast<uint64_t>(std::min(WordAge(rank), kNeverHeard).count());
    if (age < static_cast<uint64_t>(options_.hang_after.count())) return std::nullopt;
    if (info.node != kNone) {
      // What stopped the node stopped all of its ranks: they are told once.
      if (!silent_nodes_.insert(info.node).second) return std::nullopt;
      verdict.ranks.clear();
      for (uint32_t other = 0; other < table_.world(); ++other) {
        const RankInfo& theirs = table_.rank(other);
        if (theirs.node == info.node && !theirs.word.finished) verdict.ranks.push_back(Rank{other});
      }
    }
    verdict.fault = FaultClass::kDead;
    verdict.confidence = 0.9;
    verdict.evidence.push_back(info.node == kNone
                                   ? fmt::format("nothing was ever heard of rank {}", rank)
                                   : fmt::format("its node {} has been silent for {}",
                                                 table_.NodeNameOf(rank), InSeconds(age)));
    Standing standing = info.node == kNone ? Standing::kElsewhere : Standing::kSilent;
    if (const auto [answered, in_vain] = AnswersOf(table_, info.node, now_, kFresh);
        answered + in_vain > 0) {
      standing = answered > 0 ? Standing::kAgentSilent : Standing::kOutOfReach;
      verdict.evidence.push_back(
          fmt::format("{} of {} nodes that asked it had an answer over the network", answered,
                      answered + in_vain));
      if (answered == 0) verdict.confidence = 1;
    }
    const uint64_t patience = patience_.ToBlame(operation, rank, standing, now_);
    if (std::min(age, waited) < patience) return Suspicion(std::move(verdict), patience);
    return verdict;
  }

  static Verdict Suspicion(Verdict verdict, uint64_t patience) {
    verdict.action = Action::kNone;
    verdict.confidence = std::min(verdict.confidence, 0.5);
    verdict.evidence.push_back(
        fmt::format("suspected; a fault if it lasts for {}", InSeconds(patience)));
    return verdict;
  }

  Clock::Duration StoppedFor(const RankInfo& info) const {
    return table_.node(info.node).as_of - info.stopped_since;
  }

  /// How many ranks an operation needs.
  size_t Participants(const Operation& operation) const {
    return IsPairwise(operation.func) ? 2 : table_.comm(operation.comm).members.size();
  }

  /// It is in an operation whose other end is not known: it may wait there.
  bool InOperation(uint32_t rank) const {
    const auto& flights = table_.rank(rank).flights;
    return std::any_of(flights.begin(), flights.end(), [](const Flight& flight) {
      return flight.state == FlightState::kStarted && IsPairwise(flight.func) && !flight.edge;
    });
  }

  /// Its own agent has named the communicator: what it says of operations there was understood.
  bool Seated(uint32_t rank, Index comm) const {
    const std::vector<Seat>& seats = table_.rank(rank).seats;
    return std::any_of(seats.begin(), seats.end(),
                       [&](const Seat& seat) { return seat.comm == comm; });
  }

  /// The others wait for the first operation of a rank that has marked its start and does not come:
  /// how long that takes is not known, and an operator may know that it is too long.
  std::optional<Verdict> LongPhase(uint32_t rank, const Operation& operation) {
    const RankInfo& info = table_.rank(rank);
    if (info.has_begun() || table_.phase_lengths().Known(info.phases)) return std::nullopt;
    const auto came = now_ - Clock::Duration(static_cast<int64_t>(operation.oldest_ns));
    const auto others = std::max<Clock::Duration>(came - table_.first_heard(), Clock::Duration(0));
    const auto patience = static_cast<uint64_t>(
        std::max<Clock::Duration>(options_.absent_after, kUnknownPhase * others).count());
    if (operation.oldest_ns < patience) return std::nullopt;
    Verdict verdict{.fault = FaultClass::kComputeHang,
                    .ranks = {Rank{rank}},
                    .edge = {},
                    .nodes = {table_.NodeNameOf(rank)},
                    .confidence = 0.6,
                    .action = Action::kAlert,
                    .evidence = {},
                    .lasting_ns = operation.oldest_ns};
    verdict.evidence.push_back(fmt::format(
        "{} of {} ranks have been in {} for {} (longest); rank {} has marked a phase for {} and no "
        "rank has left one: how long it takes is not known; a fault if it lasts for {}",
        operation.starters.size(), Participants(operation), NameOf(operation),
        InSeconds(operation.oldest_ns), rank,
        InSeconds(static_cast<uint64_t>((table_.node(info.node).as_of - info.phase_since).count())),
        InSeconds(static_cast<uint64_t>(table_.phase_lengths().Limit(info.phases).count()))));
    return verdict;
  }

  /// It was waiting elsewhere itself until a short while ago.
  bool MovedLately(uint32_t rank, uint64_t patience) const {
    const RankInfo& info = table_.rank(rank);
    return info.moved_at != Clock::TimePoint::min() &&
           (table_.node(info.node).as_of - info.moved_at).count() <
               static_cast<int64_t>(patience - std::min(patience / 10 * 3, kWordsLag));
  }

  /// The rank's own word must be from a time when the others had already waited for long, and it
  /// must not have left in the meantime. Where completed operations are told they would say so;
  /// else another must have been seen to wait after the rank was seen to be elsewhere.
  bool AbsentLongEnough(uint32_t rank, const Operation& operation, uint64_t patience) const {
    const NodeInfo& node = table_.node(table_.rank(rank).node);
    const bool told =
        !IsPairwise(operation.func) &&
        !table_.comm(operation.comm).completed[static_cast<size_t>(operation.func)].empty();
    for (const Operation::Starter& starter : operation.starters) {
      const auto theirs = table_.node(table_.rank(starter.rank).node).as_of;
      const auto waited = Clock::Duration(starter.flight->age_ns) - (theirs - node.as_of);
      if (waited.count() >= static_cast<int64_t>(patience - std::min(patience / 5, kWordsLag)) &&
          (told || theirs >= node.as_of_before)) {
        return true;
      }
    }
    return false;
  }

  /// What the rank has enqueued and not started of such operations; nullptr: nothing.
  const Flight* EnqueuedBy(uint32_t rank, const Operation& operation) const {
    const auto& flights = table_.rank(rank).flights;
    const auto found = std::find_if(flights.begin(), flights.end(), [&](const Flight& flight) {
      return flight.comm == operation.comm && flight.func == operation.func &&
             flight.state == FlightState::kEnqueued;
    });
    return found == flights.end() ? nullptr : &*found;
  }

  std::string WhereItIs(uint32_t rank, const Operation& operation) const {
    const RankState& word = table_.rank(rank).word;
    if (const Flight* flight = EnqueuedBy(rank, operation)) {
      return fmt::format("rank {} enqueued it {} ago and it does not start: its GPU is stuck", rank,
                         InSeconds(flight->age_ns));
    }
    const std::string_view meaning = word.process_state == 'T'   ? "it is stopped"
                                     : word.process_state == 'Z' ? "it is a zombie"
                                     : word.process_state == 'D' ? "it waits for I/O in the kernel"
                                     : word.process_state == 'S' ? "it sleeps"
                                     : word.process_state == 'R' ? "it runs"
                                     : word.process_state == 't' ? "a debugger holds it"
                                                                 : "its state is not known";
    return fmt::format("rank {} has not called it; process state {}: {}; step {} for {}", rank,
                       word.process_state == 0 ? '?' : word.process_state, meaning, word.step,
                       InSeconds(word.since_step_ns));
  }

  /// All members are in it and none leaves.
  std::optional<Verdict> Complete(const Operation& operation) {
    stall_ns_ = std::max(stall_ns_, operation.youngest_ns);
    const uint64_t suspicious = patience_.ToSuspect(operation);
    if (operation.youngest_ns < suspicious) return std::nullopt;
    // Who has left it and goes on says that it is over, and the others' words are old.
    for (uint32_t rank : operation.left) {
      const auto& flights = table_.rank(rank).flights;
      const bool stuck_too = std::any_of(flights.begin(), flights.end(), [&](const Flight& flight) {
        return flight.age_ns * 2 >= operation.youngest_ns;
      });
      if (!stuck_too) return std::nullopt;
    }
    // A member that has left may be waiting for a rank that is in a marked phase or just left one.
    if (!operation.left.empty() && table_.excused_at() != Clock::TimePoint::min() &&
        now_ - table_.excused_at() < options_.hang_after) {
      return std::nullopt;
    }
    const auto old = std::count_if(
        operation.starters.begin(), operation.starters.end(),
        [&](const Operation::Starter& starter) { return WordAge(starter.rank) > kFresh; });
    if (static_cast<size_t>(old) * 20 > operation.starters.size()) return std::nullopt;
    Verdict verdict{.fault = FaultClass::kCommHang,
                    .ranks = {},
                    .edge = {},
                    .nodes = {},
                    .confidence = 0.5,
                    .action = Action::kRestartInPlace,
                    .evidence = {},
                    .lasting_ns = operation.youngest_ns};
    verdict.evidence.push_back(fmt::format(
        "all {} ranks have started {}, the last one {} ago; it does not finish",
        operation.starters.size(), NameOf(operation), InSeconds(operation.youngest_ns)));
    const bool is_cut = BlameCut(operation, verdict);
    // What looks like one link may be the first that is known of a node that is cut from all.
    const bool to_come = operation.youngest_ns < suspicious + kAnswersFollow;
    if (to_come && verdict.ranks.empty() && AnyInVain(table_, now_, kFresh)) return std::nullopt;
    if (!is_cut) FollowEdges(operation, verdict);
    const uint64_t patience = patience_.ToBlame(
        operation, kNone, is_cut ? Standing::kOutOfReach : Standing::kStuck, now_);
    if (operation.youngest_ns < patience) return Suspicion(std::move(verdict), patience);
    return verdict;
  }

  /// A node or a link that is cut stops all connections, each of which then looks like the one.
  bool BlameCut(const Operation& operation, Verdict& verdict) const {
    std::set<Index> nodes;
    for (const Operation::Starter& starter : operation.starters) {
      nodes.insert(table_.rank(starter.rank).node);
    }
    const auto cut = FindCut(table_, nodes, now_, kFresh);
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
      const auto found = std::find_if(
          operation.starters.begin(), operation.starters.end(),
          [&](const Operation::Starter& one) { return table_.rank(one.rank).node == node; });
      return Rank{found->rank};
    };
    const auto [a, b] = *cut->link;
    verdict.edge = Edge{rank_on(a), rank_on(b)};
    verdict.nodes = {table_.node(a).name, table_.node(b).name};
    return true;
  }

  /// Walks from the least advanced connection to the one that everything behind it waits for.
  void FollowEdges(const Operation& operation, Verdict& verdict) const {
    std::map<uint32_t, const PeerEdge*> edges;
    for (const Operation::Starter& starter : operation.starters) {
      if (starter.flight->edge && starter.flight->edge->state != EdgeState::kUnknown) {
        edges.emplace(starter.rank, &*starter.flight->edge);
      }
    }
    if (edges.empty() && IsPairwise(operation.func)) {
      const Operation::Starter& one = operation.starters.front();
      const bool sends = one.flight->func == Func::kSend;
      const Rank peer = one.flight->edge->peer;
      verdict.edge = sends ? Edge{Rank{one.rank}, peer} : Edge{peer, Rank{one.rank}};
      verdict.nodes = {table_.NodeNameOf(verdict.edge->from.value),
                       table_.NodeNameOf(verdict.edge->to.value)};
      if (verdict.nodes[0] == verdict.nodes[1]) verdict.nodes.pop_back();
      verdict.action = Action::kRestartWithoutRoot;
      verdict.confidence = 0.85;
      verdict.evidence.emplace_back("a transfer has one connection");
      return;
    }
    if (edges.empty()) {
      verdict.evidence.emplace_back("no rank says which of its connections stands still");
      return;
    }
    // On the wire is the end of every chain; else the least advanced connection is its start.
    auto rank_of_state = [](const auto& entry) {
      return std::pair(entry.second->state != EdgeState::kSendWait, entry.second->steps);
    };
    auto at = std::min_element(edges.begin(), edges.end(), [&](const auto& a, const auto& b) {
      return rank_of_state(a) < rank_of_state(b);
    });
    for (size_t steps = 0; steps <= edges.size(); ++steps) {
      const PeerEdge& edge = *at->second;
      if (edge.state != EdgeState::kSendPeerWait && edge.state != EdgeState::kRecvWait) break;
      const auto next = edges.find(edge.peer.value);
      if (next == edges.end()) break;
      at = next;
    }
    BlameEdge(at->first, *at->second, verdict);
  }

  void BlameEdge(uint32_t rank, const PeerEdge& edge, Verdict& verdict) const {
    verdict.action = Action::kRestartWithoutRoot;
    const uint32_t peer = edge.peer.value;
    switch (edge.state) {
      case EdgeState::kSendWait:
      case EdgeState::kRecvWait: {
        const bool sends = edge.state == EdgeState::kSendWait;
        verdict.edge = sends ? Edge{Rank{rank}, Rank{peer}} : Edge{Rank{peer}, Rank{rank}};
        verdict.nodes = {table_.NodeNameOf(rank), table_.NodeNameOf(peer)};
        verdict.confidence = sends ? 0.95 : 0.8;
        verdict.evidence.push_back(
            sends ? fmt::format("rank {}'s transfer {} to rank {} is on the wire and not "
                                "acknowledged; no other connection is further behind",
                                rank, edge.steps, peer)
                  : fmt::format("rank {} waits for transfer {} from rank {}, which waits for "
                                "nobody",
                                rank, edge.steps, peer));
        break;
      }
      case EdgeState::kSendPeerWait:
        verdict.ranks = {Rank{peer}};
        verdict.nodes = {table_.NodeNameOf(peer)};
        verdict.confidence = 0.85;
        verdict.evidence.push_back(
            fmt::format("rank {} may not send: rank {} does not take what it has", rank, peer));
        break;
      case EdgeState::kSendGpuWait:
      case EdgeState::kRecvFlushWait:
      case EdgeState::kRecvGpuWait:
      case EdgeState::kUnknown:
        verdict.ranks = {Rank{rank}};
        verdict.nodes = {table_.NodeNameOf(rank)};
        verdict.confidence = 0.8;
        verdict.evidence.push_back(
            fmt::format("rank {}'s own GPU does not move data for rank {}", rank, peer));
        break;
    }
    if (verdict.nodes.size() == 2 && verdict.nodes[0] == verdict.nodes[1]) verdict.nodes.pop_back();
  }

  const Table& table_;
  const Clock::TimePoint now_;
  const DetectorOptions& options_;
  const WaitsFor graph_;
  const Patience patience_;
  uint64_t stall_ns_ = 0;
  std::set<Index> silent_nodes_;              // that are told
  std::map<uint32_t, uint32_t> waiting_for_;  // absent rank → operation
};

}  // namespace

std::vector<Verdict> FindDead(const Table& table) {
  std::vector<Verdict> verdicts;
  for (uint32_t rank = 0; rank < table.world(); ++rank) {
    const RankInfo& info = table.rank(rank);
    if (info.node == kNone || info.word.alive || info.word.finished) continue;
    verdicts.push_back({.fault = FaultClass::kDead,
                        .ranks = {Rank{rank}},
                        .edge = {},
                        .nodes = {table.NodeNameOf(rank)},
                        .confidence = 1,
                        .action = Action::kRestartWithoutRoot,
                        .evidence = {fmt::format("the process of rank {} on {} is gone (its agent "
                                                 "watches it); its last step was {}",
                                                 rank, table.NodeNameOf(rank), info.word.step)}});
  }
  return verdicts;
}

Hangs FindHangs(const Table& table, Clock::TimePoint now, const DetectorOptions& options) {
  return HangFinder(table, now, options).Run();
}

}  // namespace holdfast::detect
