#include "client/core/read_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <optional>
#include <set>

#include "base/random.h"
#include "storage/format/checksum.h"
#include "storage/format/version_index_builder.h"

// The tests execute the read plans of boxes and compare the tensors element by element.

namespace holdfast::client {
namespace {
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr uint64_t kUnitBytes = 2 * kChunkBytes;

uint64_t CountOf(const std::vector<uint64_t>& shape) {
  uint64_t count = 1;
  for (uint64_t extent : shape) count *= extent;
  return count;
}

/// Returns the elements of a box of a global U32 tensor. The value of an element depends only on
/// the tensor's name and on the element's place in the global tensor.
std::vector<uint32_t> ValuesOf(const TensorSpec& spec) {
  std::vector<uint32_t> values(CountOf(spec.shape));
  std::vector<uint64_t> at(spec.shape.size());
  for (uint32_t& value : values) {
    uint64_t index = BaseTensorName(spec.name).size();
    for (size_t d = 0; d < at.size(); ++d) {
      index = index * spec.global_shape[d] + spec.offset[d] + at[d];
    }
    value = static_cast<uint32_t>(index * 2654435761U + spec.name[0]);
    for (size_t d = at.size(); d-- > 0;) {
      if (++at[d] < spec.shape[d]) break;
      at[d] = 0;
    }
  }
  return values;
}

/// Shards with their images, as bytes.
class Version {
 public:
  void AddShard(std::vector<TensorSpec> tensors) {
    auto layout = ImageLayout::Plan(std::move(tensors));
    ASSERT_TRUE(layout.has_value()) << layout.error().ToString();
    const auto rank = static_cast<uint32_t>(images.size());
    const ShardIdentity identity{"job", {Incarnation{1}, Step{1}}, Rank{rank}, 64};
    std::string image = layout->RenderHeader(identity, {}).value();
    for (const PlacedTensor& placed : layout->tensors()) {
      const std::vector<uint32_t> values = ValuesOf(placed.spec);
      image.append(reinterpret_cast<const char*>(values.data()), values.size() * 4);
    }
    auto parsed = ParseImage(std::as_bytes(std::span(image)), image.size());
    ASSERT_TRUE(parsed.has_value()) << parsed.error().ToString();
    const Status added = builder.Add(*parsed, {});
    ASSERT_TRUE(added.ok()) << added.ToString();
    if (rank == own_rank) own.emplace(rank, *std::move(parsed));
    images.push_back(std::move(image));
  }
  /// Makes the index of the shards that were added.
  KnownShards known() {
    const std::string bytes = builder.Finish().value();
    memory.resize(bytes.size() / 8);
    std::memcpy(memory.data(), bytes.data(), bytes.size());
    index.emplace(VersionIndex::Open(std::as_bytes(std::span(memory))).value());
    return {own ? &*own : nullptr, &*index, near};
  }

