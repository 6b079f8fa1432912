// CUDA graphs: a running save does not break a capture, a guard within a capture waits, and tensors
// that a replay has changed during a copy are detected.

#include "tests/client/cuda/copier_fixture.h"

namespace holdfast::cuda {
namespace {

class CopierCaptureTest : public TwoDevicesFixture {
 protected:
  void TearDown() override {
    if (exec_ != nullptr) gpu_.GraphExecDestroy(exec_);
    if (graph_ != nullptr) gpu_.GraphDestroy(graph_);
    TwoDevicesFixture::TearDown();
  }
  CUstream stream() const { return training_[0]->stream; }
  void Begin(CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL) {
    const OnDevice current(0);
    ASSERT_EQ(gpu_.BeginCapture(stream(), mode), CUDA_SUCCESS);
  }
  void End() {
    const OnDevice current(0);
    ASSERT_EQ(gpu_.EndCapture(stream(), &graph_), CUDA_SUCCESS) << "the capture was broken";
    ASSERT_EQ(gpu_.Instantiate(&exec_, graph_, 0), CUDA_SUCCESS);
  }
  /// A step of training as a graph: all bytes of device 0 become `value`.
  void CaptureStep(unsigned char value) {
    Begin();
    training_[0]->Fill(value, stream());
    End();
  }
  void Replay() {
    const OnDevice current(0);
    ASSERT_EQ(gpu_.GraphLaunch(exec_, stream()), CUDA_SUCCESS);
  }
  void FillBoth() {
    training_[0]->Fill(1, stream());
    training_[1]->Fill(2, stream());
  }
  void Settle() {
    const OnDevice current(0);
    ASSERT_EQ(gpu_.StreamSynchronize(stream()), CUDA_SUCCESS);
  }

  CUgraph graph_ = nullptr;
  CUgraphExec exec_ = nullptr;
};

TEST_F(CopierCaptureTest, ARunningSaveDoesNotBreakACapture) {
  FillBoth();
  ASSERT_EQ(Start(stream()), 0) << text_;
  std::vector<unsigned char> more(64 << 10);
  for (CUstreamCaptureMode mode :
       {CU_STREAM_CAPTURE_MODE_GLOBAL, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL}) {
    if (graph_ != nullptr) {
      ASSERT_EQ(gpu_.GraphExecDestroy(exec_), CUDA_SUCCESS);
      ASSERT_EQ(gpu_.GraphDestroy(graph_), CUDA_SUCCESS);
    }
    Begin(mode);
    // During the capture, the library's threads call the driver.
    EXPECT_EQ(WaitForAll(), 0) << text_;
    std::thread([&] {
      EXPECT_EQ(Table()->pin(context_, more.data(), more.size(), text_, sizeof text_), 0) << text_;
      Table()->unpin(context_, more.data());
    }).join();
    // The program's own threads call it, too.
    EXPECT_EQ(Table()->pin(context_, more.data(), more.size(), text_, sizeof text_), 0) << text_;
    Table()->unpin(context_, more.data());
    training_[0]->Fill(9, stream());
    End();
  }
  EXPECT_TRUE(Holds(1, 2));
  Finish();
  Replay();
  Settle();
  EXPECT_EQ(training_[0]->Download()[17], 9);
}

TEST_F(CopierCaptureTest, CopiesEndAndBeginWhileAnotherStreamIsCaptured) {
  FillBoth();
  Settle();
  Begin();
  std::thread([&] {
    ASSERT_EQ(Start(training_[1]->stream), 0) << text_;
    EXPECT_EQ(WaitForAll(), 0) << text_;
    Finish();
  }).join();
  End();
  EXPECT_TRUE(Holds(1, 2));
}

TEST_F(CopierCaptureTest, AGuardWithinACaptureWaits) {
  Gate gate;
  gate.Hold(*training_[0], stream());
  FillBoth();
  ASSERT_EQ(Start(stream()), 0) << text_;
  Begin();
  std::thread late([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    gate.Open();
  });
  EXPECT_EQ(Guard(stream()), 0) << text_;
  // The copy is complete when the guard returns, since no graph can wait for it.
  EXPECT_TRUE(Holds(1, 2));
  training_[0]->Fill(9, stream());
  End();
  late.join();
  Replay();
  ASSERT_EQ(WaitForAll(), 0) << text_;
  EXPECT_TRUE(Holds(1, 2));
  Settle();
  Finish();
}

TEST_F(CopierCaptureTest, ASaveOnACapturedStreamIsRefused) {
  Begin();
  holdfast_device_mark* mark = nullptr;
  EXPECT_EQ(Table()->mark(context_, stream(), &mark, text_, sizeof text_),
            static_cast<int32_t>(ErrorCode::kFailedPrecondition));
  EXPECT_THAT(text_, testing::HasSubstr("CUDA graph is being captured"));
  EXPECT_EQ(mark, nullptr);
  training_[0]->Fill(9, stream());
  End();
}

TEST_F(CopierCaptureTest, AGuardedReplayRunsAfterTheCopy) {
  CaptureStep(9);
  for (int round = 0; round < 20; ++round) {
    FillBoth();
    ASSERT_EQ(Start(stream()), 0) << text_;
    ASSERT_EQ(Guard(stream()), 0) << text_;
    Replay();
    ASSERT_EQ(WaitForAll(), 0) << text_;
    EXPECT_TRUE(Holds(1, 2));
    Finish();
    Settle();
  }
}

TEST_F(CopierCaptureTest, AReplayDuringACopyIsDetected) {
  if (gpu_.simulated == nullptr) GTEST_SKIP() << "only the simulated driver can hold a copy";
  CaptureStep(9);
  for (uint64_t held : {2, 5, 7}) {
    FillBoth();
    Settle();
    const uint64_t before = gpu_.simulated->counts().copies_begun;
    gpu_.simulated->hold_copy(0, held);
    ASSERT_EQ(Start(stream()), 0) << text_;
    // Device 1 copies all of its runs, of two pieces each, and samples of all pieces. Device 0
    // waits before the held copy.
    const uint64_t samples_of_one = pieces_.size() / 2;
    const uint64_t runs_of_one = pieces_.size() / 4;
    while (gpu_.simulated->counts().copies_begun <
           before + runs_of_one + samples_of_one + held - 1) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    Replay();  // without a guard
    Settle();
    gpu_.simulated->release_copies();
    EXPECT_EQ(WaitForAll(), static_cast<int32_t>(ErrorCode::kDataLoss));
    EXPECT_THAT(text_, testing::HasSubstr("call guard() before"));
    EXPECT_FALSE(Holds(1, 2)) << "no change could be detected";
    Finish();
  }
}

}  // namespace
}  // namespace holdfast::cuda
