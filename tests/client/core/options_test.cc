#include "client/core/options.h"

#include <gmock/gmock.h>

#include <cstdlib>

namespace holdfast::client {
namespace {
using testing::HasSubstr;

holdfast_options Good() {
  holdfast_options options = HOLDFAST_OPTIONS_INIT;
  options.job = "job";
  options.run_id = "run";
  options.world = 4;
  return options;
}

TEST(OptionsTest, Defaults) {
  ::unsetenv("HOLDFAST_SOCKET");
  auto options = ResolveOptions(Good());
  ASSERT_TRUE(options) << options.error().ToString();
  EXPECT_EQ(options->socket_path, "/run/holdfast/agent.sock");
  EXPECT_EQ(options->slots, 3u);
  EXPECT_EQ(options->extra_bytes_max, 1u << 20);
  EXPECT_FALSE(options->wait_for_slot);
}

TEST(OptionsTest, EnvironmentFillsInAndIsOverridden) {
  ::setenv("HOLDFAST_SOCKET", "/from/env.sock", 1);
  ::setenv("HOLDFAST_RUN_ID", "env-run", 1);
  holdfast_options raw = Good();
  EXPECT_EQ(ResolveOptions(raw)->run_id, "run");
  raw.run_id = nullptr;
  EXPECT_EQ(ResolveOptions(raw)->run_id, "env-run");
  EXPECT_EQ(ResolveOptions(raw)->socket_path, "/from/env.sock");
  raw.socket_path = "/given.sock";
  EXPECT_EQ(ResolveOptions(raw)->socket_path, "/given.sock");
  ::unsetenv("HOLDFAST_SOCKET");
  ::unsetenv("HOLDFAST_RUN_ID");
}

TEST(OptionsTest, RunIdIsRandomOnlyForOneRank) {
  ::unsetenv("HOLDFAST_RUN_ID");
  holdfast_options raw = Good();
  raw.run_id = nullptr;
  auto missing = ResolveOptions(raw);
  ASSERT_FALSE(missing);
  EXPECT_THAT(missing.error().message(), HasSubstr("HOLDFAST_RUN_ID"));
  raw.world = 1;
  EXPECT_NE(ResolveOptions(raw)->run_id, ResolveOptions(raw)->run_id);
}

TEST(OptionsTest, EveryDefectIsNamedAtOnce) {
  holdfast_options raw = Good();
  raw.job = "../etc";
  raw.rank = 4;
  raw.slots = 1;
  raw.when_full = 9;
  raw.run_id = "two words";
  auto options = ResolveOptions(raw);
  ASSERT_FALSE(options);
  EXPECT_EQ(options.error().code(), ErrorCode::kInvalidArgument);
  for (const char* part : {"job", "rank is 4", "slots is 1", "when_full", "run_id"}) {
    EXPECT_THAT(options.error().message(), HasSubstr(part));
  }
  raw = Good();
  raw.world = 0;
  EXPECT_FALSE(ResolveOptions(raw));
  raw = Good();
  raw.job = nullptr;
  EXPECT_FALSE(ResolveOptions(raw));
}

TEST(OptionsTest, TheDeviceBackendIsChosenByName) {
  holdfast_options raw = Good();
  EXPECT_EQ(ResolveOptions(raw)->device_backend, "cuda");
  ::setenv("HOLDFAST_DEVICE_BACKEND", "hip", 1);
  EXPECT_EQ(ResolveOptions(raw)->device_backend, "hip");
  raw.device_backend = "other2";
  EXPECT_EQ(ResolveOptions(raw)->device_backend, "other2");
  ::unsetenv("HOLDFAST_DEVICE_BACKEND");
  for (const char* name : {"../cuda", "cuda.so", "CUDA", "a2345678901234567"}) {
    raw.device_backend = name;
    const auto options = ResolveOptions(raw);
    ASSERT_FALSE(options) << name;
    EXPECT_THAT(options.error().message(), HasSubstr("device_backend")) << name;
  }
}

TEST(OptionsTest, TheImageFormatIsChosenByNumber) {
  holdfast_options raw = Good();
  EXPECT_EQ(ResolveOptions(raw)->image_format, 1u);
  ::setenv("HOLDFAST_IMAGE_FORMAT", "2", 1);
  EXPECT_EQ(ResolveOptions(raw)->image_format, 2u);
  raw.image_format = 1;
  EXPECT_EQ(ResolveOptions(raw)->image_format, 1u);
  raw.image_format = 0;
  for (const char* given : {"0", "3", "02", "short"}) {
    ::setenv("HOLDFAST_IMAGE_FORMAT", given, 1);
    const auto options = ResolveOptions(raw);
    ASSERT_FALSE(options) << given;
    EXPECT_THAT(options.error().message(), HasSubstr("HOLDFAST_IMAGE_FORMAT")) << given;
  }
  ::unsetenv("HOLDFAST_IMAGE_FORMAT");
  raw.image_format = 3;
  EXPECT_FALSE(ResolveOptions(raw));
}

TEST(OptionsTest, OlderCallersHaveShorterStructs) {
  holdfast_options raw = Good();
  raw.slots = 9;
  raw.copy_threads = 9;
  raw.struct_size = offsetof(holdfast_options, when_full);
  auto options = ResolveOptions(raw);
  ASSERT_TRUE(options);
  EXPECT_EQ(options->slots, 9u);
  EXPECT_EQ(options->copy_threads, 2u) << "a field beyond the caller's struct";
  raw.struct_size = 0;
  EXPECT_FALSE(ResolveOptions(raw));
}

TEST(StateTest, EveryInvalidTensorIsNamed) {
  uint64_t shape[] = {2, 2};
  float data[4] = {};
  holdfast_tensor good{};
  good.name = "good";
  good.data = data;
  good.shape = shape;
  good.dimensions = 2;
  good.dtype = HOLDFAST_F32;
  holdfast_tensor tensors[] = {good, good, good, good, good, good};
  tensors[1].name = nullptr;
  tensors[2].name = "no-data";
  tensors[2].data = nullptr;
  tensors[3].name = "odd-dtype";
  tensors[3].dtype = 99;
  tensors[4].name = "many-dimensions";
  tensors[4].dimensions = 33;
  tensors[5].name = "no-shape";
  tensors[5].shape = nullptr;
  auto state = DescribeState(tensors);
  ASSERT_FALSE(state);
  for (const char* part :
       {"tensor 1 has no name", "'no-data'", "'odd-dtype'", "'many-dimensions'", "'no-shape'"}) {
    EXPECT_THAT(state.error().message(), HasSubstr(part));
  }
  EXPECT_THAT(state.error().message(), testing::Not(HasSubstr("'good'")));
}

TEST(StateTest, EmptyTensorsNeedNoMemory) {
  uint64_t shape[] = {0, 1ULL << 60, 1ULL << 60};
  holdfast_tensor tensor{};
  tensor.name = "empty";
  tensor.shape = shape;
  tensor.dimensions = 3;
  tensor.dtype = HOLDFAST_F32;
  EXPECT_TRUE(DescribeState({&tensor, 1}));
}

}  // namespace
}  // namespace holdfast::client
