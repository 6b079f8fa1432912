#include "coordinator/detect/slow_transfers.h"

#include <fmt/format.h>

#include <algorithm>

#include "coordinator/detect/evidence.h"

namespace holdfast::detect {
namespace {

constexpr uint64_t kMatrixOperations = 16;
constexpr Clock::Duration kMatrixMin = std::chrono::seconds(5);
constexpr Clock::Duration kSlowMin = std::chrono::seconds(20);  // least length of a slowdown
constexpr Clock::Duration kSlowMax = std::chrono::seconds(120);
constexpr Clock::Duration kMatrixWait = std::chrono::seconds(60);
constexpr Clock::Duration kOthersWait = std::chrono::seconds(20);  // for other slow classes
constexpr Clock::Duration kProbeMin = std::chrono::seconds(10);    // if no connection is measured
constexpr size_t kMatrixCellsPerMember = 16;
constexpr size_t kWantedMax = 64;
constexpr double kExplainedShare = 0.5;  // of an operation's slowdown, by the slowest connection
constexpr size_t kFabricCommsMin = 4;
/// After congestion, for which one connection is named only if comparisons keep finding it.
constexpr Clock::Duration kCongested = std::chrono::minutes(30);

Verdict SlowVerdict(std::string evidence) {
  return {.fault = FaultClass::kCommSlow,
          .ranks = {},
          .edge = {},
          .nodes = {},
          .confidence = 0.5,
          .action = Action::kAlert,
          .evidence = {std::move(evidence)}};
}

/// Describes an operation that is slower than before.
std::string InWords(const TransferMonitor::Slow& slow, const CommInfo& comm) {
  return fmt::format(
      "{} of {} bytes in communicator {:x} takes {} instead of {} (+{:.0f} %), for {:.0f} s, z = "
      "{:.0f}",
      NameOf(slow.kind), slow.bytes, comm.id.value, InSeconds(static_cast<uint64_t>(slow.now_ns)),
      InSeconds(static_cast<uint64_t>(slow.usual_ns)), (slow.now_ns / slow.usual_ns - 1) * 100,
      slow.lasting_s, slow.z);
}

/// Names the rank or the connection. `than`: what the connection is compared with.
void Name(const DelayMatrix::Blame& blame, std::string_view than, uint64_t operations,
          const Table& table, Verdict& verdict) {
  verdict.confidence = 0.85;
  const auto [from, to] = blame.edge;
  if (blame.changed && blame.rank) {
    verdict.ranks = {*blame.rank};
    verdict.nodes = {table.NodeNameOf(blame.rank->value)};
    verdict.evidence.push_back(fmt::format(
        "{} of {} connections are slower than before, all of rank {}; the slowest, rank {} to rank "
        "{}, waits {:.1f} times as long per byte",
        blame.hot_edges.size(), blame.of, blame.rank->value, from.value, to.value, blame.ratio));
    return;
  }
  if (blame.rank) {
    verdict.ranks = {*blame.rank};
    verdict.nodes = {table.NodeNameOf(blame.rank->value)};
    verdict.evidence.push_back(fmt::format(
        "{} of {} connections that rank {} {} are slow; the slowest, rank {} to rank {}, waits "
        "{:.1f} times as long per byte as {}, z = {:.0f}",
        blame.hot, blame.populated, blame.rank->value, blame.sends ? "sends on" : "receives on",
        from.value, to.value, blame.ratio, than, blame.z));
    return;
  }
  verdict.edge = blame.edge;
  verdict.nodes = {table.NodeNameOf(from.value), table.NodeNameOf(to.value)};
  if (verdict.nodes[0] == verdict.nodes[1]) verdict.nodes.pop_back();
  verdict.evidence.push_back(
      fmt::format("rank {} to rank {} waits {:.1f} times as long per byte as {}{} ({} operations); "
                  "either end may be the cause: test both nodes",
                  from.value, to.value, blame.ratio, than,
                  blame.changed ? "" : fmt::format(", z = {:.0f}", blame.z), operations));
}

/// Names the connection of a group of two if it is the only slow one of its class and all slow
/// communicators have a common rank: the operation has no other connection. Otherwise no connection
/// is known.
void NamePair(bool alone, const CommInfo& comm, const Table& table, Verdict& verdict) {
  if (comm.members.size() != 2 || !alone) {
    verdict.evidence.emplace_back("no single connection stands out");
    return;
  }
  verdict.edge = Edge{Rank{comm.members[0]}, Rank{comm.members[1]}};
  verdict.nodes = {table.NodeNameOf(comm.members[0]), table.NodeNameOf(comm.members[1])};
  if (verdict.nodes[0] == verdict.nodes[1]) verdict.nodes.pop_back();
  verdict.evidence.push_back(fmt::format(
      "only rank {} and rank {} take part, and other groups of two are not slow; either end may be "
      "the cause: test both",
      comm.members[0], comm.members[1]));
}

constexpr std::string_view kUsualConnection = "the usual connection";

}  // namespace

void SlowTransfers::Add(const RankTransfers& transfers, Index comm, const Watches& watches,
                        const Table& table) {
  const CommClass of = ClassOf(comm, watches, table);
  if (const auto pool = pools_.find(of); pool != pools_.end()) pool->second.matrix.Add(transfers);
  scan_.Add(transfers, of, table.world());
}

SlowTransfers::Pool& SlowTransfers::OpenPool(const CommClass& of, const Table& table,
                                             Clock::TimePoint now) {
  const auto found = pools_.find(of);
  if (found != pools_.end()) return found->second;
  size_t members = 0;
  for (const CommInfo& comm : table.comms()) members += comm.members.size();
  Pool& pool = pools_.try_emplace(of, kMatrixCellsPerMember * members).first->second;
  pool.since = now;
  return pool;
}

/// Learns from slow transfers that have ended: congestion ends without help.
void SlowTransfers::LearnFromEnded(const Watches& watches, Clock::TimePoint now) {
  uint64_t ended = 0;
  for (const auto& watch : watches) {
    if (!watch) continue;
    ended += watch->transfers.ended();
    longest_ended_ = std::max(longest_ended_, watch->transfers.longest_ended());
  }
  if (ended > ended_) congested_until_ = now + kCongested;
  ended_ = ended;
}

SlowTransfers::Present SlowTransfers::PresentOf(const Watches& watches, const Table& table) const {
  // If congestion has ended before without help, more congestion must last longer to be reported.
  const auto min_duration = std::clamp<Clock::Duration>(longest_ended_ * 3 / 2, kSlowMin, kSlowMax);
  Present present;
  std::map<uint32_t, uint32_t> slowing_of_rank;
  uint32_t slowing = 0;
  for (Index comm = 0; comm < watches.size(); ++comm) {
    if (!watches[comm]) continue;
    ++present.watched;
    if (!watches[comm]->transfers.slowing()) continue;
    ++slowing;
    for (const uint32_t rank : table.comm(comm).members) ++slowing_of_rank[rank];
    const CommClass of = ClassOf(comm, watches, table);
    present.slowing.insert(of);
    const auto slow = watches[comm]->transfers.slow(min_duration);
    if (!slow) continue;
    ++present.slow;
    const auto [at, first] = present.classes.try_emplace(of, SlowClass{comm, *slow});
    ++at->second.communicators;
    if (at->second.slow.z < slow->z) {
      at->second.comm = comm;
      at->second.slow = *slow;
    }
  }
  present.common_rank = std::any_of(slowing_of_rank.begin(), slowing_of_rank.end(),
                                    [&](auto& entry) { return entry.second == slowing; });
  return present;
}

/// Asks for measurements of the connections of slow classes, and searches the measured ones for the
/// cause.
void SlowTransfers::Measure(const Present& present, const Watches& watches, const Table& table,
                            Clock::TimePoint now) {
  std::erase_if(pools_, [&](const auto& pool) { return !present.classes.contains(pool.first); });
  for (const auto& [of, example] : present.classes) {
    Pool& pool = OpenPool(of, table, now);
    for (Index comm = 0; comm < watches.size() && wanted_.size() < kWantedMax; ++comm) {
      if (watches[comm] && ClassOf(comm, watches, table) == of)
        wanted_.push_back(table.comm(comm).id);
    }
    const bool enough =
        pool.matrix.operations() >= kMatrixOperations && now - pool.since >= kMatrixMin;
    pool.blame = enough ? pool.matrix.Find(options_) : std::nullopt;
    pool.widespread |= pool.blame && pool.blame->widespread;
    // The slowest connection must explain a large part of the operation's slowdown.
    const double slowdown = example.slow.now_ns / example.slow.usual_ns - 1;
    if (pool.blame && pool.blame->ratio - 1 < kExplainedShare * slowdown) pool.blame.reset();
  }
}

/// Whether the slow connections of different classes have no common end.
bool SlowTransfers::HaveNoCommonEnd() const {
  std::map<uint32_t, size_t> classes_of_rank;
  size_t classes = 0;
  for (const auto& [of, pool] : pools_) {
    if (!pool.blame || pool.widespread) continue;
    ++classes;
    ++classes_of_rank[pool.blame->edge.from.value];
    ++classes_of_rank[pool.blame->edge.to.value];
  }
  return classes > 0 && std::none_of(classes_of_rank.begin(), classes_of_rank.end(),
                                     [&](const auto& entry) { return entry.second == classes; });
}

/// Whether the connections of all slow classes are measured, which may have another end.
bool SlowTransfers::AreMeasured(const std::set<CommClass>& classes) const {
  return std::all_of(classes.begin(), classes.end(), [&](const CommClass& of) {
    const auto pool = pools_.find(of);
    return pool != pools_.end() && pool->second.matrix.operations() >= kMatrixOperations;
  });
}

/// Returns what is known about the slow transfers of a class, if it is certain enough or no more
/// can be expected. Of class `kFabric` if no rank is to blame.
std::optional<Verdict> SlowTransfers::Judge(const CommClass& of, const Present& present,
                                            const Table& table, Clock::TimePoint now,
                                            bool probed) const {
  const SlowClass& example = present.classes.at(of);
  const Pool& pool = pools_.at(of);
  const CommInfo& comm = table.comm(example.comm);
  const uint64_t operations = pool.matrix.operations();
  Verdict verdict = SlowVerdict(InWords(example.slow, comm));
  if (pool.widespread) {
    verdict.fault = FaultClass::kFabric;
    verdict.evidence.emplace_back("the slow connections have no common end: no rank is blamed");
    return verdict;
  }
  const Clock::Duration waited = now - pool.since;
  if (pool.blame) {
    const bool alone = waited >= kOthersWait || AreMeasured(present.slowing);
    if (!alone || congested(now)) return std::nullopt;
    Name(*pool.blame, kUsualConnection, operations, table, verdict);
    return verdict;
  }
  const bool located = probed && operations == 0 && waited >= kProbeMin;
  if (!located && waited <= kMatrixWait) return std::nullopt;
  if (const auto changed = scan_.FindChanged(of, pool.matrix.Costs());
      changed && !changed->widespread) {
    if (congested(now)) return std::nullopt;
    Name(*changed, "before", operations, table, verdict);
  } else {
    NamePair(example.communicators == 1 && present.common_rank, comm, table, verdict);
  }
  return verdict;
}

std::vector<Verdict> SlowTransfers::Find(const Watches& watches, const Table& table,
                                         Clock::TimePoint now, const Signals& signals) {
  wanted_.clear();
  LearnFromEnded(watches, now);
  const Present present = PresentOf(watches, table);
  Measure(present, watches, table, now);
  const bool no_common_end = HaveNoCommonEnd();
  std::optional<Verdict> widespread;
  std::vector<Verdict> found;
  for (auto& [of, pool] : pools_) {
    pool.widespread |= pool.blame && no_common_end;
    auto verdict = Judge(of, present, table, now, signals.probed);
    if (!verdict) continue;
    if (verdict->fault != FaultClass::kFabric) {
      found.push_back(*std::move(verdict));
    } else if (!widespread) {
      widespread = std::move(verdict);
    }
  }
  if (!widespread && present.slow >= kFabricCommsMin && present.slow * 2 >= present.watched &&
      found.empty()) {
    widespread = {.fault = FaultClass::kFabric,
                  .ranks = {},
                  .edge = {},
                  .nodes = {},
                  .confidence = 0.7,
                  .action = Action::kAlert,
                  .evidence = {fmt::format(
                      "transfers are slow in {} of {} communicators at once: no rank is blamed",
                      present.slow, present.watched)}};
  }
  if (widespread) {
    congested_until_ = now + kCongested;
    found = {std::move(*widespread)};
  }
  if (present.classes.empty() || congested(now)) {
    Scan(table, now, {signals.last_operation, signals.longer, congested(now)}, found);
  }
  return found;
}

/// Adds what the periodic comparison of all connections has found.
void SlowTransfers::Scan(const Table& table, Clock::TimePoint now,
                         const ConnectionScan::Signals& signals, std::vector<Verdict>& verdicts) {
  scan_.Advance(now, signals);
  if (scan_.congested_at() == now) congested_until_ = now + kCongested;
  for (Index comm = 0; scan_.measures() && comm < table.comms().size(); ++comm) {
    if (wanted_.size() == kWantedMax) break;
    const CommInfo& info = table.comm(comm);
    const bool wanted = std::find(wanted_.begin(), wanted_.end(), info.id) != wanted_.end();
    if (info.members.size() > 1 && !wanted) wanted_.push_back(info.id);
  }
  for (const ConnectionScan::Slow& slow : scan_.slow()) {
    const auto lasting = std::chrono::duration<double>(slow.lasting);
    Verdict& verdict = verdicts.emplace_back(SlowVerdict(fmt::format(
        "all comparisons of the connections have found it for {:.0f} s", lasting.count())));
    Name(slow.blame, slow.past ? "before" : kUsualConnection, slow.operations, table, verdict);
  }
}

}  // namespace holdfast::detect
