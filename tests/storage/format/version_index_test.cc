#include "storage/format/version_index.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <set>

#include "base/random.h"
#include "storage/format/version_index_builder.h"

// Each index is compared with the headers that it was made from.

namespace holdfast {
namespace {
using ::testing::HasSubstr;

const VersionId kVersion{Incarnation{3}, Step{9}};

TensorSpec Slice(const std::string& name, std::vector<uint64_t> global,
                 std::vector<uint64_t> offset, std::vector<uint64_t> shape) {
  return {name, DType::kU16, std::move(shape), std::move(global), std::move(offset)};
}

struct Shard {
  ParsedImage image;
  std::string extras;
};

Shard MakeShard(uint32_t rank, uint32_t world, std::vector<TensorSpec> tensors,
                const std::vector<std::pair<std::string, std::string>>& extras = {}) {
  auto layout = ImageLayout::Plan(std::move(tensors));
  EXPECT_TRUE(layout.has_value()) << layout.error().ToString();
  std::vector<ExtraSize> sizes;
  Shard shard;
  for (const auto& [name, bytes] : extras) {
    sizes.push_back({name, bytes.size()});
    shard.extras += bytes;
  }
  const std::string header =
      layout->RenderHeader({"job", kVersion, Rank{rank}, world}, sizes).value();
  shard.image = ParseImage(std::as_bytes(std::span(header)),
                           header.size() + layout->tensor_bytes() + shard.extras.size())
                    .value();
  return shard;
}

/// The bytes of an index, aligned as in a mapping.
class Bytes {
 public:
  explicit Bytes(const std::string& bytes) : memory_(bytes.size() / 8) {
    std::memcpy(memory_.data(), bytes.data(), memory_.size() * 8);
  }
  std::span<std::byte> span() { return std::as_writable_bytes(std::span(memory_)); }
  VersionIndex Open() { return VersionIndex::Open(span()).value(); }

