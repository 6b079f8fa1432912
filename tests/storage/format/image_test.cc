#include "storage/format/image.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/storage/format/test_images.h"

namespace holdfast {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

void ExpectSameTensors(std::span<const PlacedTensor> a, std::span<const PlacedTensor> b) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    ASSERT_EQ(a[i].spec, b[i].spec) << a[i].spec.name << " and " << b[i].spec.name;
    ASSERT_EQ(a[i].begin, b[i].begin) << a[i].spec.name;
    ASSERT_EQ(a[i].end, b[i].end) << a[i].spec.name;
  }
}

/// Compares all but the metadata and the tensors.
void ExpectSameExtras(const ParsedImage& a, const ParsedImage& b) {
  EXPECT_EQ(a.identity, b.identity);
  EXPECT_EQ(a.format, b.format);
  EXPECT_EQ(a.data_offset, b.data_offset);
  EXPECT_EQ(a.image_bytes, b.image_bytes);
  ASSERT_EQ(a.extras.size(), b.extras.size());
  for (size_t i = 0; i < a.extras.size(); ++i) {
    EXPECT_EQ(a.extras[i].name, b.extras[i].name);
    EXPECT_EQ(a.extras[i].begin, b.extras[i].begin);
    EXPECT_EQ(a.extras[i].end, b.extras[i].end);
  }
}

/// Renders a header, checks its form, parses it and returns it.
std::string RoundTrip(const ImageLayout& layout, const ShardIdentity& identity,
                      std::span<const ExtraSize> extras, uint32_t format = kImageFormat) {
  Result<std::string> header = layout.RenderHeader(identity, extras);
  EXPECT_TRUE(header) << header.error().ToString();
  if (!header) return {};
  EXPECT_EQ(header->size() % kImageAlign, 0U);
  uint64_t extra_bytes = 0;
  for (const ExtraSize& extra : extras) extra_bytes += extra.bytes;
  const uint64_t image_bytes = header->size() + layout.tensor_bytes() + extra_bytes;
  EXPECT_LE(image_bytes, layout.ImageBytesMax(extra_bytes, extras.size()));
  EXPECT_EQ(HeaderBytes(Bytes(*header).first(8), image_bytes).value(), header->size());
  Result<ParsedImage> image = ParseImage(Bytes(*header), image_bytes);
  EXPECT_TRUE(image) << image.error().ToString();
  const Result<ParsedImage> same = ParseImage(Bytes(*header), image_bytes, &layout);
  EXPECT_TRUE(same) << same.error().ToString();
  if (same) {
    EXPECT_TRUE(same->has_expected);
    EXPECT_TRUE(same->tensors.empty());
    if (image) ExpectSameExtras(*image, *same);
  }
  if (!image) return {};
  EXPECT_EQ(image->identity, identity);
  EXPECT_EQ(image->format, format);
  EXPECT_EQ(image->data_offset, header->size());
  EXPECT_EQ(image->image_bytes, image_bytes);
  EXPECT_EQ(image->metadata.at("holdfast.job"), identity.job);
  ExpectSameTensors(image->tensors, layout.tensors());
  EXPECT_EQ(image->extras.size(), extras.size());
  uint64_t begin = layout.tensor_bytes();
  for (size_t i = 0; i < std::min(image->extras.size(), extras.size()); ++i) {
    EXPECT_EQ(image->extras[i].name, extras[i].name);
    EXPECT_EQ(image->extras[i].begin, begin);
    EXPECT_EQ(image->extras[i].bytes(), extras[i].bytes);
    begin += extras[i].bytes;
  }
  return *header;
}

TEST(ImageLayoutTest, AnEmptyStateIsAnImageToo) {
  Result<ImageLayout> layout = ImageLayout::Plan({});
  ASSERT_TRUE(layout);
  EXPECT_EQ(layout->tensor_bytes(), 0U);
  RoundTrip(*layout, Identity(), {});
  RoundTrip(*layout, Identity(), std::vector<ExtraSize>{{"rng", 7}});
}

