#include "agent/peers/frame_modes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace holdfast::agent {
namespace {
using ::testing::HasSubstr;
using ::testing::IsEmpty;

/// Adds a connection and returns what it logs.
std::string LogOf(FrameModes& modes, const std::string& node, FrameMode mode) {
  ::testing::internal::CaptureStderr();
  modes.Add(node, "10.0.0.7:41000", mode);
  return ::testing::internal::GetCapturedStderr();
}

TEST(FrameModesTest, TheFirstConnectionOfANodeAndEachChangeIsLogged) {
  FrameModes modes;
  EXPECT_THAT(LogOf(modes, "n1", FrameMode::kMac),
              HasSubstr("PeerConnected node=n1 peer=10.0.0.7:41000 mode=mac"));
  EXPECT_THAT(LogOf(modes, "n1", FrameMode::kMac), IsEmpty());
  EXPECT_THAT(LogOf(modes, "n2", FrameMode::kTls), HasSubstr("node=n2"));
  EXPECT_THAT(LogOf(modes, "n1", FrameMode::kTls), HasSubstr("mode=tls"));
  EXPECT_THAT(LogOf(modes, "n1", FrameMode::kPlain), HasSubstr("mode=plain"));
  EXPECT_THAT(LogOf(modes, "n1", FrameMode::kPlain), IsEmpty());
  EXPECT_EQ(modes.count(FrameMode::kMac), 2U);
  EXPECT_EQ(modes.count(FrameMode::kTls), 2U);
  EXPECT_EQ(modes.count(FrameMode::kPlain), 2U);
}

TEST(FrameModesTest, AnyNumberOfNamesUsesBoundedMemory) {
  FrameModes modes;
  ::testing::internal::CaptureStderr();
  for (size_t i = 0; i <= FrameModes::kNodesMax; ++i) {
    modes.Add("n" + std::to_string(i), "p", FrameMode::kPlain);
  }
  ::testing::internal::GetCapturedStderr();
  EXPECT_THAT(LogOf(modes, "n0", FrameMode::kPlain), HasSubstr("node=n0")) << "forgotten";
  EXPECT_THAT(LogOf(modes, "n" + std::to_string(FrameModes::kNodesMax), FrameMode::kPlain),
              IsEmpty());
  EXPECT_EQ(modes.count(FrameMode::kPlain), FrameModes::kNodesMax + 3);
}

}  // namespace
}  // namespace holdfast::agent
