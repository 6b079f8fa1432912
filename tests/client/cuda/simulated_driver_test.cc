// The simulated driver follows CUDA's rules, as documented. These tests are skipped with a real
// driver.

#include <gmock/gmock.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "tests/client/cuda/gpu.h"

namespace holdfast::cuda {
namespace {

class SimulatedDriverTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (gpu_.simulated == nullptr)
      GTEST_SKIP() << "the driver of this run is not the simulated one";
    before_ = gpu_.simulated->counts();
  }
  uint64_t Misuses() { return gpu_.simulated->counts().misuses - before_.misuses; }

  const Gpu& gpu_ = Gpu::Get();
  simulated::Counts before_;
};
using SimulatedDriverDeathTest = SimulatedDriverTest;

TEST_F(SimulatedDriverTest, AThreadWithoutAContextIsRefused) {
  CUstream stream = nullptr;
  CUevent event = nullptr;
  CUdeviceptr memory = 0;
  EXPECT_EQ(gpu_.StreamCreate(&stream, 0), CUDA_ERROR_INVALID_CONTEXT);
  EXPECT_EQ(gpu_.EventCreate(&event, 0), CUDA_ERROR_INVALID_CONTEXT);
  EXPECT_EQ(gpu_.Alloc(&memory, 1), CUDA_ERROR_INVALID_CONTEXT);
  CUcontext popped = nullptr;
  EXPECT_EQ(gpu_.Pop(&popped), CUDA_ERROR_INVALID_CONTEXT);
  const OnDevice current(0);
  std::thread([&] { EXPECT_EQ(gpu_.EventCreate(&event, 0), CUDA_ERROR_INVALID_CONTEXT); }).join();
}

TEST_F(SimulatedDriverTest, ContextsEndWithTheLastRelease) {
  CUcontext first = nullptr;
  CUcontext again = nullptr;
  ASSERT_EQ(gpu_.Retain(&first, 1), CUDA_SUCCESS);
  ASSERT_EQ(gpu_.Retain(&again, 1), CUDA_SUCCESS);
  EXPECT_EQ(first, again);
  EXPECT_EQ(gpu_.Retain(&again, 2), CUDA_ERROR_INVALID_DEVICE);
  EXPECT_EQ(gpu_.Release(1), CUDA_SUCCESS);
  EXPECT_EQ(gpu_.Push(first), CUDA_SUCCESS);
  EXPECT_EQ(gpu_.Release(1), CUDA_SUCCESS);
  EXPECT_EQ(gpu_.Release(1), CUDA_ERROR_INVALID_CONTEXT);
  EXPECT_EQ(gpu_.Synchronize(), CUDA_ERROR_CONTEXT_IS_DESTROYED);
  EXPECT_EQ(gpu_.Pop(&again), CUDA_SUCCESS);
  EXPECT_EQ(gpu_.Push(first), CUDA_ERROR_INVALID_CONTEXT);
  EXPECT_EQ(Misuses(), 0u);
}

TEST_F(SimulatedDriverDeathTest, TheHostCannotAccessDeviceMemory) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  TrainingDevice device(0, 4096);
  EXPECT_DEATH(*static_cast<volatile char*>(device.at(0)) = 1, "");
  EXPECT_DEATH(static_cast<void>(*static_cast<volatile char*>(device.at(4095))), "");
}