TEST(ImageLayoutTest, AllDTypesInDescendingSizeThenName) {
  std::vector<TensorSpec> specs;
  for (DType dtype : AllDTypes()) {
    specs.push_back(Whole("b." + std::string(NameOf(dtype)), dtype, {3, 5}));
    specs.push_back(Whole("a." + std::string(NameOf(dtype)), dtype, {}));
    specs.push_back(Whole("c." + std::string(NameOf(dtype)), dtype, {4, 0}));
  }
  Result<ImageLayout> layout = ImageLayout::Plan(specs);
  ASSERT_TRUE(layout);
  ASSERT_EQ(layout->original_index().size(), specs.size());
  uint64_t reached = 0;
  for (size_t i = 0; i < specs.size(); ++i) {
    const PlacedTensor& tensor = layout->tensors()[i];
    EXPECT_EQ(tensor.spec, specs[layout->original_index()[i]]);
    EXPECT_EQ(tensor.begin, reached);
    EXPECT_EQ(tensor.begin % SizeOf(tensor.spec.dtype), 0U);
    reached = tensor.end;
    if (i == 0) continue;
    const TensorSpec& before = layout->tensors()[i - 1].spec;
    uint32_t size_before = SizeOf(before.dtype);
    uint32_t size = SizeOf(tensor.spec.dtype);
    EXPECT_TRUE(size_before > size || (size_before == size && before.name < tensor.spec.name));
  }
  EXPECT_EQ(reached, layout->tensor_bytes());
  EXPECT_EQ(reached, 16U * (5 * 1 + 4 * 2 + 3 * 4 + 4 * 8));
  RoundTrip(*layout, Identity(), std::vector<ExtraSize>{{"a", 1}, {"b", 0}, {"c", 4097}});
}

TEST(ImageLayoutTest, PlacesOrderTensorsOfOneElementSize) {
  const std::vector<TensorSpec> specs = {
      Whole("a", DType::kF32, {4}), Whole("b", DType::kF32, {4}), Whole("c", DType::kI32, {4}),
      Whole("d", DType::kBF16, {4}), Whole("e", DType::kF32, {4})};
  const std::vector<uint64_t> places = {300, 0, 200, 100, 0};
  Result<ImageLayout> layout = ImageLayout::Plan(specs, places);
  ASSERT_TRUE(layout);
  std::string order;
  for (const PlacedTensor& tensor : layout->tensors()) order += tensor.spec.name;
  EXPECT_EQ(order, "becad");
  RoundTrip(*layout, Identity(), std::vector<ExtraSize>{{"rng", 7}});
}

TEST(ImageLayoutTest, SliceNamesMapToTheirTensor) {
  EXPECT_EQ(BaseTensorName("w"), "w");
  EXPECT_EQ(BaseTensorName("w\x1f"
                           "1"),
            "w");
  EXPECT_EQ(BaseTensorName("a.w\x1f"
                           "120"),
            "a.w");
  for (const std::string other : {"w1",
                                  "\x1f"
                                  "1",
                                  "w\x1f",
                                  "w\x1f"
                                  "1x",
                                  "w\x1f-1"}) {
    EXPECT_EQ(BaseTensorName(other), other);
  }
}

TEST(ImageLayoutTest, UnusualNamesRoundTrip) {
  const std::vector<std::string> names = {"plain",
                                          "with space",
                                          "quote\"",
                                          "back\\slash",
                                          "tab\t, nl\n, bell\a",
                                          "\x7f",
                                          "\xc2\x80",
                                          "größe.Ω.中文",
                                          "emoji 🚀",
                                          "zero width\u200b",
                                          "\u202eright",
                                          "e\u0301",
                                          std::string("nul\0in", 6),
                                          "\xf4\x8f\xbf\xbf",
                                          "[0]",
                                          "{}",
                                          "\"}]}",
                                          "__metadata",
                                          "holdfast.extra",
                                          "holdfast.slices",
                                          std::string(kTensorNameMax, 'x')};
  std::vector<TensorSpec> specs;
  for (const std::string& name : names) {
    specs.push_back(Slice(name, DType::kU8, {1, 2}, {3, 2}, {1, 0}));
  }
  Result<ImageLayout> layout = ImageLayout::Plan(specs);
  ASSERT_TRUE(layout) << layout.error().ToString();
  RoundTrip(*layout, Identity(), {});
}

