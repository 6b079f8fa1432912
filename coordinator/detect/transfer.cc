#include "coordinator/detect/transfer.h"

#include <algorithm>
#include <bit>

namespace holdfast::detect {
namespace {

constexpr size_t kSeriesMax = 8;
constexpr uint64_t kBytesLeast = uint64_t{64} << 10U;  // shorter transfers measure latency
constexpr uint32_t kFirstIgnored = 3;
constexpr size_t kHistoryMin = 6;          // stretches
constexpr uint32_t kSlowStretchesMin = 3;  // consecutive, each at least one iteration
constexpr Clock::Duration kStretch = std::chrono::seconds(5);
constexpr Clock::Duration kFirstStretch = std::chrono::seconds(1);
constexpr double kOutlierFactor = 5;     // times the median of a stretch
constexpr double kCellSpreadMin = 0.01;  // of the median
constexpr size_t kCellMessagesMin = 3;   // one of them may be an outlier
constexpr double kHotShare = 0.6;        // of the slowest cell's excess: the same cause is assumed

}  // namespace

void TransferMonitor::Add(const GatheredOperation& operation, double iteration_ns) {
  // Require nearly all members. Otherwise the last one to join may be missing.
  if (uint64_t{operation.count} * 10 < operation.samples.size() * 9) return;
  if (operation.bytes < kBytesLeast) return;
  uint64_t least = ~uint64_t{0};
  for (const Sample& sample : operation.samples) {
    if (sample.present()) least = std::min(least, sample.duration_ns());
  }
  const uint32_t key = static_cast<uint32_t>(operation.kind) << 24U |
                       static_cast<uint32_t>(std::bit_width(operation.bytes)) << 16U |
                       static_cast<uint32_t>(operation.algorithm) << 8U |
                       static_cast<uint32_t>(operation.protocol);
  auto series = std::find_if(series_.begin(), series_.end(),
                             [&](const Series& known) { return known.key == key; });
  if (series == series_.end()) {
    if (series_.size() >= kSeriesMax) return;
    series = series_.emplace(series_.end());
    series->key = key;
    series->kind = operation.kind;
  }
  if (series->seen++ < kFirstIgnored) return;
  series->bytes = operation.bytes;
  // First stretches are shorter, since a fault may occur soon after the start.
  const auto least_stretch = series->usual.size() < kHistoryMin ? kFirstStretch : kStretch;
  const auto stretch = std::max(least_stretch, Clock::Duration(static_cast<int64_t>(iteration_ns)));
  if (series->costs.size() == 0) {
    series->begin = operation.since;
  } else if (operation.since - series->begin >= stretch) {
    EndStretch(*series);
    series->begin = operation.since;
  }
  series->last = operation.since;
  series->costs.Add(static_cast<double>(least) /
                    static_cast<double>(std::max<uint64_t>(operation.bytes, 1)));
}

/// Ends a stretch with its mean cost. Outliers are clipped: packet loss delays few operations, but
/// by much.
void TransferMonitor::EndStretch(Series& series) {
  const double most = kOutlierFactor * series.costs.Median();
  double sum = 0;
  for (const double cost : series.costs.values()) sum += std::min(cost, most);
  const double cost = sum / static_cast<double>(series.costs.size());
  series.costs = {};
  const bool known = series.usual.size() >= kHistoryMin;
  series.z = known ? RobustZ(cost, series.centre, kCellSpreadMin * series.centre.median) : 0;
  const bool slow = known && cost > (1 + options_.slow_transfer_share) * series.centre.median &&
                    series.z > options_.z_min;
  series.now.Add(cost);
  series.newest = cost;
  if (slow) {
    if (series.slow_stretches++ == 0) series.slow_since = series.begin;
    return;
  }
  if (series.slow_stretches >= kSlowStretchesMin) {
    ++ended_;
    longest_ended_ = std::max(longest_ended_, series.begin - series.slow_since);
  }
  series.slow_stretches = 0;
  series.usual.Add(cost);
  std::vector<double> values(series.usual.values().begin(), series.usual.values().end());
  series.centre = CentreOf(values);
}

std::optional<TransferMonitor::Slow> TransferMonitor::slow(Clock::Duration min_duration) const {
  std::optional<Slow> worst;
  for (const Series& series : series_) {
    if (series.slow_stretches < kSlowStretchesMin) continue;
    if (series.last - series.slow_since < min_duration) continue;
    if (worst && worst->z >= series.z) continue;
    const auto bytes = static_cast<double>(series.bytes);
    const auto lasting = std::chrono::duration<double>(series.last - series.slow_since);
    worst = {series.kind, series.bytes,   series.centre.median * bytes, series.now.Median() * bytes,
             series.z,    lasting.count()};
  }
  return worst;
}

void DelayMatrix::Add(const RankTransfers& transfers) {
  const PeerTransfers& sums = transfers.sums;
  if (sums.direction != Direction::kSend) return;  // a receiver waits for all ranks before it
  if (sums.bytes == 0) return;
  const auto key = std::pair(transfers.rank.value, transfers.peer.value);
  auto found = cells_.find(key);
  if (found == cells_.end()) {
    if (cells_.size() >= cells_max_) return;
    found = cells_.emplace(key, Cell{}).first;
  }
  found->second.ns_per_byte.Add(static_cast<float>(sums.transfer_ns) /
                                static_cast<float>(sums.bytes));
  found->second.operations += sums.transfers;
  operations_ = std::max(operations_, found->second.operations);
}

void DelayMatrix::Clear() {
  cells_.clear();
  operations_ = 0;
}

std::vector<DelayMatrix::Cost> DelayMatrix::Costs() const {
  std::vector<Cost> costs;
  for (const auto& [edge, cell] : cells_) {
    if (cell.operations * 2 < operations_) continue;  // too few to compare
    if (cell.ns_per_byte.size() < kCellMessagesMin) continue;
    costs.push_back({edge, static_cast<double>(cell.ns_per_byte.Median())});
  }
  return costs;
}

std::optional<DelayMatrix::Blame> DelayMatrix::Find(const std::vector<Cost>& costs,
                                                    const DetectorOptions& options) {
  if (costs.size() < 2) return std::nullopt;
  std::vector<double> values;
  for (const Cost& cost : costs) values.push_back(cost.value);
  const Centre centre = CentreOf(values);
  const auto worst = std::max_element(
      costs.begin(), costs.end(), [](const Cost& a, const Cost& b) { return a.value < b.value; });
  const double least_spread = kCellSpreadMin * centre.median;
  const double excess = worst->value - centre.median;
  const double z = RobustZ(worst->value, centre, least_spread);
  // If no transfer waits, there is no spread and z is NaN.
  if (excess <= 0 || !(z > options.z_min) || excess < options.slow_transfer_share * centre.median) {
    return std::nullopt;
  }
  // A cell is hot if it is nearly as slow as the slowest one. A rank is blamed if most of its cells
  // in one direction are hot.
  const double hot_from =
      centre.median + std::max(kHotShare * excess, options.slow_transfer_share * centre.median);
  Blame blame;
  blame.edge = {Rank{worst->edge.first}, Rank{worst->edge.second}};
  blame.worst = worst->value;
  blame.ratio = centre.median > 0 ? worst->value / centre.median : 0;
  blame.z = z;
  for (const bool sends : {true, false}) {
    uint32_t hot = 0;
    uint32_t populated = 0;
    const uint32_t rank = sends ? worst->edge.first : worst->edge.second;
    for (const Cost& cost : costs) {
      if ((sends ? cost.edge.first : cost.edge.second) != rank) continue;
      ++populated;
      hot += cost.value >= hot_from ? 1 : 0;
    }
    if (populated >= options.hot_cells_min &&
        static_cast<double>(hot) >= options.hot_share * populated) {
      blame.rank = Rank{rank};
      blame.sends = sends;
      blame.hot = hot;
      blame.populated = populated;
      break;
    }
  }
  // A fault of one rank or of one link slows connections that share an end. Slow connections
  // without a common end are congestion.
  std::map<uint32_t, uint32_t> hot_of;
  for (const Cost& cost : costs) {
    if (cost.value < hot_from) continue;
    blame.hot_edges.push_back({Rank{cost.edge.first}, Rank{cost.edge.second}});
    ++hot_of[cost.edge.first];
    ++hot_of[cost.edge.second];
  }
  uint32_t most = 0;
  for (const auto& [rank, count] : hot_of) most = std::max(most, count);
  blame.of = static_cast<uint32_t>(costs.size());
  const auto all_hot = static_cast<uint32_t>(blame.hot_edges.size());
  const uint32_t between_two = hot_of.size() == 2 ? all_hot : 0;
  blame.widespread = std::max(most, between_two) < all_hot;
  return blame;
}

std::optional<DelayMatrix::Blame> DelayMatrix::FindChanged(const std::vector<Cost>& changes,
                                                           double factor) {
  Blame blame;
  blame.changed = true;
  blame.of = static_cast<uint32_t>(changes.size());
  std::map<uint32_t, size_t> hot_of;  // by rank
  for (const Cost& change : changes) {
    if (change.value < factor) continue;
    blame.hot_edges.push_back({Rank{change.edge.first}, Rank{change.edge.second}});
    ++hot_of[change.edge.first];
    ++hot_of[change.edge.second];
    if (change.value <= blame.worst) continue;
    blame.worst = blame.ratio = change.value;
    blame.edge = blame.hot_edges.back();
  }
  const size_t hot = blame.hot_edges.size();
  if (hot == 0 || hot == changes.size()) return std::nullopt;
  std::vector<uint32_t> ends;  // of all of them
  for (const auto& [rank, count] : hot_of) {
    if (count == hot) ends.push_back(rank);
  }
  blame.widespread = ends.empty();
  if (ends.size() == 1) blame.rank = Rank{ends.front()};
  return blame;
}

}  // namespace holdfast::detect