TEST_F(SimulatedDriverTest, CopiesCannotLeaveTheirAllocation) {
  TrainingDevice device(0, 4096);
  const OnDevice current(0);
  std::vector<unsigned char> bytes(8192);
  EXPECT_EQ(gpu_.Upload(device.memory, bytes.data(), 4097), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(gpu_.Upload(device.memory + 4096, bytes.data(), 1), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(gpu_.Upload(device.memory + 4000, bytes.data(), 96), CUDA_SUCCESS);
  EXPECT_EQ(gpu_.ToHost(bytes.data(), device.memory - 1, 2, device.stream),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(gpu_.ToHost(device.at(0), device.memory, 2, device.stream), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(SimulatedDriverTest, AWaitUsesTheEventsStateAtTheCall) {
  TrainingDevice device(0, 4096);
  TrainingDevice other(1, 4096);
  Gate gate;
  const OnDevice current(0);
  CUevent event = nullptr;
  ASSERT_EQ(gpu_.EventCreate(&event, CU_EVENT_DISABLE_TIMING), CUDA_SUCCESS);
  EXPECT_EQ(gpu_.EventSynchronize(event), CUDA_SUCCESS)
      << "an event that was never recorded is complete";
  EXPECT_EQ(gpu_.EventRecord(event, other.stream), CUDA_ERROR_INVALID_HANDLE);
  // A wait before the record does not block. A wait after it blocks for the work queued by then.
  ASSERT_EQ(gpu_.StreamWaitEvent(other.stream, event, 0), CUDA_SUCCESS);
  gate.Hold(device, device.stream);
  device.Fill(7, device.stream);
  ASSERT_EQ(gpu_.EventRecord(event, device.stream), CUDA_SUCCESS);
  EXPECT_EQ(gpu_.StreamSynchronize(other.stream), CUDA_SUCCESS);
  ASSERT_EQ(gpu_.StreamWaitEvent(other.stream, event, 0), CUDA_SUCCESS);
  EXPECT_EQ(gpu_.EventDestroy(event), CUDA_SUCCESS) << "a pending event may be destroyed";
  EXPECT_EQ(gpu_.EventDestroy(event), CUDA_ERROR_INVALID_HANDLE);
  std::vector<unsigned char> seen(4096);
  ASSERT_EQ(gpu_.Register(seen.data(), seen.size(), CU_MEMHOSTREGISTER_PORTABLE), CUDA_SUCCESS);
  const uint64_t begun = gpu_.simulated->counts().copies_begun;
  ASSERT_EQ(gpu_.ToHost(seen.data(), device.memory, seen.size(), other.stream), CUDA_SUCCESS);
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_EQ(gpu_.simulated->counts().copies_begun, begun);
  gate.Open();
  EXPECT_EQ(gpu_.StreamSynchronize(other.stream), CUDA_SUCCESS);
  EXPECT_EQ(seen, std::vector<unsigned char>(4096, 7));
  EXPECT_EQ(gpu_.Unregister(seen.data()), CUDA_SUCCESS);
  EXPECT_EQ(Misuses(), 0u);
}

TEST_F(SimulatedDriverTest, TheDefaultStreamAndBlockingStreamsWaitForEachOther) {
  TrainingDevice device(0, 4096);  // its stream is non-blocking
  Gate gate;
  const OnDevice current(0);
  CUstream blocking = nullptr;
  ASSERT_EQ(gpu_.StreamCreate(&blocking, CU_STREAM_DEFAULT), CUDA_SUCCESS);
  std::atomic<int> order{0};
  std::atomic<int> of_default{0};
  std::atomic<int> of_blocking{0};
  struct Note {
    std::atomic<int>* order;
    std::atomic<int>* mine;
  } default_note{&order, &of_default}, blocking_note{&order, &of_blocking};
  CUhostFn note = [](void* data) {
    auto* noted = static_cast<Note*>(data);
    *noted->mine = ++*noted->order;
  };
  gate.Hold(device, blocking);
  ASSERT_EQ(gpu_.Launch(nullptr, note, &default_note), CUDA_SUCCESS);
  ASSERT_EQ(gpu_.Launch(blocking, note, &blocking_note), CUDA_SUCCESS);
  device.Fill(1, device.stream);
  EXPECT_EQ(gpu_.StreamSynchronize(device.stream), CUDA_SUCCESS)
      << "a non-blocking stream waits for neither";
  EXPECT_EQ(order, 0);
  gate.Open();
  EXPECT_EQ(gpu_.StreamSynchronize(nullptr), CUDA_SUCCESS);
  EXPECT_EQ(gpu_.StreamSynchronize(blocking), CUDA_SUCCESS);
  EXPECT_EQ(of_default, 1);
  EXPECT_EQ(of_blocking, 2);
  Gate other;
  other.Hold(device, device.stream);
  EXPECT_EQ(gpu_.StreamSynchronize(nullptr), CUDA_SUCCESS)
      << "the default stream does not wait for a non-blocking one";
  other.Open();
  EXPECT_EQ(gpu_.StreamDestroy(blocking), CUDA_SUCCESS);
}

TEST_F(SimulatedDriverTest, RegistrationsAreIndependent) {
  TrainingDevice device(0, 4096);
  const OnDevice current(0);
  std::vector<unsigned char> memory(8192);
  EXPECT_EQ(gpu_.Register(memory.data(), 4096, 0), CUDA_SUCCESS);
  EXPECT_EQ(gpu_.Register(memory.data() + 4095, 2, 0), CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
  EXPECT_EQ(gpu_.Register(memory.data() + 4096, 4096, 0), CUDA_SUCCESS);
  EXPECT_EQ(gpu_.Unregister(memory.data() + 1), CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
  EXPECT_EQ(gpu_.Unregister(memory.data() + 4096), CUDA_SUCCESS);
  Gate gate;
  gate.Hold(device, device.stream);
  EXPECT_EQ(gpu_.ToHost(memory.data(), device.memory, 16, device.stream), CUDA_SUCCESS);
  EXPECT_EQ(gpu_.simulated->counts().copies_queued, 1u);
  EXPECT_EQ(gpu_.Unregister(memory.data()), CUDA_SUCCESS);
  EXPECT_EQ(Misuses(), 1u) << "a copy to it was queued";
  gate.Open();
  EXPECT_EQ(gpu_.StreamSynchronize(device.stream), CUDA_SUCCESS);
}

TEST_F(SimulatedDriverTest, ObjectsLeftInAContextAreCounted) {
  CUcontext context = nullptr;
  ASSERT_EQ(gpu_.Retain(&context, 0), CUDA_SUCCESS);
  {
    const OnDevice current(0);
    CUevent event = nullptr;
    ASSERT_EQ(gpu_.EventCreate(&event, 0), CUDA_SUCCESS);
  }
  EXPECT_EQ(gpu_.simulated->counts().events, before_.events + 1);
  EXPECT_EQ(gpu_.Release(0), CUDA_SUCCESS);
  EXPECT_EQ(Misuses(), 1u);
  EXPECT_EQ(gpu_.simulated->counts().events, before_.events);
}

TEST_F(SimulatedDriverTest, MemoryFreedBeforeItsCopyBreaksTheContextForGood) {
  std::vector<unsigned char> memory(4096);
  {
    TrainingDevice device(0, 4096);
    const OnDevice current(0);
    ASSERT_EQ(gpu_.Register(memory.data(), 4096, 0), CUDA_SUCCESS);
    Gate gate;
    gate.Hold(device, device.stream);
    CUdeviceptr gone = 0;
    ASSERT_EQ(gpu_.Alloc(&gone, 4096), CUDA_SUCCESS);
    ASSERT_EQ(gpu_.ToHost(memory.data(), gone, 4096, device.stream), CUDA_SUCCESS);
    ASSERT_EQ(gpu_.Free(gone), CUDA_SUCCESS);
    gate.Open();
    EXPECT_EQ(gpu_.StreamSynchronize(device.stream), CUDA_ERROR_ILLEGAL_ADDRESS);
    EXPECT_EQ(gpu_.Synchronize(), CUDA_ERROR_ILLEGAL_ADDRESS);
    EXPECT_EQ(gpu_.Alloc(&gone, 4096), CUDA_ERROR_ILLEGAL_ADDRESS);
    EXPECT_EQ(gpu_.Unregister(memory.data()), CUDA_ERROR_ILLEGAL_ADDRESS);
  }
  TrainingDevice device(0, 4096);
  device.Fill(1, device.stream);
  EXPECT_EQ(device.Download().size(), 4096u) << "a new context must work";
}

}  // namespace
}  // namespace holdfast::cuda
