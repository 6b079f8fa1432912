// A lost node: its agent, keeper and memory are destroyed, and an empty node replaces it. Measures
// the time until the node's rank has its bytes again, decoded from the survivors and verified,
// compared with sending as many bytes from one node to another.

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "bench/bench.h"
#include "bench/live_group.h"
#include "bench/memory_server.h"

namespace holdfast::bench {
namespace {

constexpr uint64_t kLinkBytesPerS = 125'000'000;  // see parity_bench.cc

/// Returns the seconds from when all ranks are connected until the rank of the lost node has its
/// tensors again.
Result<double> LoseAndRestore(LiveGroup& group, const GroupShape& shape, uint64_t round) {
  HOLDFAST_RETURN_IF_ERROR(group.Save(round + 1));
  HOLDFAST_RETURN_IF_ERROR(group.Await(round + 1, v1::Tier::kPeer));
  const int lost = shape.nodes - 1;
  HOLDFAST_RETURN_IF_ERROR(group.LoseNode(lost));
  std::vector<float>& tensor = group.tensors()[static_cast<size_t>(lost)];
  const std::vector<float> before = tensor;
  std::fill(tensor.begin(), tensor.end(), 0.0F);
  HOLDFAST_RETURN_IF_ERROR(group.Connect(fmt::format("after-{}", round)));
  Status status;
  const double seconds = SecondsOf([&] {
    auto restored = group.client(lost).Restore();
    if (!restored.ok()) {
      status = FromClient(restored.status());
    } else if (restored->tier != v1::Tier::kPeer) {
      status = InternalError("the lost node's shard was not decoded");
    }
  });
  HOLDFAST_RETURN_IF_ERROR(status);
  const uint64_t bytes = tensor.size() * sizeof(float);
  if (std::memcmp(tensor.data(), before.data(), bytes) != 0) {
    return Fail(DataLossError("the restored bytes differ"));
  }
  return seconds;
}

Status RunShape(const GroupShape& shape, const std::string& name, const std::string& goal,
                uint64_t rounds, std::vector<BenchResult>* results) {
  HOLDFAST_ASSIGN_OR_RETURN(auto group, LiveGroup::Start(shape));
  std::vector<double> ours;
  std::vector<double> reference;
  for (uint64_t round = 0; round < rounds; ++round) {
    HOLDFAST_ASSIGN_OR_RETURN(const double seconds, LoseAndRestore(*group, shape, round));
    ours.push_back(seconds);
    HOLDFAST_ASSIGN_OR_RETURN(
        const double alone,
        TransportSeconds(1, shape.nodes - shape.parity, shape.bytes, shape.rate_bytes_per_s));
    reference.push_back(alone);
  }
  results->push_back({.name = name + "_" + NameOf(shape),
                      .ratio = Median(ours) / Median(reference),
                      .ours = Median(ours) * 1000,
                      .reference = Median(reference) * 1000,
                      .unit = "ms",
                      .goal = goal,
                      .note = fmt::format("{}: connected → restored on the new one of {} nodes "
                                          "÷ the same bytes from one node",
                                          LoadOf(shape), shape.nodes)});
  return Status::Ok();
}

}  // namespace

Result<std::vector<BenchResult>> RunRebuild(const BenchOptions& options) {
  const uint64_t bytes = options.quick ? 48ULL << 20 : 192ULL << 20;
  const uint64_t rounds = 2;
  std::vector<BenchResult> results;
  for (const auto& [nodes, parity] : {std::pair(4, 1), std::pair(8, 2)}) {
    HOLDFAST_RETURN_IF_ERROR(
        RunShape({nodes, parity, bytes, kLinkBytesPerS}, "rebuild", "<=1.3", rounds, &results));
    HOLDFAST_RETURN_IF_ERROR(
        RunShape({nodes, parity, bytes, 0}, "rebuild_unpaced", "", rounds, &results));
  }
  return results;
}

}  // namespace holdfast::bench
