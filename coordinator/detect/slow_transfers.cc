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
constexpr size_t kMatrixCellsPerMember = 16;
constexpr size_t kWantedMax = 64;
constexpr Clock::Duration kScanEvery = std::chrono::seconds(60);
constexpr Clock::Duration kScanFor = std::chrono::seconds(10);
constexpr uint64_t kScanOperations = 8;
// The operations of some programs are minutes apart. A scan waits for them.
constexpr Clock::Duration kScanRareAfter = std::chrono::seconds(60);
constexpr Clock::Duration kScanAtMost = std::chrono::minutes(15);
constexpr uint64_t kScanRareOperations = 4;
constexpr uint32_t kScanCells = 4;       // needed to know the usual cost
constexpr double kScanShare = 0.25;      // by which a connection must be slower than the others
constexpr double kExplainedShare = 0.5;  // of an operation's slowdown, by the slowest connection
constexpr size_t kFabricCommsMin = 4;

constexpr Clock::Duration kRecordDelay = std::chrono::seconds(2);

}  // namespace

Verdict SlowTransfers::VerdictOf(const std::optional<TransferMonitor::Slow>& slow,
                                 const DelayMatrix::Blame& blame, const Pool& pool,
                                 const Table& table, Index comm) {
  Verdict verdict{.fault = FaultClass::kCommSlow,
                  .ranks = {},
                  .edge = {},
                  .nodes = {},
                  .confidence = 0.85,
                  .action = Action::kAlert,
                  .evidence = {}};
  if (slow) {
    verdict.evidence.push_back(fmt::format(
        "{} of {} bytes in communicator {:x} takes {} instead of {} (+{:.0f} %), for {:.0f} s, "
        "z = {:.0f}",
        NameOf(slow->kind), slow->bytes, table.comm(comm).id.value,
        InSeconds(static_cast<uint64_t>(slow->now_ns)),
        InSeconds(static_cast<uint64_t>(slow->usual_ns)), (slow->now_ns / slow->usual_ns - 1) * 100,
        slow->lasting_s, slow->z));
  } else {
    verdict.evidence.emplace_back(
        "two comparisons of all connections, a minute apart, found the same one");
  }
  if (blame.rank) {
    verdict.ranks = {*blame.rank};
    verdict.nodes = {table.NodeNameOf(blame.rank->value)};
    verdict.evidence.push_back(fmt::format(
        "{} of {} connections that rank {} {} are slow; the slowest, rank {} to rank {}, waits "
        "{:.1f} times as long per byte as the usual connection, z = {:.0f}",
        blame.hot, blame.populated, blame.rank->value, blame.sends ? "sends on" : "receives on",
        blame.edge.from.value, blame.edge.to.value, blame.ratio, blame.z));
  } else {
    verdict.edge = blame.edge;
    verdict.nodes = {table.NodeNameOf(blame.edge.from.value),
                     table.NodeNameOf(blame.edge.to.value)};
    if (verdict.nodes[0] == verdict.nodes[1]) verdict.nodes.pop_back();
    verdict.evidence.push_back(fmt::format(
        "rank {} to rank {} waits {:.1f} times as long per byte as the usual connection, z = "
        "{:.0f} ({} operations); either end may be the cause: test both nodes",
        blame.edge.from.value, blame.edge.to.value, blame.ratio, blame.z,
        pool.matrix.operations()));
  }
  return verdict;
}