  std::optional<uint32_t> own_rank;  // that the reader knows without the index
  std::optional<PlannedShard> own;
  std::vector<uint32_t> near;
  std::vector<std::string> images;
  VersionIndexBuilder builder{"job", {Incarnation{1}, Step{1}}, 64};
  std::vector<uint64_t> memory;
  std::optional<VersionIndex> index;
};

TensorSpec Slice(const std::string& name, std::vector<uint64_t> global,
                 std::vector<uint64_t> offset, std::vector<uint64_t> shape) {
  return {name, DType::kU32, std::move(shape), std::move(global), std::move(offset)};
}

/// The tensors to load, with memory full of a pattern.
struct Wanted {
  explicit Wanted(std::vector<TensorSpec> specs) {
    state.specs = std::move(specs);
    for (const TensorSpec& spec : state.specs) {
      memory.emplace_back(CountOf(spec.shape), 0xdeadbeef);
      state.memory.push_back({.data = reinterpret_cast<std::byte*>(memory.back().data())});
    }
  }
  StateDescription state;
  std::vector<std::vector<uint32_t>> memory;
};

/// Plans and loads; returns the units.
std::vector<ReadUnit> Load(Version& version, Wanted& wanted, uint32_t reader = 0) {
  std::vector<std::string> differences;
  const auto planned = PlanLoad(version.known(), wanted.state, reader, kUnitBytes, &differences);
  EXPECT_TRUE(planned && *planned) << (planned ? "no plan" : planned.error().ToString());
  EXPECT_THAT(differences, IsEmpty());
  if (!planned || !*planned) return {};
  const LoadPlan& plan = **planned;
  // Units may be executed in any order, so the reverse order is tested.
  for (size_t i = plan.units.size(); i-- > 0;) {
    const ReadUnit& unit = plan.units[i];
    const std::string& image = version.images[unit.rank];
    EXPECT_EQ(unit.offset % kChunkBytes, 0U);
    EXPECT_LE(unit.bytes, kUnitBytes);
    EXPECT_LE(unit.offset + unit.bytes, image.size());
    EXPECT_TRUE(unit.bytes % kChunkBytes == 0 || unit.offset + unit.bytes == image.size());
    // Only the unit's own bytes are available for the copy.
    const std::string window = image.substr(unit.offset, unit.bytes);
    for (uint32_t copy : unit.copies) {
      plan.copies[copy].Run(unit, reinterpret_cast<const std::byte*>(window.data()));
    }
  }
  return plan.units;
}

void ExpectRight(const Wanted& wanted) {
  for (size_t i = 0; i < wanted.memory.size(); ++i) {
    EXPECT_EQ(wanted.memory[i], ValuesOf(wanted.state.specs[i])) << wanted.state.specs[i].name;
  }
}

TEST(ReadPlanTest, ARankMayHaveSeveralSlicesOfATensor) {
  const std::vector<uint64_t> global = {90, 5000};
  Version version;
  for (uint64_t rank = 0; rank < 2; ++rank) {
    std::vector<TensorSpec> specs;
    for (uint64_t block = 0; block < 3; ++block) {
      const std::string name = block == 0 ? "w" : "w\x1f" + std::to_string(block);
      specs.push_back(Slice(name, global, {block * 30 + rank * 15, 0}, {15, 5000}));
    }
    ASSERT_NO_FATAL_FAILURE(version.AddShard(specs));
  }
  Wanted wanted({Slice("w", global, {7, 11}, {80, 4000})});
  Load(version, wanted);
  ExpectRight(wanted);
}

TEST(ReadPlanTest, SlicesOfAnyWorldAreReadIntoAnyOther) {
  Random random(3);
  for (int round = 0; round < 40; ++round) {
    const std::vector<uint64_t> global = {1 + random.Below(700), 1 + random.Below(1500)};
    const uint64_t savers = 1 + random.Below(5);
    const uint64_t readers = 1 + random.Below(5);
    const size_t saved_along = random.Below(2);
    const size_t read_along = random.Below(2);
    const auto slice = [&](uint64_t rank, uint64_t world, size_t along) {
      std::vector<uint64_t> offset(2, 0);
      std::vector<uint64_t> shape = global;
      offset[along] = global[along] * rank / world;
      shape[along] = global[along] * (rank + 1) / world - offset[along];
      return Slice("w", global, offset, shape);
    };
    Version version;
    for (uint64_t rank = 0; rank < savers; ++rank) {
      ASSERT_NO_FATAL_FAILURE(version.AddShard({slice(rank, savers, saved_along)}));
    }
    for (uint64_t rank = 0; rank < readers; ++rank) {
      Wanted wanted({slice(rank, readers, read_along)});
      Load(version, wanted, static_cast<uint32_t>(rank));
      ExpectRight(wanted);
    }
  }
}

TEST(ReadPlanTest, EveryNeededChunkIsReadOnceAndNoOther) {
  Version version;
  const std::vector<uint64_t> global = {20, 1 << 18};  // rows of a MiB
  ASSERT_NO_FATAL_FAILURE(version.AddShard({Slice("w", global, {0, 0}, global)}));
  // A row is in two chunks, since the header comes first. A column is in one chunk of each row.
  Wanted row({Slice("w", global, {7, 0}, {1, 1 << 18})});
  EXPECT_THAT(Load(version, row), SizeIs(1));
  ExpectRight(row);
  Wanted column({Slice("w", global, {0, 5}, {20, 3}), Slice("w", global, {3, 9}, {4, 1})});
  uint64_t bytes = 0;
  std::set<uint64_t> chunks;
  for (const ReadUnit& unit : Load(version, column)) {
    bytes += unit.bytes;
    for (uint64_t at = 0; at < unit.bytes; at += kChunkBytes) {
      EXPECT_TRUE(chunks.insert((unit.offset + at) / kChunkBytes).second) << "read twice";
    }
  }
  ExpectRight(column);
  EXPECT_EQ(bytes, 20 * kChunkBytes);
}

TEST(ReadPlanTest, NearReplicasAreReadFirstOthersByReader) {
  Version version;
  const std::vector<uint64_t> shape = {100};
  for (int rank = 0; rank < 4; ++rank) {
    ASSERT_NO_FATAL_FAILURE(version.AddShard({Slice("w", shape, {0}, shape)}));
  }
  std::set<uint32_t> used;
  for (uint32_t reader = 0; reader < 4; ++reader) {
    Wanted wanted({Slice("w", shape, {0}, shape)});
    const auto units = Load(version, wanted, reader);
    ASSERT_THAT(units, SizeIs(1));
    used.insert(units[0].rank);
    ExpectRight(wanted);
  }
  EXPECT_THAT(used, SizeIs(4));
  version.near = {2};
  for (uint32_t reader = 0; reader < 9; ++reader) {
    Wanted wanted({Slice("w", shape, {0}, shape)});
    EXPECT_EQ(Load(version, wanted, reader).at(0).rank, 2U);
  }
}

TEST(ReadPlanTest, TheOwnShardAloneSufficesWhenItCoversTheTensors) {
  Version version;
  version.own_rank = 1;
  const std::vector<uint64_t> global = {8, 1000};
  for (uint64_t rank = 0; rank < 2; ++rank) {
    ASSERT_NO_FATAL_FAILURE(version.AddShard({Slice("w", global, {rank * 4, 0}, {4, 1000})}));
  }
  const KnownShards only_own = {&*version.own, nullptr, {}};
  std::vector<std::string> differences;
  const Wanted same({Slice("w", global, {4, 0}, {4, 1000}), Slice("w", global, {5, 3}, {2, 7})});
  const auto plan = PlanLoad(only_own, same.state, 1, kUnitBytes, &differences);
  ASSERT_TRUE(plan && *plan);
  EXPECT_THAT(differences, IsEmpty());
  for (const ReadUnit& unit : (*plan)->units) EXPECT_EQ(unit.rank, 1U);
  // Another slice, and a name that the own shard lacks, need the index.
  for (const TensorSpec& spec :
       {Slice("w", global, {3, 0}, {2, 1000}), Slice("v", global, {0, 0}, {1, 1})}) {
    const Wanted more({spec});
    const auto none = PlanLoad(only_own, more.state, 1, kUnitBytes, &differences);
    ASSERT_TRUE(none.has_value());
    EXPECT_FALSE(none->has_value());
    EXPECT_THAT(differences, IsEmpty());
  }
  Wanted both({Slice("w", global, {3, 0}, {2, 1000})});
  Load(version, both, 1);
  ExpectRight(both);
}

TEST(ReadPlanTest, UnitsOfAllShardsTakeTurns) {
  Version version;
  const std::vector<uint64_t> global = {3, 1 << 20};
  for (uint64_t rank = 0; rank < 3; ++rank) {
    ASSERT_NO_FATAL_FAILURE(version.AddShard({Slice("w", global, {rank, 0}, {1, 1 << 20})}));
  }
  Wanted wanted({Slice("w", global, {0, 0}, global)});
  std::vector<uint32_t> order;
  for (const ReadUnit& unit : Load(version, wanted, /*reader=*/1)) order.push_back(unit.rank);
  EXPECT_THAT(order, ElementsAre(1, 2, 0, 1, 2, 0, 1, 2, 0));
  ExpectRight(wanted);
}

TEST(ReadPlanTest, ScalarsAndEmptyTensors) {
  Version version;
  ASSERT_NO_FATAL_FAILURE(
      version.AddShard({Slice("s", {}, {}, {}), Slice("e", {0, 7}, {0, 0}, {0, 7})}));
  Wanted wanted({Slice("s", {}, {}, {}), Slice("e", {0, 7}, {0, 0}, {0, 7})});
  EXPECT_THAT(Load(version, wanted), SizeIs(1));
  ExpectRight(wanted);
}

TEST(ReadPlanTest, EveryDifferenceIsNamed) {
  Version version;
  ASSERT_NO_FATAL_FAILURE(version.AddShard({Slice("a", {8, 4}, {0, 0}, {3, 4})}));
  ASSERT_NO_FATAL_FAILURE(version.AddShard({Slice("a", {8, 4}, {5, 0}, {3, 4})}));
  Wanted wanted({Slice("a", {8, 4}, {2, 1}, {4, 2}), Slice("b", {1}, {0}, {1}),
                 Slice("a", {8, 5}, {0, 0}, {1, 1}), Slice("a", {32}, {0}, {1})});
  wanted.state.specs.push_back(Slice("a", {8, 4}, {7, 0}, {1, ~uint64_t{0}}));
  wanted.state.memory.push_back({});
  wanted.state.specs.push_back(Slice("a", {8, 4}, {0, 0}, {1, 1}));
  wanted.state.specs.back().dtype = DType::kF32;
  wanted.state.memory.push_back({});
  std::vector<std::string> differences;
  const auto plan = PlanLoad(version.known(), wanted.state, 0, kUnitBytes, &differences);
  ASSERT_TRUE(plan && *plan);
  EXPECT_THAT(
      differences,
      ElementsAre("tensor 'a' is not covered: no rank saved [3:5, 1:3] of its global shape [8, 4]",
                  "tensor 'b' was not saved",
                  "tensor 'a' was saved with the global shape [8, 4], not [8, 5]",
                  "tensor 'a' was saved with the global shape [8, 4], not [32]",
                  ::testing::StartsWith("tensor 'a' is not covered"),
                  "tensor 'a' was saved as U32, not as F32"));
}

}  // namespace
}  // namespace holdfast::client
