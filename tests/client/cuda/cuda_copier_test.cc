// The plugin as the library loads it. Without a driver: it loads and refuses clearly. With a GPU:
// bytes on the device arrive in the slot and back, the guard keeps a later write out of the copy.

#include <cuda.h>
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <cstring>
#include <numeric>
#include <thread>
#include <vector>

#include "client/core/device_copier.h"
#include "client/cuda/copy_groups.h"
#include "storage/base/random.h"
#include "storage/base/status.h"

namespace holdfast::cuda {
namespace {

const holdfast_device_copier* Table() {
  static const holdfast_device_copier* table = [] {
    void* library = ::dlopen(HOLDFAST_CUDA_PLUGIN, RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
      ADD_FAILURE() << ::dlerror();
      return static_cast<const holdfast_device_copier*>(nullptr);
    }
    auto get = reinterpret_cast<holdfast_device_copier_fn>(
        ::dlsym(library, HOLDFAST_DEVICE_COPIER_SYMBOL));
    return get == nullptr ? nullptr : get();
  }();
  return table;
}

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

TEST(CudaCopierTest, SpeaksTheContract) {
  ASSERT_NE(Table(), nullptr);
  EXPECT_EQ(Table()->abi, HOLDFAST_DEVICE_COPIER_ABI);
  EXPECT_EQ(Table()->struct_size, sizeof(holdfast_device_copier));
}

/// Opens device 0, or returns nullptr after checking that the refusal is a clear one.
holdfast_device_context* OpenOrRefuse() {
  holdfast_device_context* context = nullptr;
  int32_t index = 0;
  char text[512] = {};
  int32_t code = Table()->open(&index, 1, &context, text, sizeof text);
  if (code == 0) return context;
  EXPECT_EQ(code, static_cast<int32_t>(ErrorCode::kUnsupported));
  EXPECT_NE(std::string(text), "");
  EXPECT_EQ(context, nullptr);
  return nullptr;
}

TEST(CudaCopierTest, WithoutADeviceItRefusesAndSaysWhy) {
  if (holdfast_device_context* context = OpenOrRefuse()) Table()->close(context);
}

/// The few driver calls that the test itself needs.
struct TestDriver {
  void* library = ::dlopen("libcuda.so.1", RTLD_NOW);
  template <typename Function>
  Function* Get(const char* name) const {
    return reinterpret_cast<Function*>(::dlsym(library, name));
  }
};

TEST(CudaCopierTest, BytesArriveAndComeBackAndTheGuardHolds) {
  holdfast_device_context* context = OpenOrRefuse();
  if (context == nullptr) GTEST_SKIP() << "no GPU on this machine";
  TestDriver driver;
  auto* alloc = driver.Get<CUresult(CUdeviceptr*, size_t)>("cuMemAlloc_v2");
  auto* release = driver.Get<CUresult(CUdeviceptr)>("cuMemFree_v2");
  auto* upload = driver.Get<CUresult(CUdeviceptr, const void*, size_t)>("cuMemcpyHtoD_v2");
  auto* fill =
      driver.Get<CUresult(CUdeviceptr, unsigned char, size_t, CUstream)>("cuMemsetD8Async");
  auto* retain = driver.Get<CUresult(CUcontext*, CUdevice)>("cuDevicePrimaryCtxRetain");
  auto* push = driver.Get<CUresult(CUcontext)>("cuCtxPushCurrent_v2");
  CUcontext primary = nullptr;
  ASSERT_EQ(retain(&primary, 0), CUDA_SUCCESS);
  ASSERT_EQ(push(primary), CUDA_SUCCESS);

  constexpr size_t kBytes = 64 << 20;
  CUdeviceptr memory = 0;
  ASSERT_EQ(alloc(&memory, kBytes), CUDA_SUCCESS);
  std::vector<unsigned char> expected(kBytes);
  Random random(5);
  for (auto& byte : expected) byte = static_cast<unsigned char>(random.Next());
  ASSERT_EQ(upload(memory, expected.data(), kBytes), CUDA_SUCCESS);

  std::vector<unsigned char> slot(kBytes + 100);
  char text[512] = {};
  EXPECT_EQ(Table()->pin(context, slot.data(), slot.size(), text, sizeof text), 0) << text;
  // 10,000 pieces and one big one.
  std::vector<holdfast_device_piece> pieces;
  size_t at = 0;
  for (int i = 0; i < 10'000; ++i) {
    size_t bytes = 1 + random.Below(3000);
    pieces.push_back({reinterpret_cast<void*>(memory + at), at + 100, bytes, 0, 0});
    at += bytes;
  }
  pieces.push_back({reinterpret_cast<void*>(memory + at), at + 100, kBytes - at, 0, 0});

  for (int round = 0; round < 20; ++round) {
    std::fill(slot.begin(), slot.end(), 0);
    holdfast_device_mark* mark = nullptr;
    holdfast_device_copy* copy = nullptr;
    ASSERT_EQ(Table()->mark(context, nullptr, &mark, text, sizeof text), 0) << text;
    ASSERT_EQ(Table()->start(context, mark, pieces.data(), pieces.size(), slot.data(), &copy, text,
                             sizeof text),
              0)
        << text;
    ASSERT_EQ(Table()->guard(copy, nullptr, text, sizeof text), 0) << text;
    ASSERT_EQ(fill(memory, 0xEE, kBytes, nullptr), CUDA_SUCCESS);  // the next optimizer step
    // As the library does: on a thread of its own, where no context is current.
    std::thread([&] {
      size_t done = 0;
      EXPECT_EQ(Table()->wait_pieces(copy, pieces.size(), &done, text, sizeof text), 0) << text;
      EXPECT_GE(done, pieces.size());
      Table()->finish(copy);
    }).join();
    ASSERT_EQ(std::memcmp(slot.data() + 100, expected.data(), kBytes), 0)
        << "torn in round " << round;
    // What is queued before a restore does not come after it: the next round would see it.
    for (int i = 0; i < 50; ++i) ASSERT_EQ(fill(memory, 0xDD, kBytes, nullptr), CUDA_SUCCESS);
    ASSERT_EQ(
        Table()->restore(context, pieces.data(), pieces.size(), slot.data(), text, sizeof text), 0)
        << text;
  }
  Table()->unpin(context, slot.data());
  release(memory);
  Table()->close(context);
}

}  // namespace
}  // namespace holdfast::cuda
