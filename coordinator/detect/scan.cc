#include "coordinator/detect/scan.h"

#include <algorithm>
#include <utility>

namespace holdfast::detect {
namespace {

constexpr Clock::Duration kPause = std::chrono::seconds(60);  // between comparisons
constexpr Clock::Duration kLength = std::chrono::seconds(10);
/// Of the comparisons that follow one that has found a slow connection, without a pause.
constexpr Clock::Duration kFollowing = std::chrono::seconds(20);
/// For which the same connection must be found. Congestion is usually shorter.
constexpr Clock::Duration kLasting = std::chrono::seconds(60);
constexpr Clock::Duration kLastingCongested = std::chrono::seconds(90);
constexpr uint64_t kOperations = 8;
// The operations of some programs are minutes apart. A comparison waits for them, and measures
// fewer. The next one begins at once: to measure rare operations costs little.
constexpr Clock::Duration kRareAfter = std::chrono::seconds(60);
constexpr Clock::Duration kAtMost = std::chrono::minutes(15);
constexpr uint64_t kRareOperations = 3;
constexpr uint32_t kOthers = 4;          // connections needed to know the usual cost
constexpr uint32_t kFewConnections = 6;  // of three ranks: four of them are those of one rank
constexpr double kSlower = 0.25;         // by which a connection must be slower
constexpr size_t kCellsPerMember = 16;
constexpr Clock::Duration kRecordsArrive = std::chrono::seconds(2);

}  // namespace

ConnectionScan::ConnectionScan(const DetectorOptions& options)
    : options_([&] {
        DetectorOptions strict = options;
        strict.slow_transfer_share = kSlower;
        return strict;
      }()) {}

void ConnectionScan::Add(const RankTransfers& transfers, const CommClass& of, uint32_t world) {
  if (measures_)
    groups_.try_emplace(of, kCellsPerMember * world).first->second.matrix.Add(transfers);
}

uint64_t ConnectionScan::OperationsNeeded(Clock::TimePoint now) const {
  return now - begin_ < kRareAfter ? kOperations : kRareOperations;
}

/// Whether enough operations were measured. Also if later operations have ended and none was
/// measured: the job does not measure its connections.
bool ConnectionScan::HasEnough(Clock::TimePoint now, Clock::TimePoint last_operation) const {
  uint64_t most = 0;
  for (const auto& [of, group] : groups_) most = std::max(most, group.matrix.operations());
  if (most > 0) return most >= OperationsNeeded(now);
  return last_operation > begin_ + kRecordsArrive && now - last_operation > kRecordsArrive;
}

void ConnectionScan::Advance(Clock::TimePoint now, const Signals& signals) {
  if (begin_ == Clock::TimePoint()) begin_ = now + kPause;
  if (signals.longer && !longer_ && !measures_) begin_ = now;
  longer_ = signals.longer;
  if (now < begin_) return;
  const bool follows = std::any_of(groups_.begin(), groups_.end(),
                                   [](const auto& group) { return !group.second.hot.empty(); });
  const Clock::Duration length = now - begin_;
  const bool ends = length >= (follows ? kFollowing : kLength) &&
                    (length >= kAtMost || HasEnough(now, signals.last_operation));
  if (ends) {
    const bool rare = OperationsNeeded(now) == kRareOperations;
    const bool found = End(now, signals.congested ? kLastingCongested : kLasting);
    begin_ = now + (rare || (found && slow_.empty()) ? Clock::Duration(0) : kPause);
  }
  measures_ = now >= begin_;
}

/// Returns the costs as multiples of the usual ones of the past, where these are known.
std::vector<DelayMatrix::Cost> ConnectionScan::ChangesOf(
    const Group& group, const std::vector<DelayMatrix::Cost>& costs) {
  std::vector<DelayMatrix::Cost> changes;
  for (const DelayMatrix::Cost& cost : costs) {
    const auto usual = group.usual.find(cost.edge);
    const double before = usual == group.usual.end() ? 0 : usual->second.Median();
    if (before > 0) changes.push_back({cost.edge, cost.value / before});
  }
  return changes;
}

std::optional<DelayMatrix::Blame> ConnectionScan::FindChanged(
    const CommClass& of, const std::vector<DelayMatrix::Cost>& costs) const {
  const auto group = groups_.find(of);
  if (group == groups_.end()) return std::nullopt;
  return DelayMatrix::FindChanged(ChangesOf(group->second, costs), 1 + kSlower);
}

/// Compares the connections with each other, and if none stands out, with their own past.
std::optional<ConnectionScan::Slow> ConnectionScan::Compare(const Group& group) const {
  std::vector<DelayMatrix::Cost> costs = group.matrix.Costs();
  const uint64_t operations = group.matrix.operations();
  if (costs.size() >= kOthers) {
    if (auto blame = DelayMatrix::Find(costs, options_)) {
      return Slow{.blame = *blame, .past = false, .operations = operations};
    }
  }
  const std::vector<DelayMatrix::Cost> changes = ChangesOf(group, costs);
  auto blame = costs.size() <= kFewConnections ? DelayMatrix::FindChanged(changes, 1 + kSlower)
                                               : DelayMatrix::Find(changes, options_);
  // Another connection may have become faster.
  if (!blame || blame->worst < 1 + kSlower) return std::nullopt;
  return Slow{.blame = *blame, .past = true, .operations = operations};
}

/// Whether the edge belongs to what is blamed: one of the slow connections of the rank, or a
/// connection between the two ranks.
bool ConnectionScan::IsPartOf(const DelayMatrix::Blame& blame, const Edge& edge) {
  return blame.rank || edge == blame.edge || edge == Edge{blame.edge.to, blame.edge.from};
}

/// Ends a comparison. Returns whether it has found a slow connection. `lasting`: for which a
/// connection must be slow.
bool ConnectionScan::End(Clock::TimePoint now, Clock::Duration lasting) {
  bool found = false;
  slow_.clear();
  for (auto& [of, group] : groups_) {
    const bool enough = group.matrix.operations() >= OperationsNeeded(now);
    auto slow = enough ? Compare(group) : std::nullopt;
    if (enough && !slow) {
      for (const DelayMatrix::Cost& cost : group.matrix.Costs()) {
        group.usual[cost.edge].Add(cost.value);
      }
    }
    group.matrix.Clear();
    const std::map<Key, Clock::TimePoint> before = std::exchange(group.hot, {});
    if (slow ? slow->blame.widespread : enough && !before.empty()) congested_at_ = now;
    if (!slow || slow->blame.widespread) continue;
    found = true;
    Clock::TimePoint since = begin_;
    for (const Edge& edge : slow->blame.hot_edges) {
      const Key key(edge.from.value, edge.to.value);
      const auto known = before.find(key);
      group.hot[key] = known == before.end() ? begin_ : known->second;
      if (IsPartOf(slow->blame, edge)) since = std::min(since, group.hot[key]);
    }
    slow->lasting = now - since;
    if (slow->lasting >= lasting && since < begin_) slow_.push_back(std::move(*slow));
  }
  return found;
}

}  // namespace holdfast::detect
