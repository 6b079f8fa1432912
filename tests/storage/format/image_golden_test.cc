#include <gtest/gtest.h>

#include "tests/storage/format/test_images.h"

namespace holdfast {
namespace {

// The bytes that every released reader of format 1 must understand. A change here is a new format.
TEST(ImageGoldenTest, HeaderBytes) {
  Result<ImageLayout> layout = ImageLayout::Plan({
      Whole("bias", DType::kBF16, {3}),
      Slice("w\"\\é\n", DType::kF32, {2, 3}, {4, 3}, {2, 0}),
      Whole("step", DType::kI64, {}),
      Whole("none", DType::kF32, {0, 7}),
  });
  ASSERT_TRUE(layout) << layout.error().ToString();
  const std::vector<ExtraSize> extras = {{"rng", 5}, {"data", 0}};
  Result<std::string> header = layout->RenderHeader(Identity("gpt-2"), extras);
  ASSERT_TRUE(header) << header.error().ToString();
  const std::string json =
      R"({"__metadata__":{"holdfast.format":"1","holdfast.job":"gpt-2",)"
      R"("holdfast.incarnation":"3","holdfast.step":"120","holdfast.rank":"1",)"
      R"("holdfast.world":"4","holdfast.slices":)"
      R"("{\"w\\\"\\\\é\\u000a\":{\"global_shape\":[4,3],\"offset\":[2,0]}}"},)"
      R"("step":{"dtype":"I64","shape":[],"data_offsets":[0,8]},)"
      R"("none":{"dtype":"F32","shape":[0,7],"data_offsets":[8,8]},)"
      R"("w\"\\é\u000a":{"dtype":"F32","shape":[2,3],"data_offsets":[8,32]},)"
      R"("bias":{"dtype":"BF16","shape":[3],"data_offsets":[32,38]},)"
      R"("holdfast.extra/rng":{"dtype":"U8","shape":[5],"data_offsets":[38,43]},)"
      R"("holdfast.extra/data":{"dtype":"U8","shape":[0],"data_offsets":[43,43]}})";
  std::string expected = FileOf(json + std::string(4096 - 8 - json.size(), ' '));
  EXPECT_EQ(*header, expected);
}

TEST(ImageGoldenTest, HeaderBytesOfFormat2) {
  Result<ImageLayout> layout = ImageLayout::Plan(
      {Whole("bias", DType::kBF16, {3}), Slice("w\"", DType::kF32, {2, 3}, {4, 3}, {2, 0}),
       Whole("step", DType::kI64, {})},
      {}, 2);
  ASSERT_TRUE(layout) << layout.error().ToString();
  const std::vector<ExtraSize> extras = {{"rng", 5}};
  Result<std::string> header = layout->RenderHeader(Identity("gpt-2"), extras);
  ASSERT_TRUE(header) << header.error().ToString();
  const std::string json =
      R"({"__metadata__":{"holdfast.format":"2","holdfast.job":"gpt-2",)"
      R"("holdfast.incarnation":"3","holdfast.step":"120","holdfast.rank":"1",)"
      R"("holdfast.world":"4","holdfast.slices":"[[],[4,3,2,0],[]]"},)"
      R"("step":{"dtype":"I64","shape":[],"data_offsets":[0,8]},)"
      R"("w\"":{"dtype":"F32","shape":[2,3],"data_offsets":[8,32]},)"
      R"("bias":{"dtype":"BF16","shape":[3],"data_offsets":[32,38]},)"
      R"("holdfast.extra/rng":{"dtype":"U8","shape":[5],"data_offsets":[38,43]}})";
  EXPECT_EQ(*header, FileOf(json + std::string(4096 - 8 - json.size(), ' ')));
}

}  // namespace
}  // namespace holdfast
