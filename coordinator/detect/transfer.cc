#include "coordinator/detect/transfer.h"

#include <algorithm>
#include <bit>

namespace holdfast::detect {
namespace {

constexpr size_t kKindsMax = 8;
constexpr uint64_t kBytesLeast = uint64_t{64} << 10U;  // less is latency: it does not load a link
constexpr uint32_t kFirstLeftOut = 3;
constexpr size_t kHistoryLeast = 6;  // stretches
constexpr uint32_t kHotLeast = 3;    // stretches in a row, each an iteration at least
constexpr Clock::Duration kStretch = std::chrono::seconds(5);
constexpr Clock::Duration kFirstStretch = std::chrono::seconds(1);
constexpr double kWild = 5;                // times the median of a stretch
constexpr double kCellSpreadLeast = 0.01;  // of the median
constexpr size_t kCellMessagesLeast = 4;   // of which two may be wild
constexpr double kHotBeside = 0.6;  // of the slowest cell's excess, to be slow for the same cause

}  // namespace

void Transfers::Add(const Gathered& operation, double iteration_ns) {
  // Nearly all members must be there, or the last to come may not be.
  if (uint64_t{operation.count} * 10 < operation.samples.size() * 9) return;
  if (operation.bytes < kBytesLeast) return;
  uint64_t least = ~uint64_t{0};
  for (const Sample& sample : operation.samples) {
    if (sample.present()) least = std::min(least, sample.duration_ns());
  }
  const uint32_t key = static_cast<uint32_t>(operation.func) << 24U |
                       static_cast<uint32_t>(std::bit_width(operation.bytes)) << 16U |
                       static_cast<uint32_t>(operation.algo) << 8U | operation.proto;
  auto kind = std::find_if(kinds_.begin(), kinds_.end(),
                           [&](const Kind& known) { return known.key == key; });
  if (kind == kinds_.end()) {
    if (kinds_.size() >= kKindsMax) return;
    kind = kinds_.emplace(kinds_.end());
    kind->key = key;
    kind->func = operation.func;
  }
  if (kind->seen++ < kFirstLeftOut) return;
  kind->bytes = operation.bytes;
  // The first past is found soon: a fault may be early.
  const auto least_stretch = kind->usual.size() < kHistoryLeast ? kFirstStretch : kStretch;
  const auto stretch = std::max(least_stretch, Clock::Duration(static_cast<int64_t>(iteration_ns)));
  if (kind->costs.size() == 0) {
    kind->begin = operation.since;
  } else if (operation.since - kind->begin >= stretch) {
    EndStretch(*kind);
    kind->begin = operation.since;
  }
  kind->last = operation.since;
  kind->costs.Add(static_cast<double>(least) /
                  static_cast<double>(std::max<uint64_t>(operation.bytes, 1)));
}

/// The mean of a stretch, what is wild in it cut: losses delay few operations and these much.
void Transfers::EndStretch(Kind& kind) {
  const double most = kWild * kind.costs.Median();
  double sum = 0;
  for (const double cost : kind.costs.values()) sum += std::min(cost, most);
  const double cost = sum / static_cast<double>(kind.costs.size());
  kind.costs = {};
  const bool known = kind.usual.size() >= kHistoryLeast;
  kind.z = known ? RobustZ(cost, kind.centre, kCellSpreadLeast * kind.centre.median) : 0;
  const bool hot = known && cost > (1 + options_.slow_transfer_share) * kind.centre.median &&
                   kind.z > options_.z_min;
  kind.now.Add(cost);
  kind.newest = cost;
  if (hot) {
    if (kind.hot++ == 0) kind.hot_since = kind.begin;
    return;
  }
  if (kind.hot >= kHotLeast) healed_ = std::max(healed_, kind.begin - kind.hot_since);
  kind.hot = 0;
  kind.usual.Add(cost);
  std::vector<double> values(kind.usual.values().begin(), kind.usual.values().end());
  kind.centre = CentreOf(values);
}

std::optional<Transfers::Slow> Transfers::slow(Clock::Duration least) const {
  std::optional<Slow> worst;
  for (const Kind& kind : kinds_) {
    if (kind.hot < kHotLeast || kind.last - kind.hot_since < least) continue;
    if (worst && worst->z >= kind.z) continue;
    const auto bytes = static_cast<double>(kind.bytes);
    const auto lasting = std::chrono::duration<double>(kind.last - kind.hot_since);
    worst = {kind.func, kind.bytes,     kind.centre.median * bytes, kind.now.Median() * bytes,
             kind.z,    lasting.count()};
  }
  return worst;
}

void DelayMatrix::Add(const PeerSums& sums) {
  if (sums.direction != Direction::kSend) return;  // receivers wait for everybody before them
  if (sums.bytes == 0) return;
  const auto key = std::pair(sums.rank.value, sums.peer.value);
  auto found = cells_.find(key);
  if (found == cells_.end()) {
    if (cells_.size() >= cells_max_) return;
    found = cells_.emplace(key, Cell{}).first;
  }
  found->second.ns_a_byte.Add(static_cast<float>(sums.wait_ns) / static_cast<float>(sums.bytes));
  found->second.operations += sums.operations;
  operations_ = std::max(operations_, found->second.operations);
}

std::optional<DelayMatrix::Blame> DelayMatrix::Find(const DetectorOptions& options) const {
  struct Cost {
    std::pair<uint32_t, uint32_t> edge;
    double value = 0;
  };
  std::vector<Cost> costs;
  std::vector<double> values;
  for (const auto& [edge, cell] : cells_) {
    if (cell.operations * 2 < operations_) continue;  // too little to go by
    if (cell.ns_a_byte.size() < kCellMessagesLeast) continue;
    costs.push_back({edge, static_cast<double>(cell.ns_a_byte.Median())});
    values.push_back(costs.back().value);
  }
  if (costs.size() < 2) return std::nullopt;
  const Centre centre = CentreOf(values);
  const auto worst = std::max_element(
      costs.begin(), costs.end(), [](const Cost& a, const Cost& b) { return a.value < b.value; });
  const double least_spread = kCellSpreadLeast * centre.median;
  const double excess = worst->value - centre.median;
  const double z = RobustZ(worst->value, centre, least_spread);
  // Where nobody waits there is no spread, and z no number.
  if (excess <= 0 || !(z > options.z_min) || excess < options.slow_transfer_share * centre.median) {
    return std::nullopt;
  }
  // In a place of its own, or nobody's.
  const double hot_from =
      centre.median + std::max(kHotBeside * excess, options.slow_transfer_share * centre.median);
  Blame blame;
  blame.edge = {Rank{worst->edge.first}, Rank{worst->edge.second}};
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
  // A faulty place is one rank's or lies between two: all that is slow for it has an end in common.
  std::map<uint32_t, uint32_t> hot_of;
  for (const Cost& cost : costs) {
    if (cost.value < hot_from) continue;
    ++blame.all_hot;
    ++hot_of[cost.edge.first];
    ++hot_of[cost.edge.second];
  }
  uint32_t most = 0;
  for (const auto& [rank, count] : hot_of) most = std::max(most, count);
  blame.of = static_cast<uint32_t>(costs.size());
  const uint32_t between_two = hot_of.size() == 2 ? blame.all_hot : 0;
  blame.widespread = std::max(most, between_two) < blame.all_hot;
  return blame;
}

}  // namespace holdfast::detect
