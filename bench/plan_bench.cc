// Planning of a restore for worlds of simulated ranks: the real code plans, and the headers of the
// ranks are generated. Nothing is sent: the bytes that a node would receive are counted.

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <map>

#include "bench/bench.h"
#include "client/core/content_tables.h"
#include "client/core/read_plan.h"
#include "storage/format/checksum.h"
#include "storage/format/version_index_builder.h"

namespace holdfast::bench {
namespace {
constexpr uint32_t kRanksPerNode = 8;
constexpr uint64_t kParameters = 1125;  // with three tensors of optimizer state each
constexpr uint64_t kTensorRows = 16384;
constexpr uint64_t kTensorColumns = 22000;  // 405e9 parameters in total
constexpr double kGoalSeconds = 2;
constexpr double kGoalPercent = 0.1;  // of a shard's bytes, read by a rank for its plan
constexpr double kGoalBytes = 1ULL << 30;
const VersionId kVersion{Incarnation{3}, Step{1200}};

/// Returns the slices of a rank: rows of each tensor.
std::vector<TensorSpec> SlicesOf(uint64_t rank, uint64_t world) {
  std::vector<TensorSpec> specs;
  const uint64_t rows = kTensorRows / world;
  const auto add = [&](std::string name, DType dtype) {
    const std::vector<uint64_t> global = {kTensorRows, kTensorColumns};
    specs.push_back({std::move(name), dtype, {rows, kTensorColumns}, global, {rank * rows, 0}});
  };
  for (uint64_t i = 0; i < kParameters; ++i) {
    const std::string name = fmt::format("layers.{}.block.{}.weight", i / 9, i % 9);
    add("model." + name, DType::kBF16);
    add("optim.state." + name + ".exp_avg", DType::kF32);
    add("optim.state." + name + ".exp_avg_sq", DType::kF32);
    add("optim.state." + name + ".master", DType::kF32);
  }
  return specs;
}

struct Header {
  std::string bytes;
  uint64_t image_bytes = 0;
};

Result<Header> HeaderOf(uint32_t rank, uint32_t world, uint32_t format = kImageFormat) {
  HOLDFAST_ASSIGN_OR_RETURN(const ImageLayout layout,
                            ImageLayout::Plan(SlicesOf(rank, world), {}, format));
  HOLDFAST_ASSIGN_OR_RETURN(std::string bytes,
                            layout.RenderHeader({"bench", kVersion, Rank{rank}, world}, {}));
  const uint64_t image_bytes = bytes.size() + layout.tensor_bytes();
  return Header{std::move(bytes), image_bytes};
}

/// The highest resident size since Reset().
class PeakMemory {
 public:
  static void Reset() { std::ofstream("/proc/self/clear_refs") << "5"; }
  static uint64_t Bytes(const std::string& field) {
    std::ifstream status("/proc/self/status");
    for (std::string line; std::getline(status, line);) {
      if (line.rfind(field, 0) != 0) continue;
      return std::strtoull(line.c_str() + field.size(), nullptr, 10) << 10;
    }
    return 0;
  }
  PeakMemory() : before_(Bytes("VmRSS:")) { Reset(); }
  uint64_t added() const {
    const uint64_t peak = Bytes("VmHWM:");
    return peak > before_ ? peak - before_ : 0;
  }

