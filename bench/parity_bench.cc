// Parity of a version by real agents: the time from the sealing of all its shards until it is
// committed at the tier peer, compared with sending alone or encoding alone the same bytes,
// whichever is slower; and the bytes that each node sent.

#include <fmt/format.h>

#include <algorithm>
#include <thread>

#include "bench/bench.h"
#include "bench/live_group.h"
#include "bench/memory_server.h"
#include "storage/erasure/code.h"
#include "storage/erasure/stripe_layout.h"

namespace holdfast::bench {
namespace {

// 1 Gbit/s: slow enough that two cores can serve all nodes of a group.
constexpr uint64_t kLinkBytesPerS = 125'000'000;

/// Returns the seconds in which the leaders only encode a version, on all cores.
Result<double> EncodeSeconds(const GroupShape& shape) {
  const auto k = static_cast<uint32_t>(shape.nodes - shape.parity);
  const auto m = static_cast<uint32_t>(shape.parity);
  HOLDFAST_ASSIGN_OR_RETURN(const auto code, ErasureCode::Make(k, m));
  const uint64_t segment = shape.bytes / k / kStripeUnitBytes * kStripeUnitBytes;
  const size_t cores =
      std::clamp<size_t>(std::thread::hardware_concurrency(), 1, static_cast<size_t>(shape.nodes));
  std::vector<std::vector<std::byte>> memories(cores);
  for (auto& memory : memories) {
    memory.resize(segment * k + m * kStripeUnitBytes);
    FillRandom(memory.data(), memory.size(), 7);
  }
  const auto encode = [&](std::vector<std::byte>& memory) {
    const std::span<std::byte> all(memory);
    for (uint64_t at = 0; at < segment; at += kStripeUnitBytes) {
      std::vector<std::span<const std::byte>> data;
      std::vector<std::span<std::byte>> parity;
      for (uint32_t i = 0; i < k; ++i) {
        data.push_back(all.subspan(i * segment + at, kStripeUnitBytes));
      }
      for (uint32_t i = 0; i < m; ++i) {
        parity.push_back(all.subspan(k * segment + i * kStripeUnitBytes, kStripeUnitBytes));
      }
      [[maybe_unused]] const Status done = code->Encode(data, parity);
    }
  };
  const double seconds = SecondsOf([&] {
    std::vector<std::thread> threads;
    for (auto& memory : memories) threads.emplace_back([&] { encode(memory); });
    for (std::thread& thread : threads) thread.join();
  });
  return seconds * shape.nodes / static_cast<double>(cores);
}

struct Times {
  std::vector<double> whole;  // from Save
  std::vector<double> sealed;
  std::vector<double> transport;
  std::vector<double> encode;
};

Status Measure(LiveGroup& group, const GroupShape& shape, uint64_t step, Times* times) {
  Status status;
  double sealed = 0;
  double rest = 0;
  sealed = SecondsOf([&] {
    status = group.Save(step);
    if (status.ok()) status = group.Await(step, v1::Tier::kSealed);
  });
  HOLDFAST_RETURN_IF_ERROR(status);
  rest = SecondsOf([&] { status = group.Await(step, v1::Tier::kPeer); });
  HOLDFAST_RETURN_IF_ERROR(status);
  times->whole.push_back(sealed + rest);
  times->sealed.push_back(rest);
  const auto bytes = static_cast<uint64_t>(BytesToSend(shape));
  HOLDFAST_ASSIGN_OR_RETURN(
      const double transport,
      TransportSeconds(shape.nodes, shape.nodes - shape.parity, bytes, shape.rate_bytes_per_s));
  times->transport.push_back(transport);
  HOLDFAST_ASSIGN_OR_RETURN(const double encode, EncodeSeconds(shape));
  times->encode.push_back(encode);
  return Status::Ok();
}

Status RunShape(const GroupShape& shape, const std::string& name, const std::string& goal,
                uint64_t rounds, std::vector<BenchResult>* results) {
  HOLDFAST_ASSIGN_OR_RETURN(auto group, LiveGroup::Start(shape));
  // The first version is not measured: it touches every page for the first time.
  HOLDFAST_RETURN_IF_ERROR(group->Save(1));
  HOLDFAST_RETURN_IF_ERROR(group->Await(1, v1::Tier::kPeer));
  HOLDFAST_ASSIGN_OR_RETURN(const LiveGroup::Account before, group->Accounts());
  Times times;
  for (uint64_t round = 0; round < rounds; ++round) {
    HOLDFAST_RETURN_IF_ERROR(Measure(*group, shape, 2 + round, &times));
  }
  HOLDFAST_ASSIGN_OR_RETURN(const LiveGroup::Account after, group->Accounts());
  const double alone = std::max(Median(times.transport), Median(times.encode));
  const double versions = static_cast<double>(rounds) * shape.nodes;
  results->push_back(
      {.name = name + "_" + NameOf(shape),
       .ratio = Median(times.sealed) / alone,
       .ours = Median(times.sealed) * 1000,
       .reference = alone * 1000,
       .unit = "ms",
       .goal = goal,
       .note = fmt::format("{}; from Save {:.0f} ms; only transport {:.0f} ms, only encode {:.0f} "
                           "ms; agents' CPU {:.2f} s per node and version",
                           LoadOf(shape), Median(times.whole) * 1000,
                           Median(times.transport) * 1000, Median(times.encode) * 1000,
                           (after.cpu_seconds - before.cpu_seconds) / versions)});
  const double sent = static_cast<double>(after.sent_bytes - before.sent_bytes) / versions;
  if (goal.empty()) return Status::Ok();
  results->push_back({.name = "parity_bytes_" + NameOf(shape),
                      .ratio = sent / BytesToSend(shape),
                      .ours = sent / 1e6,
                      .reference = BytesToSend(shape) / 1e6,
                      .unit = "MB",
                      .goal = "<=1.02",
                      .note = "sent per node for one version, including frames and seals, as the "
                              "agents report it ÷ S(n-1)/(n-m)"});
  return Status::Ok();
}

}  // namespace

Result<std::vector<BenchResult>> RunParity(const BenchOptions& options) {
  const uint64_t bytes = options.quick ? 48ULL << 20 : 192ULL << 20;
  const uint64_t rounds = 3;
  std::vector<BenchResult> results;
  for (const auto& [nodes, parity] : {std::pair(4, 1), std::pair(8, 2)}) {
    HOLDFAST_RETURN_IF_ERROR(
        RunShape({nodes, parity, bytes, kLinkBytesPerS}, "protected", "<=1.25", rounds, &results));
    HOLDFAST_RETURN_IF_ERROR(
        RunShape({nodes, parity, bytes, 0}, "protected_unpaced", "", rounds, &results));
  }
  return results;
}

}  // namespace holdfast::bench
