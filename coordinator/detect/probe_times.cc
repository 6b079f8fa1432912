#include "coordinator/detect/probe_times.h"

#include <algorithm>
#include <numeric>

namespace holdfast::detect {
namespace {
constexpr size_t kPairsMax = 65'536;
constexpr size_t kProbesMin = 6;      // of a pair, both directions together
constexpr size_t kOtherPairsMin = 2;  // to compare with
constexpr double kTimesOthers = 2;    // the mean of the slow pairs, compared with the others
constexpr double kExcessMinNs = 4e6;  // shorter delays are those of a busy processor
constexpr double kOthersQuantile = 0.9;
// Each slow pair, compared with that quantile of the others. A single pair must stand out more,
// since the pairs of a slow node differ.
constexpr double kNodeTimesHigh = 1.25;
constexpr double kLinkTimesHigh = 2;

struct Cost {
  const std::pair<std::string, std::string>* nodes;
  double value;
};

/// Compares the costs of the suspected pairs with those of the others.
std::optional<ProbeTimes::Slow> Compare(std::vector<double> others, std::vector<double> own,
                                        double times_high) {
  if (own.empty() || others.size() < kOtherPairsMin) return std::nullopt;
  const double least = *std::min_element(own.begin(), own.end());
  const double mean =
      std::accumulate(own.begin(), own.end(), 0.0) / static_cast<double>(own.size());
  const double high = Quantile(others, kOthersQuantile);
  const double usual = LowerMedian(std::span<double>(others));
  if (least < times_high * high || mean < kTimesOthers * usual || mean - usual < kExcessMinNs) {
    return std::nullopt;
  }
  return ProbeTimes::Slow{{}, mean, usual, own.size(), own.size() + others.size()};
}
}  // namespace

void ProbeTimes::Add(const std::string& from, const std::string& to, uint64_t took_ns) {
  if (took_ns == 0 || from == to) return;
  const bool forward = from < to;
  const Pair pair = forward ? Pair(from, to) : Pair(to, from);
  auto found = pairs_.find(pair);
  if (found == pairs_.end()) {
    if (pairs_.size() >= kPairsMax) return;
    found = pairs_.try_emplace(pair).first;
  }
  uint64_t& last = found->second.last[forward ? 0 : 1];
  if (last == took_ns) return;
  last = took_ns;
  found->second.took_ns.Add(static_cast<double>(took_ns));
}

void ProbeTimes::Clear() { pairs_.clear(); }

std::optional<ProbeTimes::Slow> ProbeTimes::Find() const {
  std::vector<Cost> costs;
  std::map<std::string, size_t> pairs_of;
  for (const auto& [pair, times] : pairs_) {
    if (times.took_ns.size() < kProbesMin) continue;
    // The median, since a busy processor delays single probes by much.
    std::vector<double> values(times.took_ns.values().begin(), times.took_ns.values().end());
    costs.push_back({&pair, LowerMedian(std::span<double>(values))});
    ++pairs_of[pair.first];
    ++pairs_of[pair.second];
  }
  if (costs.empty()) return std::nullopt;
  const auto split = [&costs](double times_high, const auto& is_own) {
    std::vector<double> others;
    std::vector<double> own;
    for (const Cost& cost : costs) (is_own(cost) ? own : others).push_back(cost.value);
    return Compare(std::move(others), std::move(own), times_high);
  };
  // One end of the slowest pair is the suspect.
  const auto worst = std::max_element(
      costs.begin(), costs.end(), [](const Cost& a, const Cost& b) { return a.value < b.value; });
  std::optional<Slow> slow;
  for (const std::string& node : {worst->nodes->first, worst->nodes->second}) {
    if (pairs_of[node] < 2) continue;
    auto found = split(kNodeTimesHigh, [&node](const Cost& cost) {
      return cost.nodes->first == node || cost.nodes->second == node;
    });
    if (!found || (slow && slow->took_ns >= found->took_ns)) continue;
    slow = std::move(found);
    slow->nodes = {node};
  }
  if (slow) return slow;
  slow = split(kLinkTimesHigh, [&worst](const Cost& cost) { return cost.nodes == worst->nodes; });
  if (slow) slow->nodes = {worst->nodes->first, worst->nodes->second};
  return slow;
}

}  // namespace holdfast::detect