 private:
  std::vector<uint64_t> memory_;
};

std::string IndexOf(const std::vector<Shard>& shards, uint32_t world) {
  VersionIndexBuilder builder("job", kVersion, world);
  for (const Shard& shard : shards) {
    const Status added = builder.Add(shard.image, std::as_bytes(std::span(shard.extras)));
    EXPECT_TRUE(added.ok()) << added.ToString();
  }
  return builder.Finish().value();
}

/// Compares all that the index has about each shard with the shard's header.
void ExpectDescribes(const VersionIndex& index, const std::vector<Shard>& shards) {
  EXPECT_TRUE(index.Verify().ok());
  EXPECT_EQ(index.job(), "job");
  EXPECT_EQ(index.version(), kVersion);
  ASSERT_EQ(index.shards(), shards.size());
  for (const Shard& shard : shards) {
    const Rank rank = shard.image.identity.rank;
    const auto found = index.ShardOf(rank).value();
    EXPECT_EQ(found.data_offset, shard.image.data_offset);
    EXPECT_EQ(found.image_bytes, shard.image.image_bytes);
    const auto of = index.ClassAt(found.shard_class).value();
    ASSERT_EQ(of.tensors, shard.image.tensors.size());
    for (size_t i = 0; i < shard.image.tensors.size(); ++i) {
      const PlacedTensor& placed = shard.image.tensors[i];
      const auto tensor = index.TensorAt(of, i).value();
      const auto name = index.NameAt(tensor.name).value();
      const std::string text =
          std::string(name.text) + (name.marked ? std::to_string(rank.value) : "");
      EXPECT_EQ(text, BaseTensorName(placed.spec.name));
      EXPECT_EQ(tensor.dtype, placed.spec.dtype);
      EXPECT_TRUE(std::ranges::equal(tensor.shape, placed.spec.shape));
      EXPECT_TRUE(std::ranges::equal(tensor.global_shape, placed.spec.global_shape));
      EXPECT_EQ(index.OffsetOf(tensor, of, found.position).value(), placed.spec.offset);
      EXPECT_EQ(tensor.begin, placed.begin);
      // The same tensor is found by its name.
      bool has_use = false;
      const auto uses = index.Find(text).value().uses;
      for (const index::UseRow& use : uses) {
        has_use = has_use || (use.shard_class == found.shard_class && use.tensor == i);
      }
      EXPECT_TRUE(has_use) << text;
    }
    const auto extras = index.ExtrasOf(found).value();
    ASSERT_EQ(extras.size(), shard.image.extras.size());
    for (size_t i = 0; i < extras.size(); ++i) {
      const PlacedExtra& placed = shard.image.extras[i];
      EXPECT_EQ(extras[i].name, placed.name);
      EXPECT_EQ(extras[i].begin, shard.image.data_offset + placed.begin);
      if (extras[i].content) {
        EXPECT_EQ(
            *extras[i].content,
            shard.extras.substr(placed.begin - shard.image.extras.front().begin, placed.bytes()));
      }
    }
  }
}

/// A world with sharded, replicated and rank-local tensors; the last ranks have shorter slices.
std::vector<Shard> SomeWorld(uint32_t world) {
  std::vector<Shard> shards;
  for (uint32_t rank = 0; rank < world; ++rank) {
    std::vector<TensorSpec> tensors;
    for (uint64_t t = 0; t < 20; ++t) {
      const uint64_t rows = 7 + t * 13;
      const uint64_t part = (rows + world - 1) / world;
      const uint64_t first = std::min(rank * part, rows);
      const uint64_t count = std::min(part, rows - first);
      if (count > 0) {
        tensors.push_back(Slice("w" + std::to_string(t), {rows, 5}, {first, 0}, {count, 5}));
      }
      tensors.push_back(
          Slice("step" + std::to_string(t) + "@rank" + std::to_string(rank), {}, {}, {}));
    }
    tensors.push_back(Slice("bias", {3}, {0}, {3}));
    tensors.push_back(Slice("cut", {2, uint64_t{world} * 4}, {rank % 2, rank / 2 * 4}, {1, 4}));
    shards.push_back(MakeShard(rank, world, std::move(tensors),
                               {{"layout", std::string(5000, 'l')},
                                {"random", std::string(3000, 'r') + std::to_string(rank)}}));
  }
  return shards;
}

TEST(VersionIndex, DescribesEachShard) {
  for (uint32_t world : {1U, 2U, 7U, 64U}) {
    const std::vector<Shard> shards = SomeWorld(world);
    Bytes bytes(IndexOf(shards, world));
    ASSERT_NO_FATAL_FAILURE(ExpectDescribes(bytes.Open(), shards)) << world;
  }
}

TEST(VersionIndex, IndexesOfNodesAreJoinedToTheSameBytes) {
  const std::vector<Shard> shards = SomeWorld(24);
  const std::string whole = IndexOf(shards, 24);
  Random random(5);
  for (uint32_t ranks_per_node : {1U, 5U, 8U}) {
    std::vector<std::string> parts;
    for (uint32_t first = 0; first < 24; first += ranks_per_node) {
      const uint32_t last = std::min(first + ranks_per_node, 24U);
      parts.push_back(IndexOf({shards.begin() + first, shards.begin() + last}, 24));
    }
    for (size_t i = parts.size(); i-- > 1;) std::swap(parts[i], parts[random.Below(i + 1)]);
    VersionIndexBuilder builder("job", kVersion, 24);
    for (const std::string& part : parts) {
      Bytes bytes(part);
      const Status added = builder.Add(bytes.Open());
      ASSERT_TRUE(added.ok()) << added.ToString();
      // Added again, it changes nothing.
      ASSERT_TRUE(builder.Add(bytes.Open()).ok());
    }
    Bytes joined(builder.Finish().value());
    ASSERT_NO_FATAL_FAILURE(ExpectDescribes(joined.Open(), shards));
    // A node with one shard does not know that others have the same extra state.
    if (ranks_per_node > 1) {
      EXPECT_TRUE(builder.Finish().value() == whole) << ranks_per_node;
    }
  }
}

// Dimensions that are cut alike in some shards and differently in others. Neither the order of the
// shards nor their nodes change the bytes.
TEST(VersionIndex, OffsetsThatAreAlikeInSomeShardsOnly) {
  Random random(5);
  for (int round = 0; round < 30; ++round) {
    const auto world = static_cast<uint32_t>(2 + random.Below(30));
    std::vector<Shard> shards;
    for (uint32_t rank = 0; rank < world; ++rank) {
      std::vector<TensorSpec> tensors;
      for (uint64_t t = 0; t < 12; ++t) {
        uint64_t row = rank * (t % 3 + 1) * 6;
        if (random.OneIn(8)) row = random.Below(world) * 6 / (t % 2 + 1);
        if (random.OneIn(8)) row = 0;
        const uint64_t column = random.OneIn(6) ? 0 : uint64_t{rank} * 7;
        tensors.push_back(Slice("t" + std::to_string(t), {1000, 1000}, {row, column}, {6, 7}));
      }
      shards.push_back(MakeShard(rank, world, std::move(tensors)));
    }
    const std::string direct = IndexOf(shards, world);
    Bytes bytes(direct);
    ASSERT_NO_FATAL_FAILURE(ExpectDescribes(bytes.Open(), shards));
    std::vector<Shard> mixed = shards;
    for (size_t i = mixed.size(); i > 1; --i) std::swap(mixed[i - 1], mixed[random.Below(i)]);
    EXPECT_TRUE(IndexOf(mixed, world) == direct) << "round " << round;
    VersionIndexBuilder joined("job", kVersion, world);
    for (size_t from = 0; from < mixed.size();) {
      const size_t to = std::min<size_t>(mixed.size(), from + 1 + random.Below(6));
      const std::vector<Shard> node(mixed.begin() + static_cast<ptrdiff_t>(from),
                                    mixed.begin() + static_cast<ptrdiff_t>(to));
      Bytes part(IndexOf(node, world));
      const Status added = joined.Add(part.Open());
      ASSERT_TRUE(added.ok()) << added.ToString();
      from = to;
    }
    EXPECT_TRUE(joined.Finish().value() == direct) << "round " << round;
  }
}

TEST(VersionIndex, FindsNamesAndNoOthers) {
  Bytes bytes(IndexOf(SomeWorld(7), 7));
  const VersionIndex index = bytes.Open();
  EXPECT_FALSE(index.Find("bias").value().only.has_value());
  EXPECT_FALSE(index.Find("bias").value().uses.empty());
  const auto marked = index.Find("step3@rank5").value();
  EXPECT_EQ(marked.only, Rank{5});
  EXPECT_FALSE(marked.uses.empty());
  for (const char* name : {"", "w", "w99", "bias2", "step3", "step3@rank", "step3@rank05",
                           "step3@rank99999999999999", "w1@rank0"}) {
    EXPECT_TRUE(index.Find(name).value().uses.empty()) << name;
  }
}

/// A shard may have a tensor that another rank named, as after an import.
TEST(VersionIndex, ANameWithTheMarkOfAnotherRankIsAPlainName) {
  const std::vector<Shard> shards = {
      MakeShard(0, 2, {Slice("x@rank1", {2}, {0}, {2}), Slice("y@rank0", {2}, {0}, {2})}),
      MakeShard(1, 2, {Slice("y@rank1", {2}, {0}, {2})})};
  Bytes bytes(IndexOf(shards, 2));
  const VersionIndex index = bytes.Open();
  ASSERT_NO_FATAL_FAILURE(ExpectDescribes(index, shards));
  EXPECT_FALSE(index.Find("x@rank1").value().only.has_value());
  EXPECT_EQ(index.Find("x@rank1").value().uses.size(), 1U);
  EXPECT_TRUE(index.Find("x@rank0").value().uses.empty());
  EXPECT_EQ(index.Find("y@rank1").value().only, Rank{1});
}

TEST(VersionIndex, OverlapsAreThoseOfAllBoxes) {
  Random random(11);
  const std::vector<Shard> shards = SomeWorld(16);
  Bytes bytes(IndexOf(shards, 16));
  const VersionIndex index = bytes.Open();
  for (int round = 0; round < 300; ++round) {
    const std::string name = random.OneIn(3) ? "cut" : "w" + std::to_string(random.Below(20));
    const std::vector<uint64_t>* global = nullptr;
    for (const Shard& shard : shards) {
      for (const PlacedTensor& placed : shard.image.tensors) {
        if (placed.spec.name == name) global = &placed.spec.global_shape;
      }
    }
    Box box;
    for (uint64_t length : *global) {
      box.offset.push_back(random.Below(length));
      box.shape.push_back(1 + random.Below(length - box.offset.back()));
    }
    std::set<std::pair<uint32_t, std::vector<uint64_t>>> expected;
    for (const Shard& shard : shards) {
      for (const PlacedTensor& placed : shard.image.tensors) {
        if (placed.spec.name == name && Intersect({placed.spec.offset, placed.spec.shape}, box)) {
          expected.emplace(shard.image.identity.rank.value, placed.spec.offset);
        }
      }
    }
    std::set<std::pair<uint32_t, std::vector<uint64_t>>> found;
    const auto uses = index.Find(name).value().uses;
    for (const index::UseRow& use : uses) {
      const auto of = index.ClassAt(use.shard_class).value();
      const auto tensor = index.TensorAt(of, use.tensor).value();
      const Status walked = index.ForEachOverlap(of, tensor, box, random.Below(1000),
                                                 [&](Rank rank, const Box& piece) {
                                                   found.emplace(rank.value, piece.offset);
                                                   return true;
                                                 });
      ASSERT_TRUE(walked.ok()) << walked.ToString();
    }
    EXPECT_EQ(found, expected) << name << ToString(box);
  }
}

/// Headers that differ only in offsets are stored once.
TEST(VersionIndex, ItsLengthHardlyDependsOnTheWorld) {
  const auto bytes_of = [](uint32_t world) {
    std::vector<Shard> shards;
    for (uint32_t rank = 0; rank < world; ++rank) {
      std::vector<TensorSpec> tensors;
      for (uint64_t t = 0; t < 300; ++t) {
        const std::string name = "layers." + std::to_string(t) + ".weight";
        tensors.push_back(Slice(name, {world * (t + 1), 8}, {rank * (t + 1), 0}, {t + 1, 8}));
        tensors.push_back(Slice("optim." + name + ".step@rank" + std::to_string(rank), {}, {}, {}));
      }
      shards.push_back(MakeShard(rank, world, std::move(tensors)));
    }
    return IndexOf(shards, world).size();
  };
  const size_t small = bytes_of(2);
  EXPECT_LT(bytes_of(128), small + 128 * 60);
}

TEST(VersionIndex, OtherVersionsAndShardsAreRefused) {
  VersionIndexBuilder builder("job", {Incarnation{3}, Step{10}}, 2);
  EXPECT_EQ(builder.Add(MakeShard(0, 2, {}).image, {}).code(), ErrorCode::kInvalidArgument);
  VersionIndexBuilder world("job", kVersion, 3);
  EXPECT_EQ(world.Add(MakeShard(0, 2, {}).image, {}).code(), ErrorCode::kInvalidArgument);
  Bytes bytes(IndexOf({MakeShard(0, 2, {})}, 2));
  EXPECT_EQ(world.Add(bytes.Open()).code(), ErrorCode::kDataLoss);
  const Shard shard = MakeShard(1, 3, {}, {{"random", "abc"}});
  EXPECT_EQ(world.Add(shard.image, {}).code(), ErrorCode::kInvalidArgument);
}

/// Asks the index for everything; only the lengths of what it returns are used.
void ReadAll(const VersionIndex& index) {
  for (uint64_t i = 0; i < index.shards() && i < 100; ++i) {
    const auto shard = index.ShardAt(i);
    if (!shard) {
      EXPECT_EQ(shard.error().code(), ErrorCode::kDataLoss);
      continue;
    }
    std::ignore = index.ExtrasOf(*shard);
  }
  for (uint64_t c = 0; c < index.classes() && c < 100; ++c) {
    const auto of = index.ClassAt(c);
    for (uint64_t t = 0; of && t < of->tensors && t < 100; ++t) {
      const auto tensor = index.TensorAt(*of, t);
      if (!tensor) continue;
      Box all{std::vector<uint64_t>(tensor->shape.size()),
              {tensor->global_shape.begin(), tensor->global_shape.end()}};
      std::ignore =
          index.ForEachOverlap(*of, *tensor, all, 3, [](Rank, const Box&) { return true; });
    }
  }
  for (uint64_t n = 0; n < index.names() && n < 100; ++n) std::ignore = index.NameAt(n);
  for (const char* name : {"w3", "bias", "step3@rank5", ""}) std::ignore = index.Find(name);
}

/// Every single byte may be wrong: an error or another answer, and never an access outside.
TEST(VersionIndex, ADamagedIndexIsAnError) {
  const std::string whole = IndexOf(SomeWorld(7), 7);
  Bytes bytes(whole);
  Random random(2);
  for (size_t at = 0; at < whole.size(); at += at < 2000 ? 1 : 1 + random.Below(23)) {
    std::byte& byte = bytes.span()[at];
    const std::byte before = byte;
    for (const std::byte bit : {std::byte{1}, std::byte{0x80}, std::byte{0xff}}) {
      byte = before ^ bit;
      const auto index = VersionIndex::Open(bytes.span());
      if (!index) {
        EXPECT_EQ(index.error().code(), ErrorCode::kDataLoss);
        EXPECT_THAT(index.error().message(), HasSubstr("the version index is damaged"));
        continue;
      }
      EXPECT_EQ(index->Verify().code(), ErrorCode::kDataLoss) << at;
      ReadAll(*index);
      VersionIndexBuilder builder("job", kVersion, 7);
      std::ignore = builder.Add(*index);
      std::ignore = builder.Finish();
    }
    byte = before;
  }
  for (size_t length = 0; length < whole.size(); length += 1 + random.Below(50)) {
    EXPECT_FALSE(VersionIndex::Open(bytes.span().first(length))) << length;
  }
}

}  // namespace
}  // namespace holdfast
