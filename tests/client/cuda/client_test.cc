// The complete client library with tensors on devices and a scripted agent: the bytes in the slot,
// restores, guards, and the state after devices or agents have failed during a copy.

#include "base/random.h"
#include "tests/client/core/client_fixture.h"
#include "tests/client/cuda/gpu.h"

namespace holdfast::client {
namespace {
using cuda::Gate;
using cuda::Gpu;
using cuda::OnDevice;
using cuda::TrainingDevice;
using testing::HasSubstr;

/// Buffers that are pinned while a client is open: one per device, to detect changed tensors.
constexpr uint64_t kSampleBuffers = 2;

/// Two device tensors on each of two devices (or four on one, where there are not two) and two on
/// the host, with random bytes. The names of a device's tensors have the opposite order of their
/// addresses.
class GpuClientTest : public ClientFixture {
 protected:
  static constexpr size_t kHostBytes = 30'001;

  void SetUp() override {
    ClientFixture::SetUp();
    if (gpu_.devices == 0) GTEST_SKIP() << "no GPU on this machine";
    Describe((3 << 20) + 13);
    agent_->Start();
  }
  void Describe(size_t device_bytes) {
    tensors_.clear();
    training_.clear();
    shapes_.clear();
    const int second = gpu_.devices > 1 ? 1 : 0;
    for (int i : {0, second}) {
      training_.push_back(std::make_unique<TrainingDevice>(i, device_bytes));
    }
    host_.resize(2 * kHostBytes);
    const uint64_t half = device_bytes / 2;
    Add("d", HOLDFAST_CUDA, 0, training_[0]->at(0), half);
    Add("b", HOLDFAST_HOST, 0, host_.data(), kHostBytes);
    Add("a", HOLDFAST_CUDA, 0, training_[0]->at(half), device_bytes - half);
    Add("f", HOLDFAST_CUDA, second, training_[1]->at(0), half);
    Add("e", HOLDFAST_HOST, 0, host_.data() + kHostBytes, kHostBytes);
    Add("c", HOLDFAST_CUDA, second, training_[1]->at(half), device_bytes - half);
  }
  void TearDown() override {
    ClientFixture::TearDown();
    training_.clear();
    if (gpu_.simulated == nullptr) return;
    gpu_.simulated->fail_nothing();
    const cuda::simulated::Counts left = gpu_.simulated->counts();
    EXPECT_EQ(left.contexts, 0u);
    EXPECT_EQ(left.streams, 0u);
    EXPECT_EQ(left.events, 0u);
    EXPECT_EQ(left.registrations, 0u);
    EXPECT_EQ(left.copies_queued, 0u);
    EXPECT_EQ(left.misuses, misuses_before_);
  }

  /// Fills all tensors with random bytes. Returns the end of an image of them.
  std::string Randomise() {
    std::string bytes[2];
    for (size_t i : {0, 1}) {
      TrainingDevice::Bytes made(training_[i]->bytes());
      for (auto& byte : made) byte = static_cast<unsigned char>(random_.Next());
      training_[i]->Upload(made);
      bytes[i].assign(made.begin(), made.end());
    }
    for (char& byte : host_) byte = static_cast<char>(random_.Next());
    return Image(bytes[0], bytes[1]);
  }
  std::string Image(const std::string& on_first, const std::string& on_second) const {
    return host_ + on_first + on_second;
  }
  /// Returns the image of a state in which all device bytes are `value`.
  std::string ImageOf(unsigned char value) const {
    const std::string bytes(training_[0]->bytes(), static_cast<char>(value));
    return Image(bytes, bytes);
  }
  std::string Now() {
    TrainingDevice::Bytes bytes[] = {training_[0]->Download(), training_[1]->Download()};
    return Image({bytes[0].begin(), bytes[0].end()}, {bytes[1].begin(), bytes[1].end()});
  }
  void FillAll(unsigned char value, CUstream stream) {
    for (auto& device : training_) device->Fill(value, stream);
  }
  holdfast_code SaveOn(uint64_t step, CUstream stream) {
    holdfast_save_options save = {sizeof save, nullptr, 0, stream, 0, 0};
    return holdfast_save(client_, step, &save, &error_);
  }
  holdfast_code GuardOn(CUstream stream) { return holdfast_guard(client_, stream, &error_); }
  /// Returns whether the agent has an image of `step` with `data`.
  bool Saved(uint64_t step, const std::string& data) { return agent_->image(step).ends_with(data); }
  cuda::simulated::Counts Counts() const { return gpu_.simulated->counts(); }
  CUstream stream(size_t device = 0) const { return training_[device]->stream; }

