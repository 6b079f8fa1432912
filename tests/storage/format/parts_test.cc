#include "storage/format/parts.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "storage/format/seal.h"
#include "tests/storage/format/test_images.h"

namespace holdfast {
namespace {

uint64_t Elements(const std::vector<uint64_t>& shape) {
  uint64_t product = 1;
  for (uint64_t dimension : shape) product *= dimension;
  return product;
}

/// Copies a row-major box of `shape` into a row-major tensor of `into_shape` at `at`, element by
/// element: slow, and independent of the code that cuts parts. Counts each element that it writes.
void PlaceBox(std::string_view box, const std::vector<uint64_t>& shape, uint32_t element_bytes,
              const std::vector<uint64_t>& into_shape, const std::vector<uint64_t>& at,
              std::string* into, std::vector<int>* written) {
  for (uint64_t e = 0; e < Elements(shape); ++e) {
    uint64_t rest = e;
    uint64_t target = 0;
    uint64_t stride = 1;
    for (size_t d = shape.size(); d-- > 0;) {
      target += (at[d] + rest % shape[d]) * stride;
      rest /= shape[d];
      stride *= into_shape[d];
    }
    ASSERT_LT(target, written->size());
    into->replace(target * element_bytes, element_bytes,
                  box.substr(e * element_bytes, element_bytes));
    ++(*written)[target];
  }
}

/// A tensor assembled from its pieces.
struct Assembled {
  PlacedTensor original;
  std::string bytes;
  std::vector<int> written;
  int pieces = 0;
};

/// Checks one part on its own and adds its tensors to the assembled ones.
void CheckPart(const std::string& file, const ParsedImage& image, size_t part, size_t parts,
               std::map<std::string, Assembled>* tensors,
               std::map<std::string, std::string>* extras) {
  Result<ParsedImage> parsed = Parse(file);
  ASSERT_TRUE(parsed) << parsed.error().ToString();
  EXPECT_EQ(parsed->identity, image.identity);
  EXPECT_EQ(parsed->format, image.format);
  EXPECT_EQ(parsed->metadata.at("holdfast.part"), std::to_string(part));
  EXPECT_EQ(parsed->metadata.at("holdfast.parts"), std::to_string(parts));
  for (const PlacedTensor& piece : parsed->tensors) {
    auto found = tensors->find(piece.spec.name);
    ASSERT_NE(found, tensors->end());
    Assembled& whole = found->second;
    const TensorSpec& spec = whole.original.spec;
    EXPECT_EQ(piece.spec.dtype, spec.dtype);
    EXPECT_EQ(piece.spec.global_shape, spec.global_shape);
    std::vector<uint64_t> at;
    for (size_t d = 0; d < spec.shape.size(); ++d) {
      ASSERT_GE(piece.spec.offset[d], spec.offset[d]);
      at.push_back(piece.spec.offset[d] - spec.offset[d]);
      ASSERT_LE(at[d] + piece.spec.shape[d], spec.shape[d]);
    }
    std::string_view box =
        std::string_view(file).substr(parsed->data_offset + piece.begin, piece.bytes());
    PlaceBox(box, piece.spec.shape, SizeOf(spec.dtype), spec.shape, at, &whole.bytes,
             &whole.written);
    ++whole.pieces;
  }
  for (const PlacedExtra& extra : parsed->extras) {
    std::string bytes = file.substr(parsed->data_offset + extra.begin, extra.bytes());
    EXPECT_TRUE(extras->emplace(extra.name, bytes).second) << extra.name;
  }
}

/// Cuts an image, renders every part, and checks that the parts' bytes together are the image's,
/// that every part is a valid file, and that the parts' tensors together are the image's.
std::vector<PartPlan> CheckParts(const std::string& bytes, uint32_t count) {
  const ParsedImage image = Parse(bytes).value();
  Result<std::vector<PartPlan>> plans = PlanParts(image, count);
  EXPECT_TRUE(plans) << plans.error().ToString();
  if (!plans) return {};
  EXPECT_GE(plans->size(), 1U);
  EXPECT_LE(plans->size(), count);
  if (plans->size() == 1) {
    EXPECT_TRUE(plans->front().header.empty());
    EXPECT_EQ(plans->front().image_begin, 0U);
    EXPECT_EQ(plans->front().image_end, bytes.size());
    return *plans;
  }
  std::map<std::string, Assembled> tensors;
  for (const PlacedTensor& tensor : image.tensors) {
    tensors[tensor.spec.name] = {tensor, std::string(tensor.bytes(), '\0'),
                                 std::vector<int>(Elements(tensor.spec.shape)), 0};
  }
  std::map<std::string, std::string> extras;
  std::string together = bytes.substr(0, image.data_offset);
  for (size_t i = 0; i < plans->size(); ++i) {
    const PartPlan& plan = (*plans)[i];
    EXPECT_EQ(plan.image_begin, together.size());
    EXPECT_LT(plan.image_begin, plan.image_end);
    EXPECT_EQ(plan.header.size() % kImageAlign, plan.image_begin % kImageAlign);
    std::string data = bytes.substr(plan.image_begin, plan.image_end - plan.image_begin);
    CheckPart(plan.header + data, image, i, plans->size(), &tensors, &extras);
    together += data;
  }
  EXPECT_EQ(together, bytes);
  for (const auto& [name, whole] : tensors) {
    EXPECT_EQ(whole.bytes,
              bytes.substr(image.data_offset + whole.original.begin, whole.original.bytes()))
        << name;
    EXPECT_TRUE(std::all_of(whole.written.begin(), whole.written.end(), [](int times) {
      return times == 1;
    })) << name;
    EXPECT_GE(whole.pieces, 1) << name;
  }
  EXPECT_EQ(extras.size(), image.extras.size());
  for (const PlacedExtra& extra : image.extras) {
    EXPECT_EQ(extras[extra.name], bytes.substr(image.data_offset + extra.begin, extra.bytes()));
  }
  return *plans;
}

std::string ImageOf(const std::vector<TensorSpec>& specs, std::span<const ExtraSize> extras = {},
                    uint32_t format = kImageFormat) {
  Random random(21);
  Result<ImageLayout> layout = ImageLayout::Plan(specs, {}, format);
  EXPECT_TRUE(layout) << layout.error().ToString();
  return MakeImage(*layout, Identity(), extras, random).value();
}

TEST(PlanPartsTest, OneTensorIsCutByRowsIntoAboutEqualParts) {
  const std::string image = ImageOf({Whole("w", DType::kF32, {1000, 7})});
  std::vector<PartPlan> plans = CheckParts(image, 3);
  ASSERT_EQ(plans.size(), 3U);
  for (const PartPlan& plan : plans) {
    EXPECT_NEAR(static_cast<double>(plan.image_end - plan.image_begin), 28000 / 3.0, 28);
  }
}

TEST(PlanPartsTest, OneDimensionIsCutByElements) {
  std::vector<PartPlan> plans = CheckParts(ImageOf({Whole("w", DType::kF64, {64})}), 64);
  EXPECT_EQ(plans.size(), 64U);
  EXPECT_EQ(CheckParts(ImageOf({Whole("w", DType::kF64, {5})}), 64).size(), 5U);
}

TEST(PlanPartsTest, LeadingDimensionsOfOneAreSkipped) {
  EXPECT_EQ(
      CheckParts(ImageOf({Slice("w", DType::kF16, {1, 1, 40, 3}, {8, 1, 80, 3}, {5, 0, 40, 0})}), 4)
          .size(),
      4U);
}

TEST(PlanPartsTest, TensorsStayCompleteWherePossible) {
  std::vector<TensorSpec> specs;
  for (int i = 0; i < 8; ++i) specs.push_back(Whole("t" + std::to_string(i), DType::kU8, {100}));
  const std::string image = ImageOf(specs);
  for (const PartPlan& plan : CheckParts(image, 4)) {
    EXPECT_EQ(Parse(plan.header + std::string(200, 'x')).value().tensors.size(), 2U);
  }
}

TEST(PlanPartsTest, CutsAreAtTheNearestRow) {
  const std::vector<ExtraSize> long_first = {{"a", 110}, {"b", 90}};
  const std::vector<ExtraSize> long_last = {{"a", 90}, {"b", 110}};
  EXPECT_EQ(CheckParts(ImageOf({}, long_first), 2).at(0).image_end, kImageAlign + 110);
  EXPECT_EQ(CheckParts(ImageOf({}, long_last), 2).at(0).image_end, kImageAlign + 90);
}

TEST(PlanPartsTest, SmallImagesHaveFewerParts) {
  EXPECT_EQ(CheckParts(ImageOf({}), 4).size(), 1U);
  EXPECT_EQ(CheckParts(ImageOf({Whole("s", DType::kF64, {})}), 4).size(), 1U);
  EXPECT_EQ(CheckParts(ImageOf({Whole("e", DType::kF64, {0, 5})}), 4).size(), 1U);
  EXPECT_EQ(CheckParts(ImageOf({}, std::vector<ExtraSize>{{"rng", 5000}}), 4).size(), 1U);
  EXPECT_EQ(CheckParts(ImageOf({Whole("w", DType::kF64, {100})}), 1).size(), 1U);
}

TEST(PlanPartsTest, RefusesInvalidCountsAndForeignFiles) {
  const ParsedImage image = Parse(ImageOf({Whole("w", DType::kF64, {100})})).value();
  EXPECT_EQ(PlanParts(image, 0).error().code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(PlanParts(image, kPartsMax + 1).error().code(), ErrorCode::kInvalidArgument);
  const ParsedImage foreign =
      Parse(FileOf(R"({"x":{"dtype":"U8","shape":[9],"data_offsets":[0,9]}})", 9)).value();
  EXPECT_EQ(PlanParts(foreign, 2).error().code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(PlanParts(foreign, 1).value().size(), 1U);
}

TEST(PlanPartsTest, RandomShapesAndCounts) {
  Random random(31);
  for (int round = 0; round < 300; ++round) {
    std::vector<TensorSpec> specs;
    for (uint64_t i = random.Below(12); i > 0; --i) {
      TensorSpec spec;
      spec.name = "t\"" + std::to_string(i);
      spec.dtype = AllDTypes()[random.Below(AllDTypes().size())];
      for (uint64_t d = random.Below(4); d > 0; --d) {
        spec.shape.push_back(random.OneIn(12) ? 0 : 1 + random.Below(random.OneIn(3) ? 40 : 3));
        spec.offset.push_back(random.OneIn(2) ? random.Below(9) : 0);
        spec.global_shape.push_back(spec.shape.back() + spec.offset.back() + random.Below(2));
      }
      specs.push_back(std::move(spec));
    }
    std::vector<ExtraSize> extras;
    if (random.OneIn(2)) extras.push_back({"rng", random.Below(300)});
    if (random.OneIn(3)) extras.push_back({"none", 0});
    if (random.OneIn(3)) extras.push_back({"data", random.Below(9000)});
    const uint32_t format = 1 + static_cast<uint32_t>(round) % kImageFormatMax;
    CheckParts(ImageOf(specs, extras, format), 1 + static_cast<uint32_t>(random.Below(8)));
    ASSERT_FALSE(HasFailure()) << "round " << round;
  }
}

TEST(PlanPartsTest, TenThousandTensors) {
  std::vector<TensorSpec> specs;
  for (uint64_t i = 0; i < 10'000; ++i) {
    specs.push_back(
        Slice("layer." + std::to_string(i), DType::kBF16, {i % 5, 4}, {20, 4}, {i % 7, 0}));
  }
  const std::string image = ImageOf(specs);
  std::vector<PartPlan> plans = CheckParts(image, 4);
  ASSERT_EQ(plans.size(), 4U);
  for (const PartPlan& plan : plans) {
    EXPECT_NEAR(static_cast<double>(plan.image_end - plan.image_begin), 2 * 2 * 4 * 10'000 / 4.0,
                32);
  }
}

/// A seal with the parts of PlanParts is valid.
TEST(PlanPartsTest, PlansMakeAValidSeal) {
  const std::string image =
      ImageOf({Whole("w", DType::kF32, {1000, 77}), Whole("v", DType::kU8, {3})});
  const ParsedImage parsed = Parse(image).value();
  for (uint32_t count : {1U, 3U}) {
    ShardSeal seal;
    seal.identity = Identity();
    seal.image_bytes = image.size();
    seal.chunk_crcs = ChunkCrcs(Bytes(image));
    const std::vector<PartPlan> plans = PlanParts(parsed, count).value();
    for (const PartPlan& plan : plans) {
      seal.parts.push_back({plan.image_begin, plan.image_end, plan.header.size(),
                            plan.header.size() + plan.image_end - plan.image_begin,
                            Crc32c(Bytes(plan.header))});
    }
    if (plans.size() > 1) seal.image_header = image.substr(0, parsed.data_offset);
    Result<ShardSeal> decoded = DecodeSeal(Bytes(EncodeSeal(seal)));
    ASSERT_TRUE(decoded) << decoded.error().ToString();
    EXPECT_EQ(*decoded, seal);
  }
}

}  // namespace
}  // namespace holdfast
