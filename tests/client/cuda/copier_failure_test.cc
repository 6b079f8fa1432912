// Failures are reported, leak nothing, and leave no running copy. Needs the simulated driver, which
// fails on request.

#include <map>

#include "tests/client/cuda/copier_fixture.h"

namespace holdfast::cuda {
namespace {
using testing::HasSubstr;

class CopierFailureTest : public TwoDevicesFixture {
 protected:
  void SetUp() override {
    if (gpu_.simulated == nullptr) GTEST_SKIP() << "a real driver does not fail on request";
    TwoDevicesFixture::SetUp();
  }
  uint64_t Events() const { return gpu_.simulated->counts().events; }
};

TEST_F(CopierFailureTest, AnyCallOfASaveMayFail) {
  const uint64_t events = Events();
  int failures = 0;
  for (const char* call : {"cuEventCreate", "cuEventRecord", "cuStreamWaitEvent",
                           "cuMemcpyBatchAsync_v2", "cuMemcpyDtoHAsync_v2"}) {
    for (uint64_t n = 1;; ++n) {
      ASSERT_LT(n, 100u) << call << " always fails: " << text_;
      gpu_.simulated->fail_call(call, n, CUDA_ERROR_OUT_OF_MEMORY);
      // Queued copies wait for this gate, so that a call that does not wait for them is detected.
      training_[0]->Fill(static_cast<unsigned char>(n), training_[0]->stream);
      const int32_t code = Start(training_[0]->stream);
      if (code == 0) break;  // there are fewer than n calls
      ++failures;
      EXPECT_EQ(code, static_cast<int32_t>(ErrorCode::kIoError));
      EXPECT_THAT(std::string(text_), HasSubstr("out of memory"));
      EXPECT_EQ(copy_, nullptr);
      EXPECT_EQ(CopiesQueued(), 0u) << call << " " << n << ": copies still write into the slot";
      EXPECT_EQ(Events(), events) << call << " " << n;
    }
    gpu_.simulated->fail_nothing();
    ASSERT_EQ(WaitForAll(), 0) << text_;
    Finish();
    EXPECT_EQ(Events(), events);
  }
  EXPECT_GT(failures, 30);
}

TEST_F(CopierFailureTest, AnyCallOfOpenMayFail) {
  const simulated::Counts before = gpu_.simulated->counts();
  const std::map<const char*, uint64_t> calls_per_device = {
      {"cuDeviceGet", 1}, {"cuDevicePrimaryCtxRetain", 1}, {"cuStreamCreate", 2}};
  for (const auto& [call, per_device] : calls_per_device) {
    for (uint64_t n = 1; n <= 2 * per_device; ++n) {
      gpu_.simulated->fail_call(call, n, CUDA_ERROR_OUT_OF_MEMORY);
      holdfast_device_context* other = nullptr;
      const int32_t indices[] = {0, 1};
      EXPECT_EQ(Table()->open(indices, 2, &other, text_, sizeof text_),
                static_cast<int32_t>(ErrorCode::kUnsupported));
      EXPECT_EQ(other, nullptr);
      EXPECT_THAT(std::string(text_),
                  HasSubstr("CUDA device " + std::to_string((n - 1) / per_device)));
      EXPECT_EQ(gpu_.simulated->counts().streams, before.streams) << call << " " << n;
    }
  }
}

TEST_F(CopierFailureTest, AMissingDeviceIsRefused) {
  Table()->unpin(context_, slot_.data());
  Close();
  EXPECT_EQ(Open({0, 7}), static_cast<int32_t>(ErrorCode::kUnsupported));
  EXPECT_THAT(std::string(text_), HasSubstr("CUDA device 7: invalid device ordinal"));
}

TEST_F(CopierFailureTest, AnyCallOfGuardAndRestoreMayFail) {
  ASSERT_EQ(Start(training_[1]->stream), 0) << text_;
  for (uint64_t n : {1, 2}) {
    gpu_.simulated->fail_call("cuStreamWaitEvent", n, CUDA_ERROR_OUT_OF_MEMORY);
    EXPECT_EQ(Guard(training_[1]->stream), static_cast<int32_t>(ErrorCode::kIoError));
    EXPECT_THAT(std::string(text_), HasSubstr("guarding the training stream: out of memory"));
  }
  ASSERT_EQ(Guard(training_[1]->stream), 0) << text_;
  ASSERT_EQ(WaitForAll(), 0) << text_;
  Finish();
  auto restore = [&] {
    return Table()->restore(context_, pieces_.data(), pieces_.size(), slot_.data(), text_,
                            sizeof text_);
  };
  for (const char* call : {"cuCtxSynchronize", "cuStreamSynchronize", "cuMemcpyBatchAsync_v2",
                           "cuMemcpyHtoDAsync_v2"}) {
    for (uint64_t n : {1, 2}) {
      gpu_.simulated->fail_call(call, n, CUDA_ERROR_OUT_OF_MEMORY);
      const int32_t code = restore();
      gpu_.simulated->fail_nothing();
      if (code == 0) continue;  // this driver needs no such call
      EXPECT_EQ(code, static_cast<int32_t>(ErrorCode::kIoError));
      EXPECT_THAT(std::string(text_), HasSubstr("out of memory"));
      if (std::string(call) != "cuStreamSynchronize") {
        EXPECT_EQ(CopiesQueued(), 0u);
      }
    }
  }
  EXPECT_EQ(restore(), 0) << text_;
}

TEST_F(CopierFailureTest, APieceOnADeviceThatWasNotOpenedIsRefused) {
  const uint64_t events = Events();
  pieces_.back().device_index = 5;
  EXPECT_EQ(Start(nullptr), static_cast<int32_t>(ErrorCode::kIoError));
  EXPECT_THAT(std::string(text_), HasSubstr("invalid device ordinal"));
  EXPECT_EQ(CopiesQueued(), 0u);
  EXPECT_EQ(Events(), events);
}

TEST_F(CopierFailureTest, ACopyMayFailLater) {
  gpu_.simulated->fail_copy(0, 3);
  // No copy begins before start() has returned: start() itself would report an earlier failure.
  Gate gate;
  gate.Hold(*training_[1], training_[1]->stream);
  // The other device's copies are delayed, since its stream is blocked.
  for (int i = 0; i < 20; ++i) training_[1]->Fill(9, training_[1]->stream);
  ASSERT_EQ(Start(training_[1]->stream), 0) << text_;
  gate.Open();
  EXPECT_EQ(WaitForAll(), static_cast<int32_t>(ErrorCode::kIoError));
  EXPECT_THAT(std::string(text_), HasSubstr("illegal memory access"));
  EXPECT_EQ(CopiesQueued(), 0u) << "a failed copy must be reported after all copies have ended";
  Finish();
  EXPECT_NE(Start(training_[0]->stream), 0) << "the context stays broken";

  // A process that has released everything can start again.
  Table()->unpin(context_, slot_.data());
  Close();
  training_.clear();
  pieces_.clear();
  SetUp();
  training_[0]->Fill(1, training_[0]->stream);
  training_[1]->Fill(2, training_[0]->stream);
  ASSERT_EQ(Start(training_[0]->stream), 0) << text_;
  ASSERT_EQ(WaitForAll(), 0) << text_;
  EXPECT_TRUE(Holds(1, 2));
  Finish();
}

TEST_F(CopierFailureTest, QueueingTheRestOfALargeStateMayFail) {
  const uint64_t events = Events();
  pieces_.clear();
  for (size_t i = 0; i < 500; ++i) {
    pieces_.push_back({training_[i % 2]->at(2 * i), 3 * i, 1, training_[i % 2]->index, 0});
  }
  ASSERT_EQ(Start(training_[0]->stream), 0) << text_;
  ASSERT_EQ(Table()->is_queued(copy_), 0);
  gpu_.simulated->fail_call("cuEventCreate", 20, CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(WaitForAll(), static_cast<int32_t>(ErrorCode::kIoError));
  EXPECT_THAT(std::string(text_), HasSubstr("copying from the device: out of memory"));
  EXPECT_EQ(CopiesQueued(), 0u) << "copies still write into the slot";
  gpu_.simulated->fail_nothing();
  EXPECT_EQ(WaitForAll(), static_cast<int32_t>(ErrorCode::kIoError)) << "nothing more is queued";
  EXPECT_EQ(Table()->is_queued(copy_), 0);
  EXPECT_EQ(Guard(training_[0]->stream), 0) << "what is copied does not change any more";
  Finish();
  EXPECT_EQ(Events(), events);
}

TEST_F(CopierFailureTest, ADroppedMarkIsFreed) {
  const uint64_t events = Events();
  for (CUstream stream : {CUstream{}, training_[0]->stream, training_[1]->stream}) {
    holdfast_device_mark* mark = nullptr;
    ASSERT_EQ(Table()->mark(context_, stream, &mark, text_, sizeof text_), 0) << text_;
    EXPECT_GT(Events(), events);
    Table()->drop_mark(context_, mark);
    EXPECT_EQ(Events(), events);
  }
  EXPECT_NE(Start(reinterpret_cast<CUstream>(uintptr_t{0xBAD0})), 0) << "no such stream";
  EXPECT_EQ(Events(), events);
}

TEST_F(CopierFailureTest, ARefusedPinIsReported) {
  Table()->unpin(context_, slot_.data());
  {
    const OnDevice current(0);
    ASSERT_EQ(gpu_.Register(slot_.data(), 4096, 0), CUDA_SUCCESS);  // of another owner
  }
  EXPECT_EQ(Table()->pin(context_, slot_.data(), slot_.size(), text_, sizeof text_),
            static_cast<int32_t>(ErrorCode::kResourceExhausted));
  EXPECT_THAT(std::string(text_), HasSubstr("cuMemHostRegister"));
  Table()->unpin(context_, slot_.data());
  training_[0]->Fill(1, training_[0]->stream);
  training_[1]->Fill(2, training_[0]->stream);
  ASSERT_EQ(Start(training_[0]->stream), 0) << text_;
  ASSERT_EQ(WaitForAll(), 0) << text_;
  EXPECT_TRUE(Holds(1, 2)) << "through unpinned memory";
  Finish();
  const OnDevice current(0);
  EXPECT_EQ(gpu_.Unregister(slot_.data()), CUDA_SUCCESS)
      << "the other owner's registration must remain";
}

}  // namespace
}  // namespace holdfast::cuda
