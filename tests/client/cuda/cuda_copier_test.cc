// The plugin as the library loads it. Without a driver: it loads, and open() reports a clear error.
// With a GPU: bytes are copied from the device to the slot and back, and the guard keeps later
// writes out of the copy.

#include <algorithm>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#include "client/cuda/copy_groups.h"
#include "tests/client/cuda/copier_fixture.h"

namespace holdfast::cuda {
namespace {

TEST(CopyGroupsTest, KeepsEveryPieceInOrderWithinTheLimits) {
  Random random(3);
  for (int round = 0; round < 300; ++round) {
    std::vector<holdfast_device_piece> pieces(random.Below(200));
    for (auto& piece : pieces) {
      piece.bytes = 1 + random.Below(random.OneIn(5) ? 5000 : 100);
      piece.device_index = static_cast<int32_t>(random.Below(2));
    }
    auto groups = GroupPieces(pieces, 2000, 16);
    size_t next = 0;
    for (const CopyGroup& group : groups) {
      EXPECT_EQ(group.begin, next);
      ASSERT_LT(group.begin, group.end);
      EXPECT_LE(group.end - group.begin, 16U);
      uint64_t bytes = 0;
      for (size_t i = group.begin; i < group.end; ++i) {
        EXPECT_EQ(pieces[i].device_index, group.device_index);
        bytes += pieces[i].bytes;
      }
      EXPECT_TRUE(bytes <= 2000 || group.end - group.begin == 1);
      next = group.end;
    }
    EXPECT_EQ(next, pieces.size());
  }
}

using CudaCopierTest = CopierFixture;

TEST_F(CudaCopierTest, ExportsTheTable) {
  ASSERT_NE(Table(), nullptr);
  EXPECT_EQ(Table()->abi, HOLDFAST_DEVICE_COPIER_ABI);
  EXPECT_EQ(Table()->struct_size, sizeof(holdfast_device_copier));
}

TEST_F(CudaCopierTest, WithoutADeviceOpenReportsTheReason) {
  if (gpu_.devices > 0) GTEST_SKIP() << "there is a device";
  EXPECT_EQ(Open({0}), static_cast<int32_t>(ErrorCode::kUnsupported));
  EXPECT_NE(std::string(text_), "");
  EXPECT_EQ(context_, nullptr);
}

TEST_F(CudaCopierTest, BytesAreSavedAndRestoredUnderAGuard) {
  if (gpu_.devices == 0) GTEST_SKIP() << "no GPU on this machine";
  // A simulated device is slow.
  const size_t bytes_in_all = gpu_.simulated == nullptr ? 64 << 20 : 20 << 20;
  const int rounds = gpu_.simulated == nullptr ? 20 : 5;
  const int fills = gpu_.simulated == nullptr ? 50 : 2;
  training_.push_back(std::make_unique<TrainingDevice>(0, bytes_in_all));
  TrainingDevice& device = *training_[0];
  ASSERT_EQ(Open({0}), 0) << text_;
  TrainingDevice::Bytes expected(bytes_in_all);
  Random random(5);
  for (auto& byte : expected) byte = static_cast<unsigned char>(random.Next());
  device.Upload(expected);

  std::vector<unsigned char> slot(bytes_in_all + 100);
  EXPECT_EQ(Table()->pin(context_, slot.data(), slot.size(), text_, sizeof text_), 0) << text_;
  // 10,000 pieces and one big one.
  std::vector<holdfast_device_piece> pieces;
  size_t at = 0;
  for (int i = 0; i < 10'000; ++i) {
    size_t bytes = 1 + random.Below(3000);
    pieces.push_back({device.at(at), at + 100, bytes, 0, 0});
    at += bytes;
  }
  pieces.push_back({device.at(at), at + 100, bytes_in_all - at, 0, 0});

  for (int round = 0; round < rounds; ++round) {
    std::fill(slot.begin(), slot.end(), 0);
    holdfast_device_mark* mark = nullptr;
    holdfast_device_copy* copy = nullptr;
    ASSERT_EQ(Table()->mark(context_, nullptr, &mark, text_, sizeof text_), 0) << text_;
    ASSERT_EQ(Table()->start(context_, mark, pieces.data(), pieces.size(), slot.data(), &copy,
                             text_, sizeof text_),
              0)
        << text_;
    ASSERT_EQ(Table()->guard(copy, nullptr, text_, sizeof text_), 0) << text_;
    device.Fill(0xEE, nullptr);  // the next optimizer step
    // As in the library: on a separate thread, where no context is current.
    std::thread([&] {
      size_t done = 0;
      EXPECT_EQ(Table()->wait_pieces(copy, pieces.size(), &done, text_, sizeof text_), 0) << text_;
      EXPECT_GE(done, pieces.size());
      Table()->finish(copy);
    }).join();
    ASSERT_EQ(std::memcmp(slot.data() + 100, expected.data(), bytes_in_all), 0)
        << "torn in round " << round;
    // Work that is queued before a restore must not run after it: the next round would detect it.
    for (int i = 0; i < fills; ++i) device.Fill(0xDD, nullptr);
    ASSERT_EQ(
        Table()->restore(context_, pieces.data(), pieces.size(), slot.data(), text_, sizeof text_),
        0)
        << text_;
  }
  Table()->unpin(context_, slot.data());
}

}  // namespace
}  // namespace holdfast::cuda
