// The cost of one version's parity as the group grows, at constant state per node. Time and bytes
// per node should stay constant. Each node's rate is limited, so that all can sustain it together.

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "bench/bench.h"
#include "bench/growth_plot.h"
#include "bench/live_group.h"
#include "bench/memory_server.h"

namespace holdfast::bench {
namespace {

// 16 nodes at this rate use about half of two cores.
constexpr uint64_t kLinkBytesPerS = 32'000'000;

Result<GrowthPoint> Measure(const GroupShape& shape, uint64_t rounds) {
  HOLDFAST_ASSIGN_OR_RETURN(auto group, LiveGroup::Start(shape));
  HOLDFAST_RETURN_IF_ERROR(group->Save(1));
  HOLDFAST_RETURN_IF_ERROR(group->Await(1, v1::Tier::kPeer));
  HOLDFAST_ASSIGN_OR_RETURN(const LiveGroup::Account before, group->Accounts());
  std::vector<double> seconds;
  std::vector<double> alone;
  for (uint64_t round = 0; round < rounds; ++round) {
    Status status = group->Save(2 + round);
    if (status.ok()) status = group->Await(2 + round, v1::Tier::kSealed);
    HOLDFAST_RETURN_IF_ERROR(status);
    seconds.push_back(SecondsOf([&] { status = group->Await(2 + round, v1::Tier::kPeer); }));
    HOLDFAST_RETURN_IF_ERROR(status);
    const auto bytes = static_cast<uint64_t>(BytesToSend(shape));
    HOLDFAST_ASSIGN_OR_RETURN(
        const double reference,
        TransportSeconds(shape.nodes, shape.nodes - shape.parity, bytes, shape.rate_bytes_per_s));
    alone.push_back(reference);
  }
  HOLDFAST_ASSIGN_OR_RETURN(const LiveGroup::Account after, group->Accounts());
  std::vector<double> ratios;
  for (size_t i = 0; i < seconds.size(); ++i) ratios.push_back(seconds[i] / alone[i]);
  const double versions = static_cast<double>(rounds) * shape.nodes;
  return GrowthPoint{
      .nodes = shape.nodes,
      .parity = shape.parity,
      .ms = Median(seconds) * 1000,
      .alone_ms = Median(alone) * 1000,
      .sent_mb = static_cast<double>(after.sent_bytes - before.sent_bytes) / versions / 1e6,
      .cpu_ms = (after.cpu_seconds - before.cpu_seconds) / versions * 1000,
      .least = *std::min_element(ratios.begin(), ratios.end()),
      .most = *std::max_element(ratios.begin(), ratios.end())};
}

}  // namespace

Result<std::vector<BenchResult>> RunGrowth(const BenchOptions& options) {
  const uint64_t bytes = options.quick ? 12ULL << 20 : 48ULL << 20;
  const uint64_t rounds = options.repeat;
  std::vector<std::pair<int, int>> shapes;
  for (int nodes : {2, 3, 4, 6, 8, 12, 16}) shapes.emplace_back(nodes, 1);
  for (int nodes : {4, 6, 8, 12, 16}) shapes.emplace_back(nodes, 2);
  std::vector<GrowthPoint> points;
  std::vector<BenchResult> results;
  for (const auto& [nodes, parity] : shapes) {
    const GroupShape shape{nodes, parity, bytes, kLinkBytesPerS};
    HOLDFAST_ASSIGN_OR_RETURN(const GrowthPoint point, Measure(shape, rounds));
    points.push_back(point);
    results.push_back(
        {.name = "growth_" + NameOf(shape),
         .ratio = point.ms / point.alone_ms,
         .ours = point.ms,
         .reference = point.alone_ms,
         .unit = "ms",
         .goal = "",
         .note = fmt::format("{:.1f} MB sent per node ({:.3f} of S(n-1)/(n-m)), agent's "
                             "CPU {:.0f} ms per node",
                             point.sent_mb, point.sent_mb * 1e6 / BytesToSend(shape), point.cpu_ms),
         .repetitions = options.repeat,
         .least = point.least,
         .most = point.most});
  }
  if (options.into.empty()) return results;
  HOLDFAST_RETURN_IF_ERROR(WriteGrowth(
      options.into, points,
      fmt::format("parity of one version, {} MiB per node, each node sends at most {} MB/s",
                  bytes >> 20, kLinkBytesPerS / 1'000'000)));
  return results;
}

}  // namespace holdfast::bench
