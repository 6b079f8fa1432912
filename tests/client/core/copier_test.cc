// Copies between tensors and slots, with host and device tensors, through a plugin for tests.

#include "client/core/copier.h"

#include <gmock/gmock.h>

#include <cstdlib>
#include <cstring>
#include <optional>
#include <thread>

#include "base/random.h"

namespace holdfast::client {
namespace {

/// Tensors of many sizes, every third on the "device", with random bytes.
class CopierTest : public ::testing::Test {
 protected:
  void Make(const std::vector<uint64_t>& sizes, uint64_t device_every) {
    for (size_t i = 0; i < sizes.size(); ++i) {
      std::vector<std::byte> bytes(sizes[i]);
      for (std::byte& b : bytes) b = static_cast<std::byte>(random_.Next());
      memory_bytes_.push_back(std::move(bytes));
      TensorSpec spec;
      char name[32];
      std::snprintf(name, sizeof name, "t%06zu", i);
      spec.name = name;
      spec.shape = spec.global_shape = {sizes[i]};
      spec.offset = {0};
      specs_.push_back(spec);
      bool device = device_every != 0 && i % device_every == 0;
      memory_.push_back({memory_bytes_.back().data(), device, 0});
    }
    auto layout = ImageLayout::Plan(specs_);
    ASSERT_TRUE(layout) << layout.error().ToString();
    plan_ = PlanSave(*layout, memory_);
    layout_.emplace(*std::move(layout));
    header_ = *layout_->RenderHeader({"job", {{1}, {2}}, {0}, 1}, {});
    slot_.assign(header_.size() + plan_.tensor_bytes + 5, std::byte{0xEE});
    for (const auto& bytes : memory_bytes_) {
      expected_.insert(expected_.end(), bytes.begin(), bytes.end());
    }
  }
  void LoadDevice() {
    auto device = DeviceCopier::Load(memory_, "fake");
    ASSERT_TRUE(device) << device.error().ToString();
    device_ = *std::move(device);
  }
  void SetUpAgain() {
    memory_bytes_.clear();
    specs_.clear();
    memory_.clear();
    expected_.clear();
    device_.reset();
  }
  SaveCopy::Target Target() {
    return {.header = header_,
            .extras = extras_,
            .slot = slot_,
            .progress = [this](uint64_t n) { progress_.push_back(n); },
            .alive = [this] { return alive_after_-- > 0; },
            .released = [this] { ++released_; }};
  }
  /// Runs a save that calls the guard when the tensors are released. Returns what the fake device's
  /// guard found: 1 is right.
  int GuardOnRelease() {
    int stream = 0;
    auto copy = SaveCopy::Make(plan_, device_.get(), &stream);
    if (!copy) return -1;
    SaveCopy::Target target = Target();
    target.released = [&] {
      ++released_;
      EXPECT_TRUE((*copy)->GuardStream(&stream).ok());
    };
    EXPECT_TRUE((*copy)->Run(target).ok());
    return stream;
  }
  void ExpectImage() {
    ASSERT_EQ(std::memcmp(slot_.data(), header_.data(), header_.size()), 0);
    EXPECT_EQ(std::memcmp(slot_.data() + header_.size(), expected_.data(), expected_.size()), 0);
  }