TEST(ImageLayoutTest, TenThousandTensors) {
  std::vector<TensorSpec> specs;
  uint64_t bytes = 0;
  for (uint64_t i = 0; i < 10'000; ++i) {
    std::string name = "model.layers." + std::to_string(i) + ".attention.weight";
    uint64_t rows = i % 17;
    specs.push_back(i % 2 == 0 ? Whole(name, DType::kF32, {rows, 3})
                               : Slice(name, DType::kBF16, {rows, 3}, {rows * 4, 3}, {rows, 0}));
    bytes += rows * 3 * (i % 2 == 0 ? 4 : 2);
  }
  Result<ImageLayout> layout = ImageLayout::Plan(specs);
  ASSERT_TRUE(layout);
  EXPECT_EQ(layout->tensor_bytes(), bytes);
  std::string header = RoundTrip(*layout, Identity(), std::vector<ExtraSize>{{"rng", 2500}});
  EXPECT_GT(header.size(), 900'000U);
}

TEST(ImageLayoutTest, OnlyAHeaderWithTheSameTensorsIsReadWithoutThem) {
  const TensorSpec a = Whole("a", DType::kF32, {2});
  const TensorSpec b = Slice("b", DType::kF32, {2, 1}, {4, 1}, {2, 0});
  const TensorSpec c = Whole("c", DType::kF32, {1});
  const auto layout_of = [](std::vector<TensorSpec> specs) {
    return ImageLayout::Plan(std::move(specs)).value();
  };
  const ImageLayout expected = layout_of({a, b});
  const TensorSpec other_shape = Whole("a", DType::kF32, {1, 2});
  const TensorSpec other_slice = Slice("b", DType::kF32, {2, 1}, {4, 1}, {0, 0});
  const ImageLayout short_slices = ImageLayout::Plan({a, b}, {}, kShortSlicesFormat).value();
  const std::vector<std::pair<ImageLayout, bool>> cases = {{layout_of({a, b}), true},
                                                           {layout_of({a, b, c}), false},
                                                           {layout_of({a}), false},
                                                           {layout_of({c, a, b}), false},
                                                           {layout_of({other_shape, b}), false},
                                                           {layout_of({a, other_slice}), false},
                                                           {short_slices, false}};
  for (const auto& [layout, same] : cases) {
    const std::vector<ExtraSize> extras = {{"rng", 12}, {"loader", 0}};
    const std::string header = layout.RenderHeader(Identity(), extras).value();
    const uint64_t image_bytes = header.size() + layout.tensor_bytes() + 12;
    const ParsedImage usual = ParseImage(Bytes(header), image_bytes).value();
    const Result<ParsedImage> fast = ParseImage(Bytes(header), image_bytes, &expected);
    ASSERT_TRUE(fast) << fast.error().ToString();
    EXPECT_EQ(fast->has_expected, same) << layout.tensors().size();
    ExpectSameExtras(usual, *fast);
    // The fast way leaves out the tensors and the slices.
    EXPECT_EQ(fast->metadata != usual.metadata, same);
    if (same) {
      EXPECT_TRUE(fast->tensors.empty());
    } else {
      ExpectSameTensors(usual.tensors, fast->tensors);
    }
    EXPECT_FALSE(ParseImage(Bytes(header), image_bytes + 1, &expected));
  }
}

TEST(ImageLayoutTest, AHeaderOfFormat2IsAThirdShorter) {
  std::vector<TensorSpec> specs;
  for (uint64_t i = 0; i < 1000; ++i) {
    specs.push_back(Slice("optim.state.layers." + std::to_string(i) + ".block.0.weight.exp_avg",
                          DType::kF32, {2, 5494}, {16'384, 5494}, {8192, 0}));
  }
  const auto header_bytes = [&](uint32_t format) {
    const ImageLayout layout = ImageLayout::Plan(specs, {}, format).value();
    return RoundTrip(layout, Identity(), {}, format).size();
  };
  EXPECT_LT(header_bytes(kShortSlicesFormat) * 3, header_bytes(kImageFormat) * 2);
}

TEST(ImageLayoutTest, LargestNumbersFitTheBound) {
  Result<ImageLayout> layout =
      ImageLayout::Plan({Slice("x", DType::kU8, {1ULL << 61}, {1ULL << 61}, {0}),
                         Slice("y", DType::kF64, {1}, {1ULL << 58}, {(1ULL << 58) - 1})});
  ASSERT_TRUE(layout) << layout.error().ToString();
  constexpr uint64_t kMax = ~uint64_t{0};
  const std::string name(128, 'j');
  std::vector<std::string> names;
  for (int i = 0; i < 100; ++i)
    names.push_back(std::string(126, 'e') + std::to_string(10 + i % 90));
  std::sort(names.begin(), names.end());
  names.erase(std::unique(names.begin(), names.end()), names.end());
  std::vector<ExtraSize> extras;
  for (const std::string& extra : names) extras.push_back({extra, 1ULL << 50});
  RoundTrip(*layout, Identity(name, kMax, kMax, kWorldMax - 1, kWorldMax), extras);
  EXPECT_EQ(layout->ImageBytesMax(kMax, 1), kMax);
  EXPECT_EQ(layout->ImageBytesMax(1, kMax), kMax);
}

TEST(ImageLayoutTest, EveryInvalidTensorIsNamed) {
  Result<ImageLayout> layout = ImageLayout::Plan({
      Whole("fine", DType::kF32, {2}),
      Whole("twice", DType::kF32, {2}),
      Whole("twice", DType::kF32, {3}),
      Whole("", DType::kF32, {2}),
      Whole("__metadata__", DType::kF32, {2}),
      Whole("holdfast.extra/x", DType::kU8, {2}),
      Whole("bad\xff", DType::kU8, {2}),
      Slice("outside", DType::kF32, {2, 2}, {4, 2}, {3, 0}),
      Slice("wrapped", DType::kF32, {2}, {4}, {~0ULL}),
      Slice("ranks", DType::kF32, {2, 2}, {4}, {0, 0}),
      Slice("offsets", DType::kF32, {2, 2}, {4, 2}, {0}),
      Whole("huge", DType::kF32, {1ULL << 33, 1ULL << 33}),
      Slice("hugeglobal", DType::kF64, {1, 1}, {1ULL << 31, 1ULL << 31}, {0, 0}),
      Whole("deep", DType::kF32, std::vector<uint64_t>(33, 1)),
      Whole(std::string(kTensorNameMax + 1, 'n'), DType::kF32, {}),
      Whole("number", static_cast<DType>(16), {1}),
  });
  ASSERT_FALSE(layout);
  EXPECT_EQ(layout.error().code(), ErrorCode::kInvalidArgument);
  const std::string& message = layout.error().message();
  for (const char* part :
       {"'twice' occurs twice", "'' has no name", "'__metadata__'", "'holdfast.extra/x'",
        "'bad?' has a name that is not UTF-8", "'outside' is not inside", "'wrapped' is not inside",
        "'ranks' has 2 dimensions, but 1", "'offsets'", "'huge'", "'hugeglobal'", "'deep'", "'nnnn",
        "'number' has an unknown dtype"}) {
    EXPECT_THAT(message, HasSubstr(part));
  }
  EXPECT_THAT(message, Not(HasSubstr("fine")));
}

TEST(ImageLayoutTest, SumOfBytesIsBounded) {
  EXPECT_FALSE(ImageLayout::Plan(
      {Whole("a", DType::kU8, {1ULL << 61}), Whole("b", DType::kU8, {1ULL << 61})}));
  const uint64_t limit = 1ULL << 62;
  EXPECT_TRUE(ImageLayout::Plan({Slice("a", DType::kU8, {1}, {limit - 1}, {0})}));
  EXPECT_FALSE(ImageLayout::Plan({Slice("a", DType::kU8, {1}, {limit}, {0})}));
}

TEST(ImageLayoutTest, BadUtf8IsRefused) {
  for (const char* name :
       {"\x80", "\xc0\x80", "\xc3", "\xc3(", "\xe0\x80\x80", "\xed\xa0\x80", "\xf0\x80\x80\x80",
        "\xf4\x90\x80\x80", "\xf8\x88\x80\x80\x80", "a\xe2\x82", "\xfe", "\xff"}) {
    EXPECT_FALSE(ImageLayout::Plan({Whole(name, DType::kU8, {1})})) << name;
  }
}

TEST(RenderHeaderTest, RefusesInvalidIdentitiesAndExtras) {
  Result<ImageLayout> layout = ImageLayout::Plan({Whole("x", DType::kF32, {2})});
  ASSERT_TRUE(layout);
  auto code = [&](const ShardIdentity& identity, const std::vector<ExtraSize>& extras) {
    Result<std::string> header = layout->RenderHeader(identity, extras);
    return header ? ErrorCode::kOk : header.error().code();
  };
  EXPECT_EQ(code(Identity(), {}), ErrorCode::kOk);
  EXPECT_EQ(code(Identity("a/b"), {}), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code(Identity(".."), {}), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code(Identity("j", 1, 1, 4, 4), {}), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code(Identity("j", 1, 1, 0, 0), {}), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code(Identity("j", 1, 1, 0, kWorldMax + 1), {}), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code(Identity(), {{"rng", 1}, {"rng", 2}}), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code(Identity(), {{"r/ng", 1}}), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code(Identity(), {{"", 1}}), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code(Identity(), {{"rng", ~0ULL}}), ErrorCode::kInvalidArgument);
}

TEST(RenderHeaderTest, RandomLayoutsRoundTrip) {
  Random random(11);
  for (int round = 0; round < 200; ++round) {
    std::vector<TensorSpec> specs;
    const uint64_t count = random.Below(40);
    for (uint64_t i = 0; i < count; ++i) {
      TensorSpec spec;
      spec.name = "t" + std::to_string(random.Below(1000)) + "." + std::to_string(i);
      spec.dtype = AllDTypes()[random.Below(AllDTypes().size())];
      for (uint64_t d = random.Below(5); d > 0; --d) {
        spec.shape.push_back(random.Below(6));
        spec.offset.push_back(random.OneIn(2) ? random.Below(9) : 0);
        spec.global_shape.push_back(spec.shape.back() + spec.offset.back() +
                                    (random.OneIn(2) ? random.Below(9) : 0));
      }
      specs.push_back(std::move(spec));
    }
    std::vector<ExtraSize> extras;
    if (random.OneIn(2)) extras.push_back({"rng", random.Below(100)});
    if (random.OneIn(2)) extras.push_back({"data", random.Below(5000)});
    for (uint32_t format = 1; format <= kImageFormatMax; ++format) {
      Result<ImageLayout> layout = ImageLayout::Plan(specs, {}, format);
      ASSERT_TRUE(layout) << layout.error().ToString();
      RoundTrip(*layout, Identity("j", random.Next(), random.Next()), extras, format);
      if (HasFailure()) return;
    }
  }
}

TEST(DescribeDifferencesTest, ReportsEveryDifference) {
  const std::vector<TensorSpec> saved = {Whole("same", DType::kF32, {2}),
                                         Whole("dtype", DType::kF32, {2}),
                                         Whole("shape", DType::kF32, {2, 3}),
                                         Slice("global", DType::kF32, {2}, {4}, {0}),
                                         Slice("offset", DType::kF32, {2}, {4}, {0}),
                                         Whole("extra", DType::kF32, {2}),
                                         Slice("all", DType::kF32, {2}, {8}, {0})};
  Result<ImageLayout> layout = ImageLayout::Plan(saved);
  ASSERT_TRUE(layout);
  EXPECT_TRUE(DescribeDifferences(layout->tensors(), saved).empty());

  const std::vector<TensorSpec> wanted = {
      Whole("missing", DType::kF32, {2}),          Whole("same", DType::kF32, {2}),
      Whole("dtype", DType::kBF16, {2}),           Whole("shape", DType::kF32, {3, 2}),
      Slice("global", DType::kF32, {2}, {6}, {0}), Slice("offset", DType::kF32, {2}, {4}, {2}),
      Slice("all", DType::kI32, {4}, {9}, {1}),    Whole("same", DType::kF32, {2})};
  EXPECT_THAT(
      DescribeDifferences(layout->tensors(), wanted),
      ElementsAre("tensor 'missing' is requested but was not saved.",
                  "tensor 'dtype' was saved as F32 but is requested as BF16.",
                  AllOf(HasSubstr("'shape'"), HasSubstr(" shape [2, 3]"), HasSubstr("[3, 2]")),
                  HasSubstr("'shape' was saved with global shape"),
                  AllOf(HasSubstr("'global'"), HasSubstr("global shape [4]"), HasSubstr("[6]")),
                  AllOf(HasSubstr("'offset'"), HasSubstr("offset [0]"), HasSubstr("[2]")),
                  HasSubstr("'all' was saved as F32 but is requested as I32"),
                  HasSubstr("'all' was saved with shape"),
                  HasSubstr("'all' was saved with global shape"),
                  HasSubstr("'all' was saved with offset"), "tensor 'same' is requested twice.",
                  "tensor 'extra' was saved but is not requested."));
}

TEST(DescribeDifferencesTest, NothingSavedOrNothingRequested) {
  Result<ImageLayout> layout = ImageLayout::Plan({Whole("a", DType::kF32, {2})});
  ASSERT_TRUE(layout);
  EXPECT_EQ(DescribeDifferences(layout->tensors(), {}).size(), 1U);
  EXPECT_EQ(DescribeDifferences({}, std::vector<TensorSpec>{Whole("a", DType::kF32, {2})}).size(),
            1U);
  EXPECT_TRUE(DescribeDifferences({}, {}).empty());
}

}  // namespace
}  // namespace holdfast
