// The order of operations: the copy after the training's work, the training's next work after the
// copy, a restore after all queued work; on streams of either device.

#include <atomic>
#include <chrono>

#include "tests/client/cuda/copier_fixture.h"

namespace holdfast::cuda {
namespace {
using CopierOrderTest = TwoDevicesFixture;

TEST_F(CopierOrderTest, TheCopyRunsBetweenTheStepBeforeAndTheStepAfter) {
  for (unsigned char round = 1; round <= 30; ++round) {
    CUstream stream = training_[round % 2]->stream;  // the training's stream is on either device
    training_[0]->Fill(round, stream);
    training_[1]->Fill(round + 100, stream);
    ASSERT_EQ(Start(stream), 0) << text_;
    ASSERT_EQ(Guard(stream), 0) << text_;
    training_[0]->Fill(0xEE, stream);
    training_[1]->Fill(0xEE, stream);
    ASSERT_EQ(WaitForAll(), 0) << text_;
    EXPECT_TRUE(Holds(round, round + 100)) << "torn in round " << int{round};
    Finish();
    const OnDevice current(0);
    EXPECT_EQ(gpu_.StreamSynchronize(stream), CUDA_SUCCESS);  // the next round uses another stream
  }
}

TEST_F(CopierOrderTest, NoCallWaitsForTheTrainingStream) {
  Gate gate;
  gate.Hold(*training_[1], training_[1]->stream);
  training_[0]->Fill(1, training_[1]->stream);
  training_[1]->Fill(2, training_[1]->stream);
  ASSERT_EQ(Start(training_[1]->stream), 0) << text_;
  ASSERT_EQ(Guard(training_[1]->stream), 0) << text_;
  training_[0]->Fill(0xEE, training_[1]->stream);
  gate.Open();  // not reached if a call waits
  ASSERT_EQ(WaitForAll(), 0) << text_;
  EXPECT_TRUE(Holds(1, 2));
  Finish();
}

TEST_F(CopierOrderTest, OnlyAPartOfALargeStateIsQueued) {
  // Single bytes, so that many groups are needed; the rest of the slot stays zero.
  constexpr size_t kCount = 5000;
  pieces_.clear();
  for (size_t i = 0; i < kCount; ++i) {
    pieces_.push_back({training_[i % 2]->at(2 * i), 3 * i, 1, training_[i % 2]->index, 0});
  }
  Gate gate;
  gate.Hold(*training_[0], training_[0]->stream);
  training_[0]->Fill(1, training_[0]->stream);
  training_[1]->Fill(2, training_[0]->stream);
  ASSERT_EQ(Start(training_[0]->stream), 0) << text_;
  // A real driver does not count its queues, and with the kernel these copies are few operations.
  if (gpu_.simulated != nullptr) {
    EXPECT_EQ(Table()->is_queued(copy_), 0);
    EXPECT_GT(CopiesQueued(), 0u);
    EXPECT_LT(CopiesQueued(), 700u) << "a full queue would stop the training's thread";
  }
  gate.Open();
  size_t done = 0;
  std::thread waiting([&] {
    while (Table()->is_queued(copy_) == 0) {
      const size_t before = done;
      ASSERT_EQ(Table()->wait_pieces(copy_, done + 1, &done, text_, sizeof text_), 0) << text_;
      ASSERT_GT(done, before);
    }
  });
  waiting.join();
  EXPECT_LT(done, kCount) << "the last copies are queued before they have run";
  ASSERT_EQ(Guard(training_[0]->stream), 0) << text_;
  training_[0]->Fill(0xEE, training_[0]->stream);
  training_[1]->Fill(0xEE, training_[0]->stream);
  ASSERT_EQ(WaitForAll(), 0) << text_;
  size_t wrong = 0;
  for (size_t i = 0; i < kCount; ++i) wrong += slot_[3 * i] != i % 2 + 1 || slot_[3 * i + 1] != 0;
  EXPECT_EQ(wrong, 0u);
  Finish();
}

TEST_F(CopierOrderTest, OtherStreamsRunWhileACopyWaits) {
  Gate gate;
  gate.Hold(*training_[0], training_[0]->stream);
  ASSERT_EQ(Start(training_[0]->stream), 0) << text_;
  std::atomic<bool> ran{false};
  training_[1]->Fill(7, nullptr);
  // Not a function of the host: a driver runs these one after another, and the gate is one.
  std::thread waiting([&] {
    const OnDevice current(training_[1]->index);
    EXPECT_EQ(gpu_.StreamSynchronize(nullptr), CUDA_SUCCESS);
    ran = true;
  });
  for (int ms = 0; ms < 10'000 && !ran; ++ms) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  EXPECT_TRUE(ran) << "the default stream waits for the copy";
  gate.Open();
  waiting.join();
  ASSERT_EQ(WaitForAll(), 0) << text_;
  Finish();
}

TEST_F(CopierOrderTest, TheDefaultStreamMeansThatOfEachDevice) {
  Gate gates[2];
  for (size_t i : {0, 1}) {
    gates[i].Hold(*training_[i], nullptr);
    training_[i]->Fill(static_cast<unsigned char>(i + 1), nullptr);
  }
  ASSERT_EQ(Start(nullptr), 0) << text_;
  ASSERT_EQ(Guard(nullptr), 0) << text_;
  for (auto& device : training_) device->Fill(0xEE, nullptr);
  gates[0].Open();
  std::thread late([&] {
    // Long enough for a copy that would not wait for the other device.
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    gates[1].Open();
  });
  ASSERT_EQ(WaitForAll(), 0) << text_;
  late.join();
  EXPECT_TRUE(Holds(1, 2));
  Finish();
}

TEST_F(CopierOrderTest, AGuardWorksOnAThreadWithoutAContext) {
  for (CUstream stream : {training_[0]->stream, training_[1]->stream}) {
    training_[0]->Fill(5, stream);
    training_[1]->Fill(6, stream);
    std::thread([&] {
      ASSERT_EQ(Start(stream), 0) << text_;
      ASSERT_EQ(Guard(stream), 0) << text_;
    }).join();
    training_[0]->Fill(0xEE, stream);
    training_[1]->Fill(0xEE, stream);
    ASSERT_EQ(WaitForAll(), 0) << text_;
    EXPECT_TRUE(Holds(5, 6));
    Finish();
    const OnDevice current(0);
    EXPECT_EQ(gpu_.StreamSynchronize(stream), CUDA_SUCCESS);  // the next round uses another stream
  }
}

TEST_F(CopierOrderTest, TheCallersContextIsRestored) {
  auto unchanged = [&](const char* after) {
    static thread_local CUcontext expected = nullptr;
    CUcontext now = nullptr;
    EXPECT_EQ(gpu_.Current(&now), CUDA_SUCCESS);
    if (after == nullptr) expected = now;
    EXPECT_EQ(now, expected) << after;
  };
  auto save_and_restore = [&] {
    unchanged(nullptr);
    EXPECT_EQ(Start(training_[1]->stream), 0) << text_;
    unchanged("mark or start");
    EXPECT_EQ(Guard(training_[1]->stream), 0) << text_;
    unchanged("guard");
    size_t done = 0;
    EXPECT_EQ(Table()->wait_pieces(copy_, pieces_.size(), &done, text_, sizeof text_), 0);
    unchanged("wait_pieces");
    Table()->finish(std::exchange(copy_, nullptr));
    unchanged("finish");
    EXPECT_EQ(Table()->restore(context_, pieces_.data(), pieces_.size(), slot_.data(), text_,
                               sizeof text_),
              0);
    unchanged("restore");
    holdfast_device_mark* mark = nullptr;
    EXPECT_EQ(Table()->mark(context_, nullptr, &mark, text_, sizeof text_), 0) << text_;
    Table()->drop_mark(context_, mark);
    unchanged("drop_mark");
    Table()->unpin(context_, slot_.data());
    unchanged("unpin");
    EXPECT_EQ(Table()->pin(context_, slot_.data(), slot_.size(), text_, sizeof text_), 0) << text_;
    unchanged("pin");
    EXPECT_NE(Table()->pin(context_, slot_.data(), slot_.size(), text_, sizeof text_), 0);
    unchanged("a refused pin");
    holdfast_device_context* other = nullptr;
    const std::vector<int32_t> indices(indices_.rbegin(), indices_.rend());
    EXPECT_EQ(Table()->open(indices.data(), indices.size(), &other, text_, sizeof text_), 0)
        << text_;
    unchanged("open");
    Table()->close(other);
    unchanged("close");
  };
  std::thread(save_and_restore).join();
  for (int32_t device : indices_) {
    const OnDevice current(device);
    save_and_restore();
  }
}

TEST_F(CopierOrderTest, ARestoreRunsAfterQueuedWork) {
  for (size_t i = 0; i < slot_.size(); ++i) slot_[i] = IsOfFirst(i) ? 3 : 4;
  Gate gate;
  gate.Hold(*training_[1], training_[1]->stream);
  for (auto& device : training_) device->Fill(0xDD, training_[1]->stream);
  const uint64_t before = gpu_.simulated == nullptr ? 0 : gpu_.simulated->counts().copies_begun;
  std::thread opener([&] {
    // A restore that does not wait for the stream would end meanwhile, and be overwritten.
    for (int i = 0; i < 100; ++i) {
      if (gpu_.simulated != nullptr && gpu_.simulated->counts().copies_begun != before) break;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    gate.Open();
  });
  ASSERT_EQ(
      Table()->restore(context_, pieces_.data(), pieces_.size(), slot_.data(), text_, sizeof text_),
      0)
      << text_;
  opener.join();
  EXPECT_EQ(training_[0]->Download(), TrainingDevice::Bytes(kBytes, 3));
  EXPECT_EQ(training_[1]->Download(), TrainingDevice::Bytes(kBytes, 4));
}

}  // namespace
}  // namespace holdfast::cuda
