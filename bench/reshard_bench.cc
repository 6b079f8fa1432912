// Restores into another number of ranks: one rank loads the shards of two ranks, compared with one
// memcpy of the same bytes.

#include <fmt/format.h>

#include <cstring>

#include "bench/bench.h"
#include "bench/live_client.h"

namespace holdfast::bench {
namespace {
constexpr uint64_t kColumns = 4096;
constexpr std::chrono::milliseconds kTime(120'000);

/// Two ranks, which save the upper and the lower half of the rows.
struct Savers {
  explicit Savers(uint64_t rows_in) : rows(rows_in) {
    for (auto& half : halves) {
      half.resize(rows / 2 * kColumns);
      FillRandom(half.data(), half.size() * sizeof(float), &half - halves);
    }
  }
  Status Save(local::Cluster& cluster, const std::string& run_id, int other_node) {
    std::vector<v1::Client> clients;
    for (uint32_t rank = 0; rank < 2; ++rank) {
      v1::Options options{.job = "reshard", .rank = rank, .world = 2, .run_id = run_id};
      options.connect_timeout = kTime;
      options.socket_path = cluster.AgentSocket(rank == 0 ? 0 : other_node);
      const std::vector<v1::Tensor> state = {v1::Slice("w", halves[rank], {rows / 2, kColumns},
                                                       {rows, kColumns}, {rank * rows / 2, 0})};
      auto client = v1::Client::Open(options, state);
      if (!client.ok()) return FromClient(client.status());
      clients.push_back(std::move(*client));
    }
    for (auto& client : clients) HOLDFAST_RETURN_IF_ERROR(FromClient(client.Save(1)));
    for (auto& client : clients) {
      HOLDFAST_RETURN_IF_ERROR(FromClient(client.Wait(1, v1::Tier::kMemory, kTime)));
    }
    return Status::Ok();
  }
  const uint64_t rows;
  std::vector<float> halves[2];
};

struct Times {
  std::vector<double> whole;
  std::vector<double> columns;
  std::vector<double> reference;
};

/// One rank on node 0 loads the complete tensor, then half of its columns.
Status Load(local::Cluster& cluster, const std::string& run_id, const Savers& savers,
            Times& times) {
  const uint64_t rows = savers.rows;
  std::vector<float> all(rows * kColumns, 1);
  std::vector<float> half(rows * kColumns / 2, 1);
  std::vector<float> small(1);
  v1::Options options{.job = "reshard", .rank = 0, .world = 1, .run_id = run_id};
  options.connect_timeout = kTime;
  options.socket_path = cluster.AgentSocket(0);
  const std::vector<v1::Tensor> state = {v1::Whole("s", small, {1})};
  auto client = v1::Client::Open(options, state);
  if (!client.ok()) return FromClient(client.status());
  auto reader = client->OpenReader(std::nullopt, kTime);
  if (!reader.ok()) return FromClient(reader.status());
  const v1::Tensor whole[] = {v1::Whole("w", all, {rows, kColumns})};
  const v1::Tensor columns[] = {
      v1::Slice("w", half, {rows, kColumns / 2}, {rows, kColumns}, {0, kColumns / 4})};
  v1::Status loaded;
  times.whole.push_back(SecondsOf([&] { loaded = reader->Load(whole, kTime); }));
  if (!loaded.ok()) return FromClient(loaded);
  const bool same = std::memcmp(all.data(), savers.halves[0].data(), all.size() * 2) == 0;
  if (!same) return DataLossError("the loaded bytes differ from those saved");
  times.columns.push_back(SecondsOf([&] { loaded = reader->Load(columns, kTime); }));
  if (!loaded.ok()) return FromClient(loaded);
  times.reference.push_back(SecondsOf([&] {
    for (size_t i = 0; i < 2; ++i) {
      std::memcpy(all.data() + i * all.size() / 2, savers.halves[i].data(), all.size() * 2);
    }
  }));
  return Status::Ok();
}
}  // namespace

Result<std::vector<BenchResult>> RunReshard(const BenchOptions& options) {
  const uint64_t bytes = options.quick ? 256ULL << 20 : 1ULL << 30;
  Savers savers(bytes / sizeof(float) / kColumns);
  local::ClusterOptions shape;
  shape.root = options.dir;
  shape.nodes = 2;
  shape.arena_bytes = 4 * bytes;
  shape.disk_every = 1'000'000;
  shape.coordinator_settings = {"peers.enabled=false"};
  local::Cluster cluster(shape);
  HOLDFAST_RETURN_IF_ERROR(cluster.Start());
  const double gigabytes = static_cast<double>(bytes) / 1e9;
  std::vector<BenchResult> results;
  for (int other : {0, 1}) {
    Times times;
    for (int round = 0; round < 3; ++round) {
      const std::string name = fmt::format("{}-{}", other, round);
      HOLDFAST_RETURN_IF_ERROR(savers.Save(cluster, "save-" + name, other));
      HOLDFAST_RETURN_IF_ERROR(Load(cluster, "load-" + name, savers, times));
    }
    const double reference = gigabytes / Median(times.reference);
    const auto add = [&](const std::string& name, double ours, const std::string& note) {
      results.push_back({.name = name,
                         .ratio = ours / reference,
                         .ours = ours,
                         .reference = reference,
                         .unit = "GB/s",
                         .goal = "",
                         .note = note});
    };
    const std::string from =
        other == 0 ? "two shards in this node's memory" : "one shard here, one on another node";
    const std::string suffix = other == 0 ? "" : "_two_nodes";
    add("reshard_whole" + suffix, gigabytes / Median(times.whole),
        from + " → one rank, every chunk verified ÷ one memcpy");
    add("reshard_columns" + suffix, gigabytes / 2 / Median(times.columns),
        from + " → half of the columns, runs of 8 KiB; all chunks are read ÷ one memcpy");
  }
  return results;
}

}  // namespace holdfast::bench
