// The plugin as the library loads it. Without a driver: it loads, and open() reports a clear error.
// With a GPU: bytes are copied from the device to the slot and back, and the guard keeps later
// writes out of the copy.

#include <algorithm>
#include <cstring>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "client/cuda/copy_schedule.h"
#include "client/cuda/gather_limit.h"
#include "tests/client/cuda/copier_fixture.h"

namespace holdfast::cuda {
namespace {

/// Pieces with random sizes on two devices. About half of them follow the piece before on both
/// sides.
std::vector<holdfast_device_piece> RandomPieces(Random& random) {
  std::vector<holdfast_device_piece> pieces(random.Below(200));
  uint64_t device = 1 << 20;
  uint64_t slot = 0;
  for (auto& piece : pieces) {
    device += random.OneIn(2) ? 0 : random.Below(1000);
    slot += random.OneIn(4) ? random.Below(10) : 0;
    piece.device_memory = reinterpret_cast<void*>(device);
    piece.slot_offset = slot;
    piece.bytes = 1 + random.Below(random.OneIn(5) ? 50'000 : 100);
    piece.device_index = static_cast<int32_t>(random.Below(2));
    device += piece.bytes;
    slot += piece.bytes;
  }
  return pieces;
}

/// One allocation; the second device has no kernel.
ScheduleRules Rules(ScheduleLimits limits, uint64_t gather_below = 0) {
  return {.limits = limits,
          .gather_below = [=](int32_t index) { return index == 0 ? gather_below : 0; },
          .same_allocation = [](int32_t, uint64_t, uint64_t) { return true; }};
}

TEST(CopyScheduleTest, GroupsHaveEveryPieceInOrderWithinTheLimits) {
  Random random(3);
  for (int round = 0; round < 300; ++round) {
    const std::vector<holdfast_device_piece> pieces = RandomPieces(random);
    const CopySchedule schedule = MakeSchedule(pieces, Rules({2000, 16, 16, 0}));
    size_t next = 0;
    for (const CopyGroup& group : schedule.groups) {
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

TEST(CopyScheduleTest, EveryByteIsInOneRunOrItem) {
  Random random(4);
  size_t merged = 0;
  for (int round = 0; round < 300; ++round) {
    const std::vector<holdfast_device_piece> pieces = RandomPieces(random);
    const uint64_t below = random.Below(60'000);
    const CopySchedule schedule = MakeSchedule(pieces, Rules({100'000, 64, 64, 0}, below));
    for (const CopyGroup& group : schedule.groups) {
      // By byte of the slot, from the group's first one on: the address on the device; 0: none.
      const uint64_t first = pieces[group.begin].slot_offset;
      std::vector<uint64_t> expected;
      for (size_t i = group.begin; i < group.end; ++i) {
        expected.resize(pieces[i].slot_offset + pieces[i].bytes - first);
        for (uint64_t at = 0; at < pieces[i].bytes; ++at) {
          expected[pieces[i].slot_offset - first + at] =
              reinterpret_cast<uint64_t>(pieces[i].device_memory) + at;
        }
      }
      const auto take = [&](uint64_t device, uint64_t slot, uint64_t bytes) {
        ASSERT_GE(slot, first);
        ASSERT_LE(slot - first + bytes, expected.size());
        for (uint64_t at = 0; at < bytes; ++at) {
          const uint64_t address = std::exchange(expected[slot - first + at], 0);
          if (address != device + at) FAIL() << "a byte is copied twice, or not from its place";
        }
      };
      for (size_t i = group.runs_begin; i < group.runs_end; ++i) {
        const CopyRun& run = schedule.runs[i];
        EXPECT_GE(run.bytes, group.device_index == 0 ? below : 1);
        take(run.device, run.slot_offset, run.bytes);
      }
      for (size_t i = group.items_begin; i < group.items_end; ++i) {
        const GatherItem& item = schedule.items[i];
        EXPECT_EQ(group.device_index, 0);
        EXPECT_LE(item.bytes, kGatherItemBytesMax);
        take(item.device, item.slot_offset, item.bytes);
      }
      EXPECT_EQ(std::ranges::count(expected, 0U), static_cast<ptrdiff_t>(expected.size()));
    }
    if (below == 0) continue;
    merged += pieces.size() - std::min(pieces.size(), schedule.runs.size());
  }
  EXPECT_GT(merged, 0u);
}

TEST(CopyScheduleTest, FewShortRunsOfAGroupAreNotItems) {
  std::vector<std::byte> memory(1 << 20);
  const auto schedule_of = [&](size_t count) {
    std::vector<holdfast_device_piece> pieces;
    for (size_t i = 0; i < count; ++i) pieces.push_back({&memory[100 * i], 50 * i, 40, 0, 0});
    ScheduleLimits limits{.group_bytes_max = 1 << 20,
                          .group_pieces_max = 1000,
                          .group_runs_max = 1000,
                          .gather_runs_min = 16};
    return MakeSchedule(pieces, Rules(limits, 64));
  };
  EXPECT_EQ(schedule_of(15).runs.size(), 15U);
  EXPECT_TRUE(schedule_of(15).items.empty());
  EXPECT_TRUE(schedule_of(16).runs.empty());
  EXPECT_EQ(schedule_of(16).items.size(), 16U);
}

TEST(CopyScheduleTest, AGroupHasALimitedNumberOfRuns) {
  std::vector<std::byte> memory(1 << 20);
  std::vector<holdfast_device_piece> pieces;
  // Of every three pieces, one is long.
  for (size_t i = 0; i < 300; ++i) {
    pieces.push_back({&memory[200 * i], 150 * i, i % 3 == 0 ? 100u : 40u, 0, 0});
  }
  const ScheduleLimits limits{.group_bytes_max = 1 << 20,
                              .group_pieces_max = 1000,
                              .group_runs_max = 10,
                              .gather_runs_min = 1};
  const CopySchedule schedule = MakeSchedule(pieces, Rules(limits, 64));
  EXPECT_EQ(schedule.groups.size(), 11U);
  for (const CopyGroup& group : schedule.groups) {
    EXPECT_LE(group.runs_end - group.runs_begin, 10U);
  }
}

TEST(CopyScheduleTest, PiecesOfOneRunCountOnce) {
  std::vector<std::byte> memory(1 << 20);
  std::vector<holdfast_device_piece> pieces;
  // Runs of five pieces. Each piece is short, and each run is long.
  for (size_t i = 0; i < 300; ++i) {
    pieces.push_back({&memory[40 * i + i / 5 * 8], 40 * i, 40, 0, 0});
  }
  const ScheduleLimits limits{.group_bytes_max = 1 << 20,
                              .group_pieces_max = 1000,
                              .group_runs_max = 10,
                              .gather_runs_min = 1};
  for (const uint64_t gather_below : {0, 64, 200}) {
    const CopySchedule schedule = MakeSchedule(pieces, Rules(limits, gather_below));
    EXPECT_EQ(schedule.runs.size(), 60U);
    EXPECT_EQ(schedule.groups.size(), 6U);
    for (const CopyGroup& group : schedule.groups) {
      EXPECT_EQ(group.runs_end - group.runs_begin, 10U);
    }
  }
}

/// The kernel must be clearly faster for a size, and for all smaller ones.
TEST(GatherLimitTest, IsTwiceTheLargestSizeForWhichTheKernelIsClearlyFaster) {
  EXPECT_EQ(GatherLimit({}), 0U);
  EXPECT_EQ(GatherLimit({{4096, 1.1, 1.0}}), 0U) << "10 % are not enough";
  EXPECT_EQ(GatherLimit({{4096, 9.0, 1.0}, {16384, 2.0, 1.0}, {65536, 1.1, 1.0}}), 32768U);
  EXPECT_EQ(GatherLimit({{4096, 9.0, 1.0}, {16384, 1.0, 1.0}, {65536, 9.0, 1.0}}), 8192U);
  EXPECT_EQ(GatherLimit({{4096, 9.0, 1.0}, {16384, 8.0, 1.0}}), 32768U);
}

TEST(CopyScheduleTest, PiecesThatAreContiguousOnBothSidesAreOneRun) {
  std::vector<holdfast_device_piece> pieces;
  for (uint64_t i = 0; i < 6; ++i) {
    const uint64_t gap = i < 2 ? 0 : 512;  // the third piece begins later on the device
    pieces.push_back({reinterpret_cast<void*>(4096 + i * 100 + gap), 7 + i * 100, 100, 0, 0});
  }
  ScheduleRules rules = Rules({1 << 20, 100, 100, 0});
  // The fifth piece is in another allocation, which begins where the first one ends.
  constexpr uint64_t kSecond = 4096 + 400 + 512;
  rules.same_allocation = [](int32_t, uint64_t one, uint64_t other) {
    return (one < kSecond) == (other < kSecond);
  };
  const CopySchedule schedule = MakeSchedule(pieces, rules);
  ASSERT_EQ(schedule.runs.size(), 3u);
  EXPECT_EQ(schedule.runs[0].bytes, 200u);
  EXPECT_EQ(schedule.runs[1].device, 4096u + 712u);
  EXPECT_EQ(schedule.runs[1].slot_offset, 207u);
  EXPECT_EQ(schedule.runs[1].bytes, 200u);
  EXPECT_EQ(schedule.runs[2].device, kSecond);
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
    // As in the library: on a separate thread, where no context is current.
    size_t done = 0;
    std::thread([&] {
      while (Table()->is_queued(copy) == 0) {
        ASSERT_EQ(Table()->wait_pieces(copy, done + 1, &done, text_, sizeof text_), 0) << text_;
      }
    }).join();
    ASSERT_EQ(Table()->guard(copy, nullptr, text_, sizeof text_), 0) << text_;
    device.Fill(0xEE, nullptr);  // the next optimizer step
    std::thread([&] {
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
