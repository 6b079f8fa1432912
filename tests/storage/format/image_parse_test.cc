#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "tests/storage/format/test_images.h"

namespace holdfast {
namespace {

using ::testing::HasSubstr;

ErrorCode CodeOf(const Result<ParsedImage>& image) {
  return image ? ErrorCode::kOk : image.error().code();
}

constexpr std::string_view kOwnFields =
    R"("holdfast.format":"1","holdfast.job":"j","holdfast.incarnation":"3","holdfast.step":"120",)"
    R"("holdfast.rank":"1","holdfast.world":"4")";

/// Returns a Holdfast image with one F32 tensor "w" of two elements; `slices` is JSON-escaped.
std::string OwnFile(std::string_view fields, std::string_view slices = "{}") {
  return FileOf("{\"__metadata__\":{" + std::string(fields) + ",\"holdfast.slices\":\"" +
                    std::string(slices) +
                    "\"},\"w\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}",
                8);
}

TEST(ForeignFileTest, PlainSafetensorsFilesAreRead) {
  Result<ParsedImage> image =
      Parse(FileOf(R"( {"b": {"dtype": "F16", "shape": [2, 2], "data_offsets": [3, 11]},)"
                   R"(  "a": {"data_offsets": [0, 3], "shape": [3], "dtype": "BOOL"},)"
                   R"(  "none": {"dtype": "F64", "shape": [0], "data_offsets": [3, 3]},)"
                   R"(  "__metadata__": {"format": "pt", "note": "\u00fc"}}   )",
                   11));
  // The first byte must be the brace.
  EXPECT_EQ(CodeOf(image), ErrorCode::kDataLoss);

  image = Parse(FileOf(R"({"b": {"dtype": "F16", "shape": [2, 2], "data_offsets": [3, 11]},)"
                       R"(  "a": {"data_offsets": [0, 3], "shape": [3], "dtype": "BOOL"},)"
                       R"(  "none": {"dtype": "F64", "shape": [0], "data_offsets": [3, 3]},)"
                       R"(  "__metadata__": {"format": "pt", "note": "\u00fc"}}   )",
                       11));
  ASSERT_TRUE(image) << image.error().ToString();
  EXPECT_EQ(image->format, 0U);
  EXPECT_EQ(image->identity, ShardIdentity{});
  ASSERT_EQ(image->tensors.size(), 3U);
  EXPECT_EQ(image->tensors[0].spec, Whole("a", DType::kBool, {3}));
  EXPECT_EQ(image->tensors[1].spec, Whole("none", DType::kF64, {0}));
  EXPECT_EQ(image->tensors[2].spec, Whole("b", DType::kF16, {2, 2}));
  EXPECT_EQ(image->tensors[2].begin, 3U);
  EXPECT_EQ(image->metadata.at("note"), "ü");
}

TEST(ForeignFileTest, EveryDTypeByItsName) {
  const std::map<std::string, uint64_t> sizes = {
      {"BOOL", 1}, {"U8", 1},  {"I8", 1},   {"F8_E4M3", 1}, {"F8_E5M2", 1}, {"U16", 2},
      {"I16", 2},  {"F16", 2}, {"BF16", 2}, {"U32", 4},     {"I32", 4},     {"F32", 4},
      {"U64", 8},  {"I64", 8}, {"F64", 8},  {"C64", 8}};
  EXPECT_EQ(sizes.size(), AllDTypes().size());
  for (const auto& [name, size] : sizes) {
    std::string json = "{\"x\":{\"dtype\":\"" + name + "\",\"shape\":[3],\"data_offsets\":[0," +
                       std::to_string(3 * size) + "]}}";
    Result<ParsedImage> image = Parse(FileOf(json, 3 * size));
    ASSERT_TRUE(image) << image.error().ToString();
    EXPECT_EQ(NameOf(image->tensors[0].spec.dtype), name);
    EXPECT_EQ(CodeOf(Parse(FileOf(json, 3 * size + 1))), ErrorCode::kDataLoss);
  }
}

TEST(ForeignFileTest, ReservedNamesAreOrdinaryInForeignFiles) {
  Result<ParsedImage> image =
      Parse(FileOf(R"({"holdfast.extra/a b":{"dtype":"F32","shape":[],"data_offsets":[0,4]}})", 4));
  ASSERT_TRUE(image) << image.error().ToString();
  EXPECT_EQ(image->tensors.size(), 1U);
  EXPECT_TRUE(image->extras.empty());
}

TEST(ForeignFileTest, AnUnsupportedDTypeIsDistinguishedFromGarbage) {
  Result<ParsedImage> image =
      Parse(FileOf(R"({"x":{"dtype":"F4","shape":[2],"data_offsets":[0,1]}})", 1));
  EXPECT_EQ(CodeOf(image), ErrorCode::kUnsupported);
  EXPECT_THAT(image.error().message(), HasSubstr("'x'"));
}

struct Hostile {
  const char* why;  // part of the message
  std::string file;
};

/// Returns a file of one tensor "x" whose object has `fields`.
std::string OneTensor(const std::string& fields, size_t data_bytes) {
  return FileOf("{\"x\":{" + fields + "}}", data_bytes);
}

std::vector<Hostile> HostileJson() {
  std::string nested = "{\"x\":";
  nested += std::string(1'000'000, '[') + std::string(1'000'000, ']') + "}";
  std::string objects;
  for (int i = 0; i < 200'000; ++i) objects += "{\"a\":";
  const std::string bom = "\xef\xbb\xbf{}";
  return {
      {"not JSON", FileOf("{ ")},
      {"begin with '{'", FileOf("[]")},
      {"begin with '{'", FileOf("  ")},
      {"begin with '{'", FileOf(bom)},
      {"NUL", FileOf(std::string("{}\0garbage", 10))},
      {"NUL", FileOf(std::string("{}\0", 3))},
      {"not JSON", FileOf("{} {}")},
      {"not JSON", FileOf("{}x")},
      {"not JSON", FileOf("{/*c*/}")},
      {"not JSON", FileOf("{\"x\xff\":{}}")},
      {"not JSON", FileOf("{\"\\ud800\":{}}")},
      {"unexpected list", FileOf(nested)},
      {"unexpected object", FileOf(objects)},
      {"unexpected string", FileOf(R"({"x":"y"})")},
      {"unexpected number", FileOf(R"({"x":1})")},
      {"null", FileOf(R"({"x":null})")},
      {"true", FileOf(R"({"x":true})")},
      {"unexpected list", FileOf(R"({"x":[]})")},
      {"unexpected list", FileOf(R"({"__metadata__":[]})")},
      {"unexpected number", FileOf(R"({"__metadata__":{"a":1}})")},
      {"unexpected object", FileOf(R"({"__metadata__":{"a":{}}})")},
      {"twice", FileOf(R"({"__metadata__":{"a":"1","a":"1"}})")},
      {"twice", FileOf(R"({"__metadata__":{},"__metadata__":{}})")},
  };
}

std::vector<Hostile> HostileTensors() {
  std::string dimensions = "1";
  for (int i = 0; i < 32; ++i) dimensions += ",1";
  const std::string shape2 = R"("dtype":"F32","shape":[2],)";
  const std::string name(kTensorNameMax + 1, 'n');
  return {
      {"lacks", OneTensor("", 0)},
      {"lacks", OneTensor(R"("dtype":"F32","shape":[2])", 8)},
      {"lacks", OneTensor(R"("dtype":"F32","data_offsets":[0,8])", 8)},
      {"lacks", OneTensor(R"("shape":[2],"data_offsets":[0,8])", 8)},
      {"unexpected number", OneTensor(shape2 + R"("data_offsets":[0,8],"more":1)", 8)},
      {"unexpected list", OneTensor(shape2 + R"("data_offsets":[0,8],"data_offsets":[])", 8)},
      {"two dtypes", OneTensor(R"("dtype":"F32",)" + shape2 + R"("data_offsets":[0,8])", 8)},
      {"unexpected list", OneTensor(R"("shape":[2],)" + shape2 + R"("data_offsets":[0,8])", 8)},
      {"is not a dtype", OneTensor(R"("dtype":"f32","shape":[2],"data_offsets":[0,8])", 8)},
      {"is not a dtype", OneTensor(R"("dtype":"","shape":[2],"data_offsets":[0,8])", 8)},
      {"negative", OneTensor(R"("dtype":"F32","shape":[-2],"data_offsets":[0,8])", 8)},
      {"negative", OneTensor(shape2 + R"("data_offsets":[-8,0])", 8)},
      {"negative", OneTensor(shape2 + R"("data_offsets":[-0,8])", 8)},
      {"not an integer", OneTensor(R"("dtype":"F32","shape":[2.0],"data_offsets":[0,8])", 8)},
      {"not an integer", OneTensor(shape2 + R"("data_offsets":[0,8e0])", 8)},
      {"not an integer", OneTensor(shape2 + R"("data_offsets":[0,1e300])", 8)},
      {"not JSON", OneTensor(shape2 + R"("data_offsets":[0,1e999])", 8)},
      {"not an integer", OneTensor(shape2 + R"("data_offsets":[0,18446744073709551616])", 8)},
      {"not JSON", OneTensor(shape2 + R"("data_offsets":[0,08])", 8)},
      {"not JSON", OneTensor(shape2 + R"("data_offsets":[0,NaN])", 8)},
      {"1 data offsets", OneTensor(shape2 + R"("data_offsets":[0])", 8)},
      {"unexpected number", OneTensor(shape2 + R"("data_offsets":[0,8,8])", 8)},
      {"unexpected list", OneTensor(shape2 + R"("data_offsets":[[0],8])", 8)},
      {"needs 8 bytes", OneTensor(shape2 + R"("data_offsets":[8,0])", 8)},
      {"needs 8 bytes", OneTensor(shape2 + R"("data_offsets":[0,4])", 4)},
      {"begins at 4", OneTensor(shape2 + R"("data_offsets":[4,12])", 12)},
      {"8 bytes but the file has 7", OneTensor(shape2 + R"("data_offsets":[0,8])", 7)},
      {"8 bytes but the file has 9", OneTensor(shape2 + R"("data_offsets":[0,8])", 9)},
      {"overflows", OneTensor(R"("dtype":"F32","shape":[4611686018427387904],)"
                              R"("data_offsets":[0,0])",
                              0)},
      {"overflows", OneTensor(R"("dtype":"U8","shape":[4294967296,4294967296,0],)"
                              R"("data_offsets":[0,0])",
                              0)},
      {"32 dimensions",
       OneTensor(R"("dtype":"U8","shape":[)" + dimensions + R"(],"data_offsets":[0,1])", 1)},
      {"longer than 4096", FileOf("{\"" + name +
                                      R"(":{"dtype":"U8","shape":[],)"
                                      R"("data_offsets":[0,1]}})",
                                  1)},
      {"twice", FileOf(R"({"x":{"dtype":"U8","shape":[],"data_offsets":[0,1]},)"
                       R"("x":{"dtype":"U8","shape":[],"data_offsets":[1,2]}})",
                       2)},
      {"begins at 0", FileOf(R"({"x":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},)"
                             R"("y":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}})",
                             2)},
      {"begins at 1", FileOf(R"({"x":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},)"
                             R"("y":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}})",
                             3)},
      {"begins at 3", FileOf(R"({"x":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},)"
                             R"("y":{"dtype":"U8","shape":[1],"data_offsets":[3,4]}})",
                             4)},
      {"begins at 1", FileOf(R"({"x":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},)"
                             R"("y":{"dtype":"U8","shape":[0],"data_offsets":[1,1]}})",
                             2)},
  };
}

TEST(HostileHeaderTest, JsonThatIsNotAHeader) {
  for (const Hostile& hostile : HostileJson()) {
    Result<ParsedImage> image = Parse(hostile.file);
    ASSERT_EQ(CodeOf(image), ErrorCode::kDataLoss) << hostile.why << hostile.file.substr(8, 100);
    EXPECT_THAT(image.error().message(), HasSubstr(hostile.why)) << hostile.file.substr(8, 100);
    EXPECT_LT(image.error().message().size(), 500U);
  }
}

TEST(HostileHeaderTest, InvalidTensors) {
  for (const Hostile& hostile : HostileTensors()) {
    Result<ParsedImage> image = Parse(hostile.file);
    ASSERT_EQ(CodeOf(image), ErrorCode::kDataLoss) << hostile.why << hostile.file.substr(8, 200);
    EXPECT_THAT(image.error().message(), HasSubstr(hostile.why)) << hostile.file.substr(8, 200);
    EXPECT_LT(image.error().message().size(), 500U);
  }
}

TEST(HostileHeaderTest, LengthWords) {
  auto with_length = [](uint64_t length, size_t rest) {
    std::string file(8, '\0');
    std::memcpy(file.data(), &length, 8);
    return file + std::string(rest, ' ');
  };
  for (uint64_t length : {uint64_t{0}, uint64_t{1}, uint64_t{101}, kHeaderBytesMax,
                          kHeaderBytesMax + 1, uint64_t{1} << 63, ~uint64_t{0}, ~uint64_t{7}}) {
    EXPECT_EQ(CodeOf(Parse(with_length(length, 100))), ErrorCode::kDataLoss) << length;
  }
  EXPECT_EQ(CodeOf(Parse("")), ErrorCode::kDataLoss);
  EXPECT_EQ(CodeOf(Parse("1234567")), ErrorCode::kDataLoss);
  // A large file makes the length plausible, but the header must be complete, too.
  std::string file = with_length(kHeaderBytesMax, 100);
  EXPECT_EQ(HeaderBytes(Bytes(file), kHeaderBytesMax + 8).value(), kHeaderBytesMax + 8);
  EXPECT_EQ(HeaderBytes(Bytes(file), kHeaderBytesMax + 7).error().code(), ErrorCode::kDataLoss);
  EXPECT_EQ(CodeOf(ParseImage(Bytes(file), kHeaderBytesMax + 8)), ErrorCode::kInvalidArgument);
}

TEST(OwnImageTest, FieldsAreChecked) {
  ASSERT_TRUE(Parse(OwnFile(kOwnFields))) << Parse(OwnFile(kOwnFields)).error().ToString();
  const std::vector<std::pair<std::string, std::string>> changes = {
      {"format\":\"1\"", "format\":\"0\""},
      {"format\":\"1\"", "format\":\"\""},
      {"format\":\"1\"", "format\":\"01\""},
      {"format\":\"1\"", "format\":\"+1\""},
      {"format\":\"1\"", "format\":\"1 \""},
      {"format\":\"1\"", "format\":\"4294967297\""},
      {"holdfast.format", "noldfast.format"},
      {"holdfast.format", "holdfast.formas"},
      {"\"j\"", "\"\""},
      {"\"j\"", "\"a/b\""},
      {"\"j\"", "\"..\""},
      {"holdfast.job", "xoldfast.job"},
      {"\"3\"", "\"-3\""},
      {"\"3\"", "\"18446744073709551616\""},
      {"\"120\"", "\"1e2\""},
      {"\"120\"", "\"\""},
      {"rank\":\"1\"", "rank\":\"4\""},
      {"\"4\"", "\"0\""},
      {"\"4\"", "\"1048577\""},
      {"holdfast.step", "holdfast.steq"},
  };
  for (const auto& [from, to] : changes) {
    std::string fields(kOwnFields);
    fields.replace(fields.find(from), from.size(), to);
    EXPECT_EQ(CodeOf(Parse(OwnFile(fields))), ErrorCode::kDataLoss) << fields;
  }
  for (const char* more :
       {R"(,"holdfast.new":"1")", R"(,"holdfast.part":"0")", R"(,"holdfast.parts":"2")",
        R"(,"holdfast.part":"2","holdfast.parts":"2")"}) {
    EXPECT_EQ(CodeOf(Parse(OwnFile(std::string(kOwnFields) + more))), ErrorCode::kDataLoss) << more;
  }
  EXPECT_TRUE(
      Parse(OwnFile(std::string(kOwnFields) + R"(,"holdfast.part":"1","holdfast.parts":"2")")));
  EXPECT_TRUE(Parse(OwnFile(std::string(kOwnFields) + R"(,"format":"pt")")));
}

TEST(OwnImageTest, ANewerFormatIsUnsupported) {
  for (const char* format : {"3", "77", "4294967295"}) {
    std::string fields(kOwnFields);
    fields.replace(fields.find("\"1\""), 3, "\"" + std::string(format) + "\"");
    Result<ParsedImage> image = Parse(OwnFile(fields + R"(,"holdfast.new":"field")", "[new]"));
    EXPECT_EQ(CodeOf(image), ErrorCode::kUnsupported);
    EXPECT_THAT(image.error().message(), HasSubstr(format));
  }
}

TEST(OwnImageTest, SlicesAreChecked) {
  auto slice = [](const std::string& global_shape, const std::string& offset) {
    return R"({\"w\":{\"global_shape\":)" + global_shape + R"(,\"offset\":)" + offset + "}}";
  };
  Result<ParsedImage> good = Parse(OwnFile(kOwnFields, slice("[10]", "[8]")));
  ASSERT_TRUE(good) << good.error().ToString();
  EXPECT_EQ(good->tensors[0].spec, Slice("w", DType::kF32, {2}, {10}, {8}));
  const std::string twice = R"({\"w\":{\"global_shape\":[10],\"offset\":[8]},)"
                            R"(\"w\":{\"global_shape\":[10],\"offset\":[8]}})";
  for (const std::string& slices :
       std::vector<std::string>{"",
                                " {}",
                                "\xef\xbb\xbf{}",
                                R"({}\u0000)",
                                R"({}\u0000{})",
                                "[]",
                                "{} {}",
                                "1",
                                "null",
                                R"({\"w\":1})",
                                R"({\"w\":\"x\"})",
                                R"({\"w\":{}})",
                                R"({\"v\":{\"global_shape\":[10],\"offset\":[0]}})",
                                R"({\"w\":{\"global_shape\":[10]}})",
                                R"({\"w\":{\"offset\":[0]}})",
                                R"({\"w\":{\"global_shape\":[10],\"offset\":[0],\"offset\":[0]}})",
                                R"({\"w\":{\"global_shape\":[10],\"offset\":[0],\"more\":[0]}})",
                                R"({\"w\":{\"global_shape\":[10],\"offset\":[0],\"more\":{}}})",
                                R"({\"w\":{\"global_shape\":[[10]],\"offset\":[0]}})",
                                twice,
                                slice("[10]", "[9]"),
                                slice("[1]", "[0]"),
                                slice("[10]", "[]"),
                                slice("[]", "[]"),
                                slice("[10,1]", "[0,0]"),
                                slice("[10]", "[-1]"),
                                slice("[10]", "[1e0]"),
                                slice("[10]", "[18446744073709551615]"),
                                slice("[18446744073709551615]", "[0]"),
                                slice("[4611686018427387904]", "[0]"),
                                slice("10", "[0]"),
                                slice("[10]", "[0]").substr(0, 20),
                                slice("[10]", "[0]") + "x",
                                std::string(100'000, '[')}) {
    EXPECT_EQ(CodeOf(Parse(OwnFile(kOwnFields, slices))), ErrorCode::kDataLoss)
        << slices.substr(0, 200);
  }
}

TEST(OwnImageTest, SlicesOfFormat2AreChecked) {
  std::string fields(kOwnFields);
  fields.replace(fields.find("\"1\""), 3, "\"2\"");
  Result<ParsedImage> slice = Parse(OwnFile(fields, " [ [10, 8] ] "));
  EXPECT_EQ(CodeOf(slice), ErrorCode::kDataLoss) << "the first byte must be the bracket";
  slice = Parse(OwnFile(fields, "[ [10, 8] ] "));
  ASSERT_TRUE(slice) << slice.error().ToString();
  EXPECT_EQ(slice->tensors[0].spec, Slice("w", DType::kF32, {2}, {10}, {8}));
  const Result<ParsedImage> whole = Parse(OwnFile(fields, "[[]]"));
  ASSERT_TRUE(whole) << whole.error().ToString();
  EXPECT_EQ(whole->tensors[0].spec, Whole("w", DType::kF32, {2}));
  for (const std::string& slices : std::vector<std::string>{"",
                                                            "{}",
                                                            "[]",
                                                            "[",
                                                            "[[]",
                                                            "[[10,8]",
                                                            "[[10,8],]",
                                                            "[[10,8],[]]",
                                                            "[[10,8],[10,8]]",
                                                            "[[[10,8]]]",
                                                            "[[10,[8]]]",
                                                            "[10,8]",
                                                            "[0]",
                                                            "[null]",
                                                            "[\\\"w\\\"]",
                                                            "[{}]",
                                                            R"([{\"w\":[10,8]}])",
                                                            "[[10]]",
                                                            "[[10,8,0]]",
                                                            "[[10,1,8,0]]",
                                                            "[[10,-1]]",
                                                            "[[10,8.0]]",
                                                            "[[10,9]]",
                                                            "[[1,0]]",
                                                            "[[18446744073709551615,0]]",
                                                            "[[4611686018427387904,0]]",
                                                            "[[10,18446744073709551615]]",
                                                            "[[10,8]][]",
                                                            "[[10,8]] x",
                                                            R"([[10,8]]\u0000)",
                                                            "[[" + std::string(100'000, '1') + "]]",
                                                            std::string(100'000, '[')}) {
    EXPECT_EQ(CodeOf(Parse(OwnFile(fields, slices))), ErrorCode::kDataLoss)
        << slices.substr(0, 200);
  }
  // The forms of one format are damage in the other.
  EXPECT_EQ(CodeOf(Parse(OwnFile(kOwnFields, "[[10,8]]"))), ErrorCode::kDataLoss);
}

TEST(OwnImageTest, ExtrasAreChecked) {
  auto file = [](const std::string& tensors, size_t data_bytes) {
    return FileOf("{\"__metadata__\":{" + std::string(kOwnFields) +
                      ",\"holdfast.slices\":\"{}\"}," + tensors + "}",
                  data_bytes);
  };
  auto entry = [](const std::string& name, const std::string& dtype, const std::string& shape,
                  int begin, int end) {
    return "\"" + name + "\":{\"dtype\":\"" + dtype + "\",\"shape\":" + shape +
           ",\"data_offsets\":[" + std::to_string(begin) + "," + std::to_string(end) + "]}";
  };
  const std::string weight = entry("w", "U8", "[4]", 0, 4);
  const std::string extra = "holdfast.extra/";
  Result<ParsedImage> image = Parse(file(weight + "," + entry(extra + "a", "U8", "[2]", 4, 6), 6));
  ASSERT_TRUE(image) << image.error().ToString();
  ASSERT_EQ(image->extras.size(), 1U);
  EXPECT_EQ(image->extras[0].name, "a");
  EXPECT_EQ(image->extras[0].begin, 4U);
  EXPECT_EQ(image->tensors.size(), 1U);
  for (const std::string& bad :
       {entry(extra + "a", "I8", "[2]", 4, 6), entry(extra + "a", "U8", "[2,1]", 4, 6),
        entry(extra, "U8", "[2]", 4, 6), entry(extra + "a/b", "U8", "[2]", 4, 6),
        entry(extra + "..", "U8", "[2]", 4, 6)}) {
    EXPECT_EQ(CodeOf(Parse(file(weight + "," + bad, 6))), ErrorCode::kDataLoss) << bad;
  }
  EXPECT_EQ(CodeOf(Parse(file(
                entry(extra + "a", "U8", "[2]", 0, 2) + "," + entry("w", "U8", "[4]", 2, 6), 6))),
            ErrorCode::kDataLoss);
}

std::string SmallImage() {
  Random random(5);
  Result<ImageLayout> layout = ImageLayout::Plan(
      {Slice("w.a", DType::kF32, {2, 3}, {4, 3}, {2, 0}), Whole("b", DType::kBF16, {5}),
       Whole("s", DType::kI64, {}), Whole("e", DType::kU8, {0})});
  const std::vector<ExtraSize> extras = {{"rng", 9}};
  return layout ? MakeImage(*layout, Identity(), extras, random).value() : std::string();
}

/// Returns true when both have the same identity, tensors, places and extras.
bool SameMeaning(const ParsedImage& a, const ParsedImage& b) {
  auto same_tensor = [](const PlacedTensor& x, const PlacedTensor& y) {
    return x.spec == y.spec && x.begin == y.begin && x.end == y.end;
  };
  auto same_extra = [](const PlacedExtra& x, const PlacedExtra& y) {
    return x.name == y.name && x.begin == y.begin && x.end == y.end;
  };
  return a.identity == b.identity && a.format == b.format && a.metadata == b.metadata &&
         std::equal(a.tensors.begin(), a.tensors.end(), b.tensors.begin(), b.tensors.end(),
                    same_tensor) &&
         std::equal(a.extras.begin(), a.extras.end(), b.extras.begin(), b.extras.end(), same_extra);
}

/// Returns the places of all tensors and extras, without their names.
std::vector<std::pair<uint64_t, uint64_t>> PlacesOf(const ParsedImage& image) {
  std::vector<std::pair<uint64_t, uint64_t>> places;
  for (const PlacedTensor& tensor : image.tensors) places.push_back({tensor.begin, tensor.end});
  for (const PlacedExtra& extra : image.extras) places.push_back({extra.begin, extra.end});
  return places;
}

TEST(FlippedHeaderTest, AFlippedBitNeverKeepsTheSameMeaning) {
  const std::string image = SmallImage();
  const ParsedImage original = Parse(image).value();
  std::string flipped = image;
  int accepted = 0;
  for (uint64_t i = 0; i < original.data_offset; ++i) {
    for (int bit = 0; bit < 8; ++bit) {
      flipped[i] = static_cast<char>(image[i] ^ (1 << bit));
      Result<ParsedImage> parsed = Parse(flipped);
      flipped[i] = image[i];
      if (!parsed) continue;
      ++accepted;
      // A header that still parses covers the data exactly and differs from the original: only
      // names, numbers of the identity and dtypes of the same width can change this way.
      EXPECT_EQ(parsed->data_offset, original.data_offset) << i;
      EXPECT_EQ(parsed->format, original.format) << i << " became a foreign file";
      EXPECT_EQ(PlacesOf(*parsed), PlacesOf(original)) << i;
      EXPECT_FALSE(SameMeaning(*parsed, original)) << "byte " << i << " bit " << bit;
    }
  }
  EXPECT_GT(accepted, 0);
  EXPECT_LT(accepted, 1000);
}

TEST(FlippedHeaderTest, JsonSyntaxAtAnyByteIsHandled) {
  const std::string meaningful("\0\t\n \"\\/{}[],:+-.0159eEunft\x7f\x80\xc3\xed\xff", 31);
  const std::string image = SmallImage();
  const uint64_t json_end = image.find("  ");
  ASSERT_NE(json_end, std::string::npos);
  std::string changed = image;
  for (uint64_t i = 0; i < json_end + 2; ++i) {
    for (char value : meaningful) {
      changed[i] = value;
      Result<ParsedImage> parsed = Parse(changed);
      if (parsed) {
        ASSERT_LE(parsed->data_offset, changed.size());
        continue;
      }
      ASSERT_FALSE(parsed.error().message().empty());
    }
    changed[i] = image[i];
  }
}

TEST(TruncatedImageTest, EveryLengthIsRefused) {
  const std::string image = SmallImage();
  for (size_t bytes = 0; bytes < image.size(); ++bytes) {
    ASSERT_EQ(CodeOf(Parse(std::string_view(image).substr(0, bytes))), ErrorCode::kDataLoss)
        << bytes;
  }
  EXPECT_EQ(CodeOf(Parse(image + "x")), ErrorCode::kDataLoss);
}

TEST(BigHeaderTest, ManyTensorsAndManyFieldsAreBounded) {
  std::string json = "{";
  for (int i = 0; i < 200'000; ++i) {
    if (i > 0) json += ",";
    json += "\"" + std::to_string(i) + R"(":{"dtype":"U8","shape":[0],"data_offsets":[0,0]})";
  }
  EXPECT_EQ(Parse(FileOf(json + "}")).value().tensors.size(), 200'000U);

  json = "{\"__metadata__\":{";
  for (int i = 0; i < 65'537; ++i) {
    if (i > 0) json += ",";
    json += "\"" + std::to_string(i) + "\":\"\"";
  }
  EXPECT_EQ(CodeOf(Parse(FileOf(json + "}}"))), ErrorCode::kDataLoss);
}

}  // namespace
}  // namespace holdfast