 private:
  const uint64_t before_;
};

struct Cost {
  double seconds = 0;
  uint64_t bytes = 0;  // read by the node, for the plan only
  uint64_t memory = 0;
  double share = 0;    // of the shard's bytes
  uint64_t alone = 0;  // bytes of chunks that the load does not need
};

/// Returns the bytes of the header's chunks that no unit of the load has: an agent keeps the others
/// for the load.
uint64_t ReadForThePlanAlone(const client::LoadPlan& plan, const Header& header) {
  uint64_t alone = 0;
  for (uint64_t at = 0; at < header.bytes.size(); at += kChunkBytes) {
    const bool loaded = std::ranges::any_of(plan.units, [at](const client::ReadUnit& unit) {
      return unit.offset <= at && at < unit.offset + unit.bytes;
    });
    if (!loaded) alone += std::min(kChunkBytes, header.image_bytes - at);
  }
  return alone;
}

/// The tensors of a rank, without memory: the plan is not executed.
client::StateDescription Wanted(uint32_t rank, uint32_t world) {
  client::StateDescription wanted;
  wanted.specs = SlicesOf(rank, world);
  wanted.memory.resize(wanted.specs.size());
  return wanted;
}

Status CheckPlan(const std::optional<client::LoadPlan>& plan, uint64_t bytes,
                 const std::vector<std::string>& differences) {
  if (!plan || !differences.empty()) return InternalError("the benchmark has no plan");
  uint64_t planned = 0;
  for (const client::PlannedCopy& copy : plan->copies) {
    planned += copy.copy.source_end() - copy.copy.source_begin();
  }
  if (planned == bytes) return Status::Ok();
  return InternalError(fmt::format("the plan copies {} of {} bytes", planned, bytes));
}

/// One rank restores into the same world: it has its own header.
Result<Cost> PlanSame(uint32_t world) {
  const uint32_t rank = world / 2;
  HOLDFAST_ASSIGN_OR_RETURN(const Header header, HeaderOf(rank, world));
  const client::StateDescription wanted = Wanted(rank, world);
  Cost cost{.bytes = header.bytes.size()};
  const PeakMemory memory;
  Status planned;
  std::optional<client::LoadPlan> plan;
  cost.seconds = SecondsOf([&] {
    planned = [&]() -> Status {
      const auto bytes = std::as_bytes(std::span(header.bytes));
      HOLDFAST_ASSIGN_OR_RETURN(ParsedImage image, ParseImage(bytes, header.image_bytes));
      const client::PlannedShard own(rank, std::move(image));
      std::vector<std::string> differences;
      HOLDFAST_ASSIGN_OR_RETURN(
          plan, client::PlanLoad({&own, nullptr, {}}, wanted, rank, 4 << 20, &differences));
      return CheckPlan(plan, header.image_bytes - header.bytes.size(), differences);
    }();
  });
  HOLDFAST_RETURN_IF_ERROR(planned);
  cost.memory = kRanksPerNode * memory.added();
  cost.share = static_cast<double>(cost.bytes) / static_cast<double>(header.image_bytes);
  cost.alone = ReadForThePlanAlone(*plan, header);
  return cost;
}

/// Compares the share of a shard's bytes that its header takes with the goal, in both formats.
Result<BenchResult> HeaderShare(uint32_t world) {
  const auto percent = [world](uint32_t format) -> Result<double> {
    HOLDFAST_ASSIGN_OR_RETURN(const Header header, HeaderOf(world / 2, world, format));
    return 100.0 * static_cast<double>(header.bytes.size()) /
           static_cast<double>(header.image_bytes);
  };
  HOLDFAST_ASSIGN_OR_RETURN(const double usual, percent(kImageFormat));
  HOLDFAST_ASSIGN_OR_RETURN(const double brief, percent(kShortSlicesFormat));
  return BenchResult{
      .name = fmt::format("plan_header_{}", world),
      .ratio = brief / kGoalPercent,
      .ours = brief,
      .reference = kGoalPercent,
      .unit = "%",
      .goal = world == 8192 ? "<=1" : "",
      .note = fmt::format(
          "of the shard is its header in format 2; {:.3f} % in format 1; ÷ the goal", usual)};
}

/// Returns the index of a node's shards. `image` is that of any rank; only the rank and the offsets
/// differ between ranks, so that the headers of the others are not written and parsed.
Result<std::string> NodeIndex(uint32_t node, uint32_t world, ParsedImage& image) {
  VersionIndexBuilder builder("bench", kVersion, world);
  for (uint32_t i = 0; i < kRanksPerNode; ++i) {
    const uint64_t rank = node * kRanksPerNode + i;
    image.identity.rank = Rank{static_cast<uint32_t>(rank)};
    for (PlacedTensor& tensor : image.tensors) {
      tensor.spec.offset[0] = rank * tensor.spec.shape[0];
    }
    HOLDFAST_RETURN_IF_ERROR(builder.Add(image, {}));
  }
  return builder.Finish();
}

/// Makes the index of one node from the headers of its ranks, as each node does once.
Result<Cost> IndexOfNode(uint32_t world) {
  std::vector<Header> headers;
  for (uint32_t rank = 0; rank < kRanksPerNode; ++rank) {
    HOLDFAST_ASSIGN_OR_RETURN(Header header, HeaderOf(rank, world));
    headers.push_back(std::move(header));
  }
  Cost cost;
  Status made;
  cost.seconds = SecondsOf([&] {
    made = [&]() -> Status {
      VersionIndexBuilder builder("bench", kVersion, world);
      for (const Header& header : headers) {
        const auto bytes = std::as_bytes(std::span(header.bytes));
        HOLDFAST_ASSIGN_OR_RETURN(const ParsedImage image, ParseImage(bytes, header.image_bytes));
        HOLDFAST_RETURN_IF_ERROR(builder.Add(image, {}));
      }
      HOLDFAST_ASSIGN_OR_RETURN(const std::string index, builder.Finish());
      cost.bytes = index.size();
      return Status::Ok();
    }();
  });
  HOLDFAST_RETURN_IF_ERROR(made);
  return cost;
}

struct Aligned {
  explicit Aligned(const std::string& bytes) : words(bytes.size() / 8) {
    std::memcpy(words.data(), bytes.data(), bytes.size());
  }
  std::span<const std::byte> bytes() const { return std::as_bytes(std::span(words)); }
  std::vector<uint64_t> words;
};

/// What a reader in Python asks for before it plans: each tensor once, not each slice of each rank.
Result<Cost> ListEachTensor(std::span<const std::byte> shared) {
  Cost cost;
  Status listed;
  const PeakMemory memory;
  client::ContentTables tables;
  cost.seconds = SecondsOf([&] {
    listed = [&]() -> Status {
      HOLDFAST_ASSIGN_OR_RETURN(const VersionIndex index, VersionIndex::Open(shared));
      return client::ListTensors(index, tables);
    }();
  });
  HOLDFAST_RETURN_IF_ERROR(listed);
  cost.memory = memory.added();
  holdfast_reader_info info{};
  tables.Show(&info);
  if (info.piece_count == 4 * kParameters) return cost;
  return Fail(InternalError(fmt::format("the list has {} tensors", info.piece_count)));
}

/// What a node does to restore into half of the world. `join`: it joins the indexes of all nodes,
/// as one node of the tree does; otherwise it receives the index.
struct Reshard {
  Cost own;  // of one node: the index of its shards
  Cost join;
  Cost plan;
  Cost tensors;  // of one rank in Python: the list of the version's tensors
  uint64_t index_bytes = 0;
};

Result<Reshard> PlanReshard(uint32_t world) {
  Reshard found;
  VersionIndexBuilder builder("bench", kVersion, world);
  const uint32_t nodes = world / kRanksPerNode;
  HOLDFAST_ASSIGN_OR_RETURN(found.own, IndexOfNode(world));
  HOLDFAST_ASSIGN_OR_RETURN(const Header any, HeaderOf(0, world));
  HOLDFAST_ASSIGN_OR_RETURN(ParsedImage image,
                            ParseImage(std::as_bytes(std::span(any.bytes)), any.image_bytes));
  const PeakMemory joining;
  for (uint32_t node = 0; node < nodes; ++node) {
    HOLDFAST_ASSIGN_OR_RETURN(const std::string bytes, NodeIndex(node, world, image));
    const Aligned received(bytes);
    found.join.bytes += bytes.size();
    Status added;
    found.join.seconds += SecondsOf([&] {
      added = [&]() -> Status {
        HOLDFAST_ASSIGN_OR_RETURN(const VersionIndex part, VersionIndex::Open(received.bytes()));
        HOLDFAST_RETURN_IF_ERROR(part.Verify());
        return builder.Add(part);
      }();
    });
    HOLDFAST_RETURN_IF_ERROR(added);
  }
  std::string bytes;
  Status finished;
  found.join.seconds += SecondsOf([&] {
    auto joined = builder.Finish();
    if (joined) {
      bytes = *std::move(joined);
    } else {
      finished = joined.error();
    }
  });
  HOLDFAST_RETURN_IF_ERROR(finished);
  found.join.memory = joining.added();
  found.index_bytes = bytes.size();

  const Aligned shared(bytes);
  const uint32_t ranks = world / 2;
  const PeakMemory planning;
  for (uint32_t i = 0; i < std::min(kRanksPerNode, ranks); ++i) {
    const uint32_t rank = ranks / 2 + i < ranks ? ranks / 2 + i : i;
    const client::StateDescription wanted = Wanted(rank, ranks);
    uint64_t wanted_bytes = 0;
    for (const TensorSpec& spec : wanted.specs) {
      wanted_bytes += spec.shape[0] * spec.shape[1] * SizeOf(spec.dtype);
    }
    Status planned;
    found.plan.seconds += SecondsOf([&] {
      planned = [&]() -> Status {
        HOLDFAST_ASSIGN_OR_RETURN(const VersionIndex index, VersionIndex::Open(shared.bytes()));
        std::vector<std::string> differences;
        HOLDFAST_ASSIGN_OR_RETURN(const auto plan, client::PlanLoad({nullptr, &index, {}}, wanted,
                                                                    rank, 4 << 20, &differences));
        return CheckPlan(plan, wanted_bytes, differences);
      }();
    });
    HOLDFAST_RETURN_IF_ERROR(planned);
  }
  found.plan.bytes = found.index_bytes;
  found.plan.memory = planning.added() + found.index_bytes;
  HOLDFAST_ASSIGN_OR_RETURN(found.tensors, ListEachTensor(shared.bytes()));
  return found;
}

std::vector<uint32_t> Worlds(const BenchOptions& options) {
  return options.quick ? std::vector<uint32_t>{8, 64, 512}
                       : std::vector<uint32_t>{8, 64, 512, 2048, 8192};
}

constexpr double kMiB = 1 << 20;
}  // namespace

Result<std::vector<BenchResult>> RunPlan(const BenchOptions& options) {
  std::vector<BenchResult> results;
  double smallest_seconds = 0;
  for (uint32_t world : Worlds(options)) {
    HOLDFAST_ASSIGN_OR_RETURN(const Cost same, PlanSame(world));
    if (smallest_seconds == 0) smallest_seconds = same.seconds;
    results.push_back(
        {.name = fmt::format("plan_same_{}", world),
         .ratio = same.seconds / smallest_seconds,
         .ours = same.seconds * 1e3,
         .reference = smallest_seconds * 1e3,
         .unit = "ms",
         .goal = world == 8192 ? "<=1.5" : "",
         .note = fmt::format("one rank, own header only: {:.2f} MiB, {:.4f} % of the shard, of "
                             "which the plan alone needs {:.2f} MiB read; "
                             "8 ranks {:.0f} MiB of memory; ÷ the world of 8",
                             static_cast<double>(same.bytes) / kMiB, same.share * 100,
                             static_cast<double>(same.alone) / kMiB,
                             static_cast<double>(same.memory) / kMiB)});
  }
  HOLDFAST_ASSIGN_OR_RETURN(BenchResult share, HeaderShare(Worlds(options).back()));
  results.push_back(std::move(share));
  for (uint32_t world : Worlds(options)) {
    HOLDFAST_ASSIGN_OR_RETURN(const Reshard found, PlanReshard(world));
    // The index of a node's ranks is made when the version is committed on disk.
    const double seconds = found.join.seconds + found.plan.seconds;
    const double memory = static_cast<double>(std::max(found.join.memory, found.plan.memory));
    results.push_back(
        {.name = fmt::format("plan_reshard_{}", world),
         .ratio = std::max(seconds / kGoalSeconds, memory / kGoalBytes),
         .ours = seconds * 1e3,
         .reference = kGoalSeconds * 1e3,
         .unit = "ms",
         .goal = world == 8192 ? "<=1" : "",
         .note = fmt::format(
             "the root, {} → {} ranks: the index of 8 ranks, made at the commit, took {:.0f} ms; "
             "the "
             "restore joins those of {} nodes in {:.0f} ms ({:.1f} MiB received, {:.0f} MiB of "
             "memory), plans for 8 ranks "
             "in {:.0f} ms ({:.0f} MiB); the index, all that other nodes receive, has {:.2f} MiB; "
             "a reader in Python lists each tensor once in {:.1f} ms ({:.1f} MiB); "
             "÷ the goal of 2 s, or memory ÷ 1 GiB if that is worse",
             world, world / 2, found.own.seconds * 1e3, world / kRanksPerNode,
             found.join.seconds * 1e3, static_cast<double>(found.join.bytes) / kMiB,
             static_cast<double>(found.join.memory) / kMiB, found.plan.seconds * 1e3,
             static_cast<double>(found.plan.memory) / kMiB,
             static_cast<double>(found.index_bytes) / kMiB, found.tensors.seconds * 1e3,
             static_cast<double>(found.tensors.memory) / kMiB)});
  }
  return results;
}

}  // namespace holdfast::bench