  const Gpu& gpu_ = Gpu::Get();
  uint64_t misuses_before_ = gpu_.simulated == nullptr ? 0 : Counts().misuses;
  Random random_{11};
  std::vector<std::unique_ptr<TrainingDevice>> training_;
  std::string host_;

 private:
  void Add(const char* name, uint32_t device, int32_t index, void* data, uint64_t bytes) {
    shapes_.push_back(std::make_unique<uint64_t>(bytes));
    tensors_.push_back({.name = name,
                        .data = data,
                        .shape = shapes_.back().get(),
                        .dimensions = 1,
                        .dtype = HOLDFAST_U8,
                        .device = device,
                        .device_index = index,
                        .global_shape = nullptr,
                        .offset = nullptr,
                        .reserved = {}});
  }
  std::vector<std::unique_ptr<uint64_t>> shapes_;
};

/// With failures, held copies and counts of objects, which only the simulated driver has.
class SimulatedGpuClientTest : public GpuClientTest {
 protected:
  void SetUp() override {
    if (gpu_.simulated == nullptr) GTEST_SKIP() << "needs the simulated driver";
    GpuClientTest::SetUp();
  }
};

class GpuClientWithoutADriverTest : public ClientFixture {};

TEST_F(GpuClientWithoutADriverTest, OpenReportsTheMissingDriver) {
  if (Gpu::Get().library != nullptr) GTEST_SKIP() << "there is a driver";
  agent_->Start();
  tensors_[0].device = HOLDFAST_CUDA;
  EXPECT_EQ(Open(), HOLDFAST_UNSUPPORTED);
  EXPECT_THAT(Message(), HasSubstr("no NVIDIA driver on this machine"));
}

TEST_F(GpuClientTest, TheImageHasTheBytesOfDevicesAndHost) {
  ASSERT_EQ(Open(), HOLDFAST_OK) << Message();
  if (gpu_.simulated != nullptr) {
    EXPECT_EQ(Counts().registrations, 1u + kSampleBuffers) << "the slots are pinned";
  }
  for (uint64_t step = 1; step <= 4; ++step) {
    const std::string state = Randomise();
    CUstream on = step == 4 ? nullptr : stream(step % 2);
    ASSERT_EQ(SaveOn(step, on), HOLDFAST_OK) << Message();
    ASSERT_EQ(GuardOn(on), HOLDFAST_OK) << Message();
    ASSERT_EQ(Wait(step), HOLDFAST_OK) << Message();
    EXPECT_TRUE(Saved(step, state)) << step;
  }
  EXPECT_EQ(Close(), HOLDFAST_OK) << Message();
}

TEST_F(SimulatedGpuClientTest, TensorsThatAreAdjacentOnADeviceAreOneCopy) {
  ASSERT_EQ(Open(), HOLDFAST_OK) << Message();
  const uint64_t before = Counts().copies_begun;
  ASSERT_EQ(SaveOn(1, stream()), HOLDFAST_OK) << Message();
  ASSERT_EQ(Wait(1), HOLDFAST_OK) << Message();
  // One of each device, and the second reads of the beginnings of four tensors.
  EXPECT_EQ(Counts().copies_begun - before, 2u + 4u);
  EXPECT_EQ(Close(), HOLDFAST_OK) << Message();
}

TEST_F(GpuClientTest, ARestoreFillsDevicesAndHost) {
  ASSERT_EQ(Open(), HOLDFAST_OK) << Message();
  const std::string state = Randomise();
  ASSERT_EQ(SaveOn(1, stream()), HOLDFAST_OK) << Message();
  ASSERT_EQ(Wait(1), HOLDFAST_OK) << Message();
  agent_->OfferRestore({{7}, {1}}, agent_->image(1));
  host_.assign(host_.size(), 'x');
  FillAll(0xDD, stream(1));  // runs before the restore
  ASSERT_EQ(holdfast_restore(client_, nullptr, 60'000, nullptr, &error_), HOLDFAST_OK) << Message();
  EXPECT_TRUE(Now() == state);
}

/// Saves a step many times, where the next step changes the weights at once. Counts versions that
/// are not of their step. A real device copies so fast that a state is larger, and without a guard
/// the next step begins at different times.
class GpuTornTest : public GpuClientTest {
 protected:
  void SetUp() override {
    GpuClientTest::SetUp();
    if (IsSkipped()) return;
    Describe(is_real_ ? 64 << 20 : 200'000);
    ASSERT_EQ(Open(), HOLDFAST_OK) << Message();
  }
  int Torn(bool guarded) {
    int torn = 0;
    for (uint64_t step = 1; step <= (is_real_ ? 60 : 300); ++step) {
      const auto value = static_cast<unsigned char>(step);
      FillAll(value, stream());
      EXPECT_EQ(SaveOn(step, stream()), HOLDFAST_OK) << Message();
      if (guarded) {
        EXPECT_EQ(GuardOn(stream()), HOLDFAST_OK) << Message();
      } else if (is_real_) {
        ::usleep(static_cast<useconds_t>(step % 20 * 200));
      }
      FillAll(static_cast<unsigned char>(value + 1), stream());
      const holdfast_code code = Wait(step);
      if (!guarded && code == HOLDFAST_DATA_LOSS) {
        ++found_;
        continue;
      }
      EXPECT_EQ(code, HOLDFAST_OK) << Message();
      torn += Saved(step, ImageOf(value)) ? 0 : 1;
    }
    return torn;
  }

  const bool is_real_ = gpu_.simulated == nullptr;
  int found_ = 0;  // torn, and not saved
};

TEST_F(GpuTornTest, WithAGuardNoVersionIsTorn) { EXPECT_EQ(Torn(true), 0); }

#if !defined(__SANITIZE_THREAD__)
TEST_F(GpuTornTest, WithoutAGuardTornVersionsAreDetected) {
  const int unseen = Torn(false);
  EXPECT_GT(unseen + found_, 0)
      << "the guard's test is inconclusive: no copy overlapped the next step";
  EXPECT_GT(found_, 0) << "of " << unseen + found_ << " torn versions none was detected";
}
#endif

TEST_F(SimulatedGpuClientTest, TrainingIsNeverBlockedByTheHost) {
  ASSERT_EQ(Open(), HOLDFAST_OK) << Message();
  const uint64_t begun = Counts().copies_begun;
  Gate gate;
  gate.Hold(*training_[0], stream());
  FillAll(1, stream());
  ASSERT_EQ(SaveOn(1, stream()), HOLDFAST_OK) << Message();
  ASSERT_EQ(GuardOn(stream()), HOLDFAST_OK) << Message();
  FillAll(2, stream());
  EXPECT_GT(Counts().copies_queued, 0u) << "Guard must return while the copy is queued";
  EXPECT_EQ(Counts().copies_begun, begun) << "the copy must wait for the step";
  gate.Open();
  ASSERT_EQ(Wait(1), HOLDFAST_OK) << Message();
  EXPECT_TRUE(Saved(1, ImageOf(1)));
}

TEST_F(SimulatedGpuClientTest, ACopyThatCannotBeQueuedFailsOneVersion) {
  ASSERT_EQ(Open(), HOLDFAST_OK) << Message();
  FillAll(1, stream());
  // The first event marks the step; the second is the worker's.
  gpu_.simulated->fail_call("cuEventCreate", 2, CUDA_ERROR_OUT_OF_MEMORY);
  ASSERT_EQ(SaveOn(1, stream()), HOLDFAST_OK) << Message();
  ASSERT_TRUE(Eventually([&] { return Stats().failed == 1; }));
  FillAll(2, stream());
  EXPECT_EQ(SaveOn(2, stream()), HOLDFAST_IO_ERROR);
  EXPECT_EQ(error_.asynchronous, 1u);
  EXPECT_EQ(error_.step, 1u);
  EXPECT_THAT(Message(), HasSubstr("copying from the device: out of memory"));
  EXPECT_EQ(Wait(2), HOLDFAST_OK) << "the call did its own work: " << Message();
  EXPECT_TRUE(Saved(2, ImageOf(2)));
  EXPECT_EQ(Wait(1), HOLDFAST_IO_ERROR);
  EXPECT_EQ(agent_->images().count(1), 0u);
  EXPECT_EQ(agent_->Count(agent::MessageType::kAbandonSave), 1u);
  EXPECT_EQ(Close(), HOLDFAST_IO_ERROR);
  EXPECT_THAT(Message(), HasSubstr("step 1")) << "the first error again";
}

TEST_F(SimulatedGpuClientTest, ASaveWithoutASlotLeaksNothing) {
  ASSERT_EQ(Open(), HOLDFAST_OK) << Message();
  agent_->Edit([](Script& s) { s.begin_save = ResourceExhaustedError("no slot is free"); });
  ASSERT_EQ(SaveOn(1, stream()), HOLDFAST_OK) << Message();
  EXPECT_EQ(GuardOn(stream()), HOLDFAST_OK) << Message();
  EXPECT_EQ(Wait(1), HOLDFAST_RESOURCE_EXHAUSTED);
  EXPECT_TRUE(Eventually([&] { return Counts().events == 0; }));
  EXPECT_EQ(Close(), HOLDFAST_OK) << Message();
}

TEST_F(SimulatedGpuClientTest, AFailedMarkIsReportedAtOnce) {
  ASSERT_EQ(Open(), HOLDFAST_OK) << Message();
  gpu_.simulated->fail_call("cuEventRecord", 1, CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(SaveOn(1, stream()), HOLDFAST_IO_ERROR);
  EXPECT_EQ(error_.asynchronous, 0u);
  EXPECT_EQ(SaveOn(2, stream()), HOLDFAST_OK) << Message();
  EXPECT_EQ(Wait(2), HOLDFAST_OK) << Message();
}

TEST_F(SimulatedGpuClientTest, AfterADeviceErrorNothingIsSealed) {
  ASSERT_EQ(Open(), HOLDFAST_OK) << Message();
  FillAll(1, stream(1));
  gpu_.simulated->fail_copy(0, 1);
  ASSERT_EQ(SaveOn(1, stream(1)), HOLDFAST_OK) << Message();
  EXPECT_EQ(Wait(1), HOLDFAST_IO_ERROR);
  EXPECT_THAT(Message(), HasSubstr("illegal memory access"));
  EXPECT_EQ(agent_->images().size(), 0u);
  EXPECT_EQ(SaveOn(2, stream(0)), HOLDFAST_IO_ERROR);
  EXPECT_EQ(SaveOn(3, stream(1)), HOLDFAST_IO_ERROR);
  ASSERT_TRUE(Eventually([&] { return Stats().pending == 0; }));
  EXPECT_EQ(GuardOn(stream(1)), HOLDFAST_OK) << "there is nothing to wait for: " << Message();
  EXPECT_EQ(agent_->images().size(), 0u);
  EXPECT_EQ(Close(), HOLDFAST_IO_ERROR);
  EXPECT_THAT(Message(), HasSubstr("step 1"));
  // A new client works.
  Describe(1 << 20);
  const std::string state = Randomise();
  ASSERT_EQ(Open(), HOLDFAST_OK) << Message();
  ASSERT_EQ(SaveOn(4, stream()), HOLDFAST_OK) << Message();
  ASSERT_EQ(Wait(4), HOLDFAST_OK) << Message();
  EXPECT_TRUE(Saved(4, state));
}

TEST_F(SimulatedGpuClientTest, CloseWaitsForRunningCopies) {
  ASSERT_EQ(Open(), HOLDFAST_OK) << Message();
  Gate gate;
  gate.Hold(*training_[1], stream(1));
  ASSERT_EQ(SaveOn(1, stream(1)), HOLDFAST_OK) << Message();
  ASSERT_TRUE(Eventually([&] { return Counts().copies_queued > 0; }));
  std::atomic<bool> closed{false};
  std::thread closing([&] {
    EXPECT_EQ(Close(1), HOLDFAST_DEADLINE_EXCEEDED) << Message();
    EXPECT_EQ(Counts().copies_queued, 0u);
    EXPECT_EQ(Counts().registrations, 0u);
    closed = true;
  });
  ::usleep(50'000);
  EXPECT_FALSE(closed) << "a slot was released while it was written";
  gate.Open();
  closing.join();
}

TEST_F(SimulatedGpuClientTest, CloseDoesNotWaitForADeviceThatHangs) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  Gate gate;
  // In a separate process, since an abandoned client stays until the process ends.
  const auto hang = [&] {
    bool kept = Open() == HOLDFAST_OK;
    gate.Hold(*training_[0], stream());
    kept = kept && SaveOn(1, stream()) == HOLDFAST_OK;
    kept = kept && Eventually([&] { return Counts().copies_queued > 0; });
    kept = kept && Close(1) == HOLDFAST_DEADLINE_EXCEEDED;
    std::fputs(error_.message, stderr);
    kept = kept && Counts().copies_queued > 0 && Counts().registrations == 1 + kSampleBuffers;
    const auto logged = [&] {
      std::lock_guard lock(log_mutex_);
      return log_.size();
    };
    const size_t before = logged();
    agent_->Stop();
    gate.Open();
    kept = kept && Eventually([&] { return Counts().copies_queued == 0; });
    ::usleep(200'000);
    std::_Exit(kept && logged() == before ? 0 : 1);
  };
  EXPECT_EXIT(hang(), testing::ExitedWithCode(0),
              "not sealed: step 1; a GPU has not finished a copy");
}

TEST_F(SimulatedGpuClientTest, TheAgentMayRestartDuringACopy) {
  ASSERT_EQ(Open(), HOLDFAST_OK) << Message();
  for (uint64_t step : {1, 3, 5}) {
    FillAll(static_cast<unsigned char>(step), stream());
    Gate gate;
    gate.Hold(*training_[0], stream());
    ASSERT_EQ(SaveOn(step, stream()), HOLDFAST_OK) << Message();
    ASSERT_TRUE(Eventually([&] { return Counts().copies_queued > 0; }));
    agent_->Stop();
    if (step != 1) agent_->ForgetSegment();  // its keeper has ended, too
    agent_->Start();
    ASSERT_TRUE(Eventually([&] { return !Connected(); }));
    ::usleep(300'000);  // longer than the first pause before a reconnect
    EXPECT_FALSE(Connected()) << "while the device writes into a slot of the old connection";
    gate.Open();
    ASSERT_TRUE(Eventually([&] { return Connected(); }));
    EXPECT_EQ(Wait(step), HOLDFAST_UNAVAILABLE) << Message();
    EXPECT_EQ(Counts().registrations, 1u + kSampleBuffers);
    EXPECT_EQ(Counts().misuses, misuses_before_);
    FillAll(static_cast<unsigned char>(step + 1), stream());
    ASSERT_EQ(SaveOn(step + 1, stream()), HOLDFAST_OK) << Message();
    ASSERT_EQ(Wait(step + 1), HOLDFAST_OK) << Message();
    EXPECT_TRUE(Saved(step + 1, ImageOf(static_cast<unsigned char>(step + 1))));
  }
  EXPECT_EQ(Stats().reconnects, 3u);
}

TEST_F(SimulatedGpuClientTest, SlotsThatCannotBePinnedAreUsedUnpinned) {
  gpu_.simulated->fail_call("cuMemHostRegister_v2", 1, CUDA_ERROR_OUT_OF_MEMORY);
  ASSERT_EQ(Open(), HOLDFAST_OK) << Message();
  EXPECT_EQ(Counts().registrations, kSampleBuffers);
  {
    std::lock_guard lock(log_mutex_);
    EXPECT_THAT(log_, testing::Contains(HasSubstr("slots are not pinned")));
  }
  FillAll(1, stream());
  ASSERT_EQ(SaveOn(1, stream()), HOLDFAST_OK) << Message();
  ASSERT_EQ(GuardOn(stream()), HOLDFAST_OK) << Message();
  FillAll(2, stream());
  ASSERT_EQ(Wait(1), HOLDFAST_OK) << Message();
  EXPECT_TRUE(Saved(1, ImageOf(1)));
}

}  // namespace
}  // namespace holdfast::client