  Random random_{7};
  std::vector<std::vector<std::byte>> memory_bytes_;
  std::vector<TensorSpec> specs_;
  std::vector<TensorMemory> memory_;
  std::optional<ImageLayout> layout_;
  CopyPlan plan_;
  std::string header_;
  std::vector<ExtraBytes> extras_ = {{"x", "hello"}};
  std::vector<std::byte> slot_;
  std::vector<std::byte> expected_;
  std::unique_ptr<DeviceCopier> device_;
  std::vector<uint64_t> progress_;
  int alive_after_ = 1 << 30;
  int released_ = 0;
};

std::vector<uint64_t> Sizes() {
  std::vector<uint64_t> sizes = {0, 1, 4095, 4096, 1 << 20, (1 << 20) + 1, 3 << 20, 0, 17 << 20};
  for (uint64_t i = 0; i < 500; ++i) sizes.push_back(i * 37);
  return sizes;
}

TEST_F(CopierTest, ProgressIsPublishedPerMebibyte) {
  Make(Sizes(), 0);
  auto copy = SaveCopy::Make(plan_, nullptr, nullptr);
  ASSERT_TRUE(copy);
  ASSERT_TRUE((*copy)->Run(Target()).ok());
  ExpectImage();
  EXPECT_EQ(std::memcmp(slot_.data() + slot_.size() - 5, "hello", 5), 0);
  ASSERT_FALSE(progress_.empty());
  EXPECT_EQ(progress_.back(), slot_.size());
  uint64_t before = 0;
  for (uint64_t n : progress_) {
    EXPECT_GT(n, before);
    EXPECT_LE(n - before, 1u << 20) << "published at every chunk";
    before = n;
  }
  EXPECT_EQ(released_, 1);
}

// The agent checksums published bytes at once, and never again.
TEST_F(CopierTest, BytesAreVisibleBeforeTheyArePublished) {
  for (uint64_t device_every : {0, 3}) {
    SCOPED_TRACE(device_every);
    SetUpAgain();
    Make(Sizes(), device_every);
    if (device_every != 0) LoadDevice();
    std::vector<std::byte> image(slot_.size());
    std::memcpy(image.data(), header_.data(), header_.size());
    std::memcpy(image.data() + header_.size(), expected_.data(), expected_.size());
    std::memcpy(image.data() + image.size() - 5, "hello", 5);
    int stream = 0;
    auto copy = SaveCopy::Make(plan_, device_.get(), &stream);
    ASSERT_TRUE(copy);
    SaveCopy::Target target = Target();
    uint64_t seen = 0;
    target.progress = [&](uint64_t published) {
      ASSERT_LE(published, image.size());
      EXPECT_EQ(std::memcmp(slot_.data() + seen, image.data() + seen, published - seen), 0)
          << "bytes " << seen << " to " << published;
      seen = published;
    };
    ASSERT_TRUE((*copy)->Run(target).ok());
    EXPECT_EQ(seen, image.size());
  }
}

TEST_F(CopierTest, ACopyCanBeCancelled) {
  Make(Sizes(), 0);
  alive_after_ = 5;
  auto copy = SaveCopy::Make(plan_, nullptr, nullptr);
  EXPECT_EQ((*copy)->Run(Target()).code(), ErrorCode::kCancelled);
  EXPECT_EQ(progress_.size(), 5u);
  EXPECT_EQ(released_, 1) << "a cancelled copy must release the tensors";
}

TEST_F(CopierTest, ATooSmallSlotIsNotOverrun) {
  Make({1 << 20}, 0);
  slot_.resize(slot_.size() - 1);
  auto copy = SaveCopy::Make(plan_, nullptr, nullptr);
  EXPECT_EQ((*copy)->Run(Target()).code(), ErrorCode::kInternal);
  EXPECT_TRUE(progress_.empty());
}

TEST_F(CopierTest, DeviceAndHostTensorsMayBeMixed) {
  Make(Sizes(), 3);
  LoadDevice();
  EXPECT_EQ(GuardOnRelease(), 1);
  ExpectImage();
  EXPECT_EQ(released_, 1);
  EXPECT_EQ(progress_.back(), slot_.size());
}

TEST_F(CopierTest, HostTensorsDoNotWaitForADevice) {
  Make(Sizes(), 3);
  LoadDevice();
  ::setenv("HOLDFAST_TEST_DEVICE", "held", 1);
  int stream = 0;
  auto copy = SaveCopy::Make(plan_, device_.get(), &stream);
  ASSERT_TRUE(copy);
  SaveCopy::Target target = Target();
  target.released = [&] {
    ++released_;
    // Training continues: later values of the host tensors must not be copied.
    for (size_t i = 0; i < memory_.size(); ++i) {
      if (!memory_[i].device)
        std::fill(memory_bytes_[i].begin(), memory_bytes_[i].end(), std::byte{9});
    }
    EXPECT_TRUE((*copy)->GuardStream(&stream).ok());
  };
  EXPECT_TRUE((*copy)->Run(target).ok());
  ::unsetenv("HOLDFAST_TEST_DEVICE");
  EXPECT_EQ(stream, 1) << "the host tensors waited for the device";
  EXPECT_EQ(released_, 1);
  ExpectImage();
  EXPECT_TRUE(std::is_sorted(progress_.begin(), progress_.end()));
  EXPECT_EQ(progress_.back(), slot_.size());
}

TEST_F(CopierTest, TheTensorsAreReleasedWhenAllDeviceCopiesAreQueued) {
  Make(Sizes(), 3);
  LoadDevice();
  ::setenv("HOLDFAST_TEST_DEVICE", "parts", 1);
  EXPECT_EQ(GuardOnRelease(), 1) << "the guard ran before the last piece was queued";
  ::unsetenv("HOLDFAST_TEST_DEVICE");
  EXPECT_EQ(released_, 1);
  ExpectImage();
}

TEST_F(CopierTest, ACancelledDeviceCopyEndsBeforeRunReturns) {
  Make(Sizes(), 2);
  LoadDevice();
  alive_after_ = 3;
  auto copy = SaveCopy::Make(plan_, device_.get(), nullptr);
  EXPECT_EQ((*copy)->Run(Target()).code(), ErrorCode::kCancelled);
  std::vector<std::byte> now = slot_;
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_TRUE(now == slot_);
}

TEST_F(CopierTest, TheMarkOfACopyThatNeverRanIsDropped) {
  Make({100}, 1);
  LoadDevice();
  ASSERT_TRUE(SaveCopy::Make(plan_, device_.get(), nullptr));
  device_.reset();  // aborts when a mark was not dropped
}

TEST_F(CopierTest, ADeviceFailureIsReported) {
  Make({100}, 1);
  LoadDevice();
  ::setenv("HOLDFAST_TEST_DEVICE", "start", 1);
  auto copy = SaveCopy::Make(plan_, device_.get(), nullptr);
  Status status = (*copy)->Run(Target());
  ::unsetenv("HOLDFAST_TEST_DEVICE");
  EXPECT_EQ(status, Status(ErrorCode::kIoError, "the device fell off the bus"));
  EXPECT_EQ(released_, 1);
}

TEST_F(CopierTest, ABackendOfAnotherReleaseIsRefused) {
  Make({100}, 1);
  ::setenv("HOLDFAST_TEST_DEVICE", "abi", 1);
  auto device = DeviceCopier::Load(memory_, "fake");
  ::unsetenv("HOLDFAST_TEST_DEVICE");
  ASSERT_FALSE(device);
  EXPECT_EQ(device.error().code(), ErrorCode::kUnsupported);
}

TEST_F(CopierTest, TheErrorForAMissingBackendNamesItsLibrary) {
  Make({100}, 1);
  auto device = DeviceCopier::Load(memory_, "absent");
  ASSERT_FALSE(device);
  EXPECT_EQ(device.error().code(), ErrorCode::kUnsupported);
  EXPECT_THAT(device.error().message(), testing::HasSubstr("install libholdfast-absent.so"));
}

TEST_F(CopierTest, RestoresWithAnyNumberOfThreads) {
  Make(Sizes(), 3);
  LoadDevice();
  auto copy = SaveCopy::Make(plan_, device_.get(), nullptr);
  ASSERT_TRUE((*copy)->Run(Target()).ok());
  copy->reset();
  auto image = ParseImage(std::span(slot_).first(header_.size()), slot_.size() - 5);
  ASSERT_TRUE(image) << image.error().ToString();
  CopyPlan plan = PlanRestore(*image, specs_, memory_);
  std::span<const std::byte> data = std::span(slot_).subspan(header_.size());
  for (uint32_t threads : {1U, 2U, 7U}) {
    for (auto& bytes : memory_bytes_) std::fill(bytes.begin(), bytes.end(), std::byte{0});
    ASSERT_TRUE(CopyOut(plan, data, device_.get(), threads, [] { return true; }).ok());
    std::vector<std::byte> back;
    for (const auto& bytes : memory_bytes_) back.insert(back.end(), bytes.begin(), bytes.end());
    EXPECT_TRUE(back == expected_) << threads << " threads";
  }
  EXPECT_EQ(CopyOut(plan, data, device_.get(), 2, [] { return false; }).code(),
            ErrorCode::kCancelled);
  EXPECT_EQ(
      CopyOut(plan, data.first(data.size() / 2), device_.get(), 2, [] { return true; }).code(),
      ErrorCode::kInternal);
}

}  // namespace
}  // namespace holdfast::client