void SlowTransfers::Add(const RankTransfers& transfers, Index comm, const Watches& watches,
                        const Table& table) {
  const CommClass of = ClassOf(comm, watches, table);
  if (const auto pool = pools_.find(of); pool != pools_.end()) pool->second.matrix.Add(transfers);
  if (scanned_at_ == Clock::TimePoint()) return;
  scans_.try_emplace(of, kMatrixCellsPerMember * table.world()).first->second.matrix.Add(transfers);
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

std::vector<Verdict> SlowTransfers::Find(const Watches& watches, const Table& table,
                                         Clock::TimePoint now, Clock::TimePoint last_operation) {
  wanted_.clear();
  for (const auto& watch : watches) {
    if (watch) longest_ended_ = std::max(longest_ended_, watch->transfers.longest_ended());
  }
  size_t watched = 0;
  size_t slow_count = 0;
  // If congestion has ended before without help, more congestion must last longer to be reported.
  const auto min_duration = std::clamp<Clock::Duration>(longest_ended_ * 3 / 2, kSlowMin, kSlowMax);
  std::map<CommClass, std::pair<Index, TransferMonitor::Slow>> slowest;
  for (Index comm = 0; comm < watches.size(); ++comm) {
    if (!watches[comm]) continue;
    ++watched;
    const auto slow = watches[comm]->transfers.slow(min_duration);
    if (!slow) continue;
    ++slow_count;
    const auto [at, first] = slowest.try_emplace(ClassOf(comm, watches, table), comm, *slow);
    if (!first && at->second.second.z < slow->z) at->second = {comm, *slow};
  }
  std::erase_if(pools_, [&](const auto& pool) { return slowest.count(pool.first) == 0; });
  std::optional<Verdict> widespread;
  std::vector<Verdict> found;
  for (const auto& [of, example] : slowest) {
    Pool& pool = OpenPool(of, table, now);
    for (Index comm = 0; comm < watches.size() && wanted_.size() < kWantedMax; ++comm) {
      if (watches[comm] && ClassOf(comm, watches, table) == of)
        wanted_.push_back(table.comm(comm).id);
    }
    const auto& [comm, slow] = example;
    const bool enough =
        pool.matrix.operations() >= kMatrixOperations && now - pool.since >= kMatrixMin;
    const auto blame = enough ? pool.matrix.Find(options_) : std::nullopt;
    pool.widespread |= blame && blame->widespread;
    // The slowest connection must explain a large part of the operation's slowdown.
    const bool explains =
        blame && blame->ratio - 1 >= kExplainedShare * (slow.now_ns / slow.usual_ns - 1);
    if (explains && !pool.widespread) {
      found.push_back(VerdictOf(slow, *blame, pool, table, comm));
    } else if (pool.widespread || now - pool.since > kMatrixWait) {
      Verdict verdict = VerdictOf(slow, {}, pool, table, comm);
      verdict.edge.reset();
      verdict.nodes.clear();
      verdict.confidence = 0.5;
      verdict.evidence.back() = "no single connection stands out";
      if (!pool.widespread) {
        found.push_back(std::move(verdict));
        continue;
      }
      verdict.fault = FaultClass::kFabric;
      verdict.evidence.back() = "the slow connections have no common end: no rank is blamed";
      if (!widespread) widespread = std::move(verdict);
    }
  }
  if (!widespread && slow_count >= kFabricCommsMin && slow_count * 2 >= watched && found.empty()) {
    widespread = {.fault = FaultClass::kFabric,
                  .ranks = {},
                  .edge = {},
                  .nodes = {},
                  .confidence = 0.7,
                  .action = Action::kAlert,
                  .evidence = {fmt::format(
                      "transfers are slow in {} of {} communicators at once: no rank is blamed",
                      slow_count, watched)}};
  }
  if (widespread) {
    return {std::move(*widespread)};
  }
  if (slowest.empty()) Scan(table, now, last_operation, found);
  return found;
}

/// Whether the scan since `begin` has measured as many operations. Also if operations have ended
/// and none was measured: the job does not measure its connections.
bool SlowTransfers::HasEnoughToCompare(Clock::TimePoint begin, Clock::TimePoint now,
                                       Clock::TimePoint last_operation, uint64_t operations) const {
  if (scans_.empty()) return last_operation > begin && now - last_operation > kRecordDelay;
  return std::any_of(scans_.begin(), scans_.end(), [&](const auto& scan) {
    return scan.second.matrix.operations() >= operations;
  });
}

/// Compares all connections with each other from time to time. A connection that was slow from the
/// start has no past to compare with, and a job with only sends and receives has no operation in
/// which all ranks take part.
void SlowTransfers::Scan(const Table& table, Clock::TimePoint now, Clock::TimePoint last_operation,
                         std::vector<Verdict>& verdicts) {
  verdicts.insert(verdicts.end(), scan_verdicts_.begin(), scan_verdicts_.end());
  if (scanned_at_ == Clock::TimePoint()) scanned_at_ = now;
  const Clock::Duration since = now - scanned_at_;
  if (since < kScanEvery) return;
  const Clock::Duration scanning = since - kScanEvery;
  const uint64_t operations = scanning < kScanRareAfter ? kScanOperations : kScanRareOperations;
  const bool enough = HasEnoughToCompare(scanned_at_ + kScanEvery, now, last_operation, operations);
  if (scanning < kScanFor || (!enough && scanning < kScanAtMost)) {
    for (Index comm = 0; comm < table.comms().size() && wanted_.size() < kWantedMax; ++comm) {
      if (table.comm(comm).members.size() > 1) wanted_.push_back(table.comm(comm).id);
    }
    return;
  }
  scanned_at_ = now;
  std::optional<Edge> worst;
  scan_verdicts_.clear();
  for (const auto& [of, pool] : scans_) {
    DetectorOptions strict = options_;
    strict.slow_transfer_share = kScanShare;
    const auto blame =
        pool.matrix.operations() >= operations ? pool.matrix.Find(strict) : std::nullopt;
    if (!blame || blame->widespread || blame->of < kScanCells) continue;
    worst = blame->edge;
    if (scan_found_ != worst) continue;
    scan_verdicts_.push_back(VerdictOf(std::nullopt, *blame, pool, table, 0));
  }
  scan_found_ = worst;
  scans_.clear();
}

}  // namespace holdfast::detect
