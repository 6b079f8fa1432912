#include "agent/telemetry/gpu_watch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <chrono>
#include <functional>
#include <thread>

#include "agent/telemetry/nvml.h"
#include "tests/agent/telemetry/fake_nvml.h"

namespace holdfast::agent {
namespace {
using ::testing::HasSubstr;

class GpuWatchTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = testing::TempDir() + "nvml-XXXXXX";
    ASSERT_NE(::mkdtemp(name.data()), nullptr);
    root_ = name;
  }
  void TearDown() override { std::filesystem::remove_all(root_); }

  FakeNvml Fake(const std::string& script) { return {HOLDFAST_FAKE_NVML, root_, script}; }
  static bool Eventually(const std::function<bool()>& holds) {
    for (int i = 0; i < 1000 && !holds(); ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    return holds();
  }

  std::string root_;
};

TEST_F(GpuWatchTest, ErrorsAreReportedWithTheirDevices) {
  FakeNvml nvml = Fake("devices 4\nevent 3 79\n");
  const GpuWatch watch(nvml.path());
  ASSERT_TRUE(Eventually([&] { return watch.After(0).size() == 1; }));
  const GpuError error = watch.After(0).front();
  EXPECT_EQ(error.number, 1U);
  EXPECT_EQ(error.device, 3U);
  EXPECT_EQ(error.bus_id, "00000000:C3:00.0");
  EXPECT_EQ(error.xid, 79U);
  EXPECT_GT(error.seen_ns, 0U);
  nvml.Add("event 0 31\n");
  ASSERT_TRUE(Eventually([&] { return watch.After(1).size() == 1; }));
  EXPECT_EQ(watch.After(1).front().bus_id, "") << "the first device has no valid bus ID";
  EXPECT_TRUE(watch.After(2).empty());
}

TEST_F(GpuWatchTest, RepeatedErrorsAreCounted) {
  std::string script;
  for (int i = 0; i < 20; ++i) script += "event 0 31\n";
  const FakeNvml nvml = Fake(script + "event 0 43\n");
  const GpuWatch watch(nvml.path());
  ASSERT_TRUE(Eventually([&] { return watch.counts().size() == 2; }));
  const std::pair<uint32_t, uint32_t> flood{0, 31};
  EXPECT_EQ(watch.counts().at(flood), 20U);
  EXPECT_LT(watch.After(0).size(), 20U);
}

TEST_F(GpuWatchTest, NonsenseIsIgnoredAndTheRestIsReported) {
  const FakeNvml nvml = Fake(
      "devices 4000000000\n"
      "event 70000 74\n"  // no such device
      "event 0 0\n"       // no error
      "event 0 99999999999\n"
      "event 0 48 2\n"  // not an Xid event
      "fail 15\n"       // "GPU is lost"
      "event 2 95\n");
  const GpuWatch watch(nvml.path());
  ASSERT_TRUE(Eventually([&] { return watch.After(0).size() == 2; }));
  EXPECT_EQ(watch.After(0)[0].device, kGpuUnknown);
  EXPECT_EQ(watch.After(0)[0].xid, 74U);
  EXPECT_EQ(watch.After(0)[1].device, 2U);
  EXPECT_EQ(watch.After(0)[1].xid, 95U);
}

TEST_F(GpuWatchTest, WithoutALibraryADriverOrADeviceNothingIsReported) {
  EXPECT_TRUE(GpuWatch("").After(0).empty());
  for (const char* script :
       {"init 9\nevent 0 79\n", "devices 0\nevent 0 79\n", "register 3\nevent 0 79\n"}) {
    SCOPED_TRACE(script);
    const FakeNvml nvml = Fake(script);
    testing::internal::CaptureStderr();
    {
      const GpuWatch watch(nvml.path());
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      EXPECT_TRUE(watch.After(0).empty());
    }
    EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr("GpuErrorsNotWatched"));
    std::filesystem::remove_all(root_);
  }
  EXPECT_THAT(LoadNvml(root_ + "/none.so").error().message(), HasSubstr("none.so"));
  EXPECT_THAT(LoadNvml("libm.so.6").error().message(), HasSubstr("has no function nvml"));
}

TEST_F(GpuWatchTest, ADriverInstalledLaterIsFound) {
  const FakeNvml made(HOLDFAST_FAKE_NVML, root_ + "/made", "init 9\nevent 0 79\n");
  const std::string library = root_ + "/driver/libnvml-fake.so";
  testing::internal::CaptureStderr();
  const GpuWatch watch(library, std::chrono::milliseconds(5));
  const auto wait_for_polls = [] { std::this_thread::sleep_for(std::chrono::milliseconds(100)); };
  wait_for_polls();
  std::filesystem::rename(root_ + "/made", root_ + "/driver");
  wait_for_polls();
  EXPECT_TRUE(watch.After(0).empty());
  std::ofstream(library + ".script", std::ios::app) << "init 0\n";
  EXPECT_TRUE(Eventually([&] { return watch.After(0).size() == 1; }));
  const std::string log = testing::internal::GetCapturedStderr();
  const auto times = [&log](const std::string& text) {
    int count = 0;
    for (size_t at = log.find(text); at != log.npos; at = log.find(text, at + 1)) ++count;
    return count;
  };
  EXPECT_EQ(times("No such file"), 1) << log;
  EXPECT_EQ(times("Driver Not Loaded"), 1) << log;
  EXPECT_EQ(times("GpuErrorsNotWatched"), 2) << log;
}

TEST_F(GpuWatchTest, ADriverThatHangsBlocksNoCaller) {
  const FakeNvml nvml = Fake("event 0 119\nhang\n");
  const GpuWatch watch(nvml.path());
  EXPECT_TRUE(Eventually([&] { return watch.After(0).size() == 1; }));
}

}  // namespace
}  // namespace holdfast::agent
