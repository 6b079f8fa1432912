// A training process with its state on two simulated devices, with a real agent, keeper and
// coordinator. The state is saved while training runs, and restored from memory and from disk, byte
// for byte, also if the agent dies in the middle of a copy.

#include <gtest/gtest.h>

#define HOLDFAST_HPP_EXPLICIT_NAMESPACE
#include <holdfast/holdfast.hpp>

#include <filesystem>
#include <memory>
#include <optional>

#include "tests/client/cuda/gpu.h"
#include "tests/e2e/cluster_test.h"

namespace holdfast::local {
namespace {
using cuda::Gate;
using cuda::Gpu;
using cuda::TrainingDevice;
using std::chrono::milliseconds;
constexpr milliseconds kTimeout(60'000);
constexpr size_t kBytes = (5 << 20) + 3;

class GpuTest : public ClusterTest {
 protected:
  void SetUp() override {
    ASSERT_NE(Gpu::Get().simulated, nullptr) << "runs on the simulated driver";
    options_.nodes = 1;
    ASSERT_NO_FATAL_FAILURE(StartServers());
    Join("run-1");
  }
  void TearDown() override {
    Leave();
    cluster_.reset();
    const cuda::simulated::Counts left = Gpu::Get().simulated->counts();
    EXPECT_EQ(left.contexts + left.streams + left.events + left.registrations, 0u);
    EXPECT_EQ(left.misuses, 0u);
  }

  /// Starts the job again, on devices that contain other bytes.
  void Join(const std::string& run_id) {
    std::vector<v1::Tensor> state;
    for (int i : {0, 1}) {
      devices_.push_back(std::make_unique<TrainingDevice>(i, kBytes));
      Step(0xAA);
      state.push_back({.name = "weights." + std::to_string(i),
                       .dtype = v1::DType::kU8,
                       .data = devices_.back()->at(0),
                       .shape = {kBytes},
                       .device = HOLDFAST_CUDA,
                       .device_index = i});
    }
    state.push_back(v1::Whole("host", host_, {host_.size()}));
    v1::Options options;
    options.job = "job";
    options.run_id = run_id;
    options.socket_path = cluster_->AgentSocket(0);
    options.connect_timeout = kTimeout;
    options.agent_timeout = kTimeout;
    auto client = v1::Client::Open(options, state);
    ASSERT_TRUE(client.ok()) << client.status().ToString();
    client_.emplace(std::move(*client));
  }
  void Leave() {
    client_.reset();
    devices_.clear();
  }
  CUstream stream() const { return devices_[0]->stream; }
  void Step(unsigned char value) {
    for (auto& device : devices_) device->Fill(value, stream());
    host_.assign(host_.size(), value);
  }
  /// One training step: guards, changes and saves the state.
  v1::Status TrainAndSave(uint64_t step) {
    v1::Status status = client_->Guard(stream());
    Step(static_cast<unsigned char>(step));
    return status.ok() ? client_->Save(step, {}, stream(), kTimeout) : status;
  }
  void ExpectRestored(uint64_t step) {
    auto restored = client_->Restore(std::nullopt, kTimeout);
    ASSERT_TRUE(restored.ok()) << restored.status().ToString();
    EXPECT_EQ(restored->version.step, step);
    const auto value = static_cast<unsigned char>(step);
    for (auto& device : devices_) {
      EXPECT_EQ(device->Download(), TrainingDevice::Bytes(kBytes, value));
    }
    EXPECT_EQ(host_, std::vector<float>(host_.size(), value));
  }

  std::vector<std::unique_ptr<TrainingDevice>> devices_;
  std::vector<float> host_ = std::vector<float>(1000);
  std::optional<v1::Client> client_;
};

TEST_F(GpuTest, DeviceTensorsAreRestoredFromMemoryAndDisk) {
  for (uint64_t step = 1; step <= 10; ++step) {
    v1::Status saved = TrainAndSave(step);
    ASSERT_TRUE(saved.ok()) << saved.ToString();
  }
  // Not every step goes to disk while the disk is busy. The first one that does must be restored.
  uint64_t step = 10;
  ASSERT_TRUE(WaitUntil(
      [&] {
        return TrainAndSave(++step).ok() &&
               client_->Wait(step, v1::Tier::kDisk, milliseconds(1000)).ok();
      },
      kTimeout));
  Leave();
  Join("run-2");
  ExpectRestored(step);
  Leave();
  cluster_->KillEverything();
  Status started = cluster_->Start();
  ASSERT_TRUE(started.ok()) << started.ToString();
  Join("run-3");
  ExpectRestored(step);
}

TEST_F(GpuTest, ARestartedAgentReusesMemoryAfterAnInterruptedCopy) {
  ASSERT_TRUE(TrainAndSave(1).ok());
  ASSERT_TRUE(client_->Wait(1, v1::Tier::kMemory, kTimeout).ok());
  Gate gate;
  gate.Hold(*devices_[0], stream());
  ASSERT_TRUE(TrainAndSave(2).ok());
  v1::Status guarded = client_->Guard(stream());  // the copy is queued now
  ASSERT_TRUE(guarded.ok()) << guarded.ToString();
  EXPECT_GT(Gpu::Get().simulated->counts().copies_queued, 0u);
  cluster_->agent(0).Kill();
  gate.Open();
  EXPECT_EQ(client_->Wait(2, v1::Tier::kSealed, kTimeout).code(), v1::Code::kUnavailable);
  Status started = cluster_->StartAgent(0);
  ASSERT_TRUE(started.ok()) << started.ToString();
  uint64_t step = 2;
  ASSERT_TRUE(WaitUntil(
      [&] {
        return TrainAndSave(++step).ok() && client_->Wait(step, v1::Tier::kMemory, kTimeout).ok();
      },
      kTimeout));
  // One registration for the slots, and one sample buffer per device: nothing was pinned twice.
  EXPECT_EQ(Gpu::Get().simulated->counts().registrations, 3u);
  Leave();
  Join("run-2");
  ExpectRestored(step);
}

}  // namespace
}  // namespace holdfast::local
