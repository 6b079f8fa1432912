#pragma once

#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <cstdlib>

#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/random.h"
#include "base/status.h"
#include "client/core/device_copier.h"
#include "tests/client/cuda/gpu.h"

namespace holdfast::cuda {

/// The plugin's table as the library loads it, with the available driver. Skipped without a driver.
/// With the simulated driver, checks at the end for leaks and misuse.
class CopierFixture : public ::testing::Test {
 protected:
  static const holdfast_device_copier* Table() {
    static const holdfast_device_copier* table = [] {
      // A bundle for another machine names the plugin's place there.
      const char* moved = std::getenv("HOLDFAST_CUDA_PLUGIN");
      void* library =
          ::dlopen(moved == nullptr ? HOLDFAST_CUDA_PLUGIN : moved, RTLD_NOW | RTLD_LOCAL);
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
  /// Returns Unsupported, with a reason, when a device of `indices` does not exist.
  int32_t Open(const std::vector<int32_t>& indices) {
    return Table()->open(indices.data(), indices.size(), &context_, text_, sizeof text_);
  }
  void Close() {
    if (context_ != nullptr) Table()->close(std::exchange(context_, nullptr));
  }
  void TearDown() override {
    Close();
    training_.clear();
    if (gpu_.simulated == nullptr) return;
    gpu_.simulated->fail_nothing();
    const simulated::Counts left = gpu_.simulated->counts();
    EXPECT_EQ(left.contexts, 0u);
    EXPECT_EQ(left.streams, 0u);
    EXPECT_EQ(left.events, 0u);
    EXPECT_EQ(left.allocations, 0u);
    EXPECT_EQ(left.registrations, 0u);
    EXPECT_EQ(left.copies_queued, 0u);
    EXPECT_EQ(left.misuses, misuses_before_);
  }
  uint64_t CopiesQueued() const { return gpu_.simulated->counts().copies_queued; }

  const Gpu& gpu_ = Gpu::Get();
  holdfast_device_context* context_ = nullptr;
  char text_[512] = {};
  std::vector<std::unique_ptr<TrainingDevice>> training_;
  uint64_t misuses_before_ = gpu_.simulated == nullptr ? 0 : gpu_.simulated->counts().misuses;
};

/// Two states of `kBytes`, each on a separate device where there are two, in alternating pieces,
/// two per state, and a pinned slot for them.
class TwoDevicesFixture : public CopierFixture {
 protected:
  static constexpr size_t kBytes = 1 << 20;
  static constexpr size_t kPieceBytes = 64 << 10;

  void SetUp() override {
    if (gpu_.devices == 0) GTEST_SKIP() << "no GPU on this machine";
    if (gpu_.devices > 1) indices_ = {0, 1};
    training_.push_back(std::make_unique<TrainingDevice>(0, kBytes));
    training_.push_back(std::make_unique<TrainingDevice>(indices_.back(), kBytes));
    slot_.resize(2 * kBytes);
    for (size_t at = 0; at < kBytes; at += 2 * kPieceBytes) {
      for (size_t state : {0, 0, 1, 1}) {
        const size_t offset = pieces_.size() % 2 * kPieceBytes;
        pieces_.push_back({training_[state]->at(at + offset), pieces_.size() * kPieceBytes,
                           kPieceBytes, training_[state]->index, 0});
      }
    }
    ASSERT_EQ(Open(indices_), 0) << text_;
    ASSERT_EQ(Table()->pin(context_, slot_.data(), slot_.size(), text_, sizeof text_), 0) << text_;
  }
  void TearDown() override {
    if (context_ != nullptr) Table()->unpin(context_, slot_.data());
    CopierFixture::TearDown();
  }
  /// Calls mark and start. Returns the code of the one that failed.
  int32_t Start(CUstream stream) {
    holdfast_device_mark* mark = nullptr;
    copy_ = nullptr;
    int32_t code = Table()->mark(context_, stream, &mark, text_, sizeof text_);
    if (code != 0) return code;
    return Table()->start(context_, mark, pieces_.data(), pieces_.size(), slot_.data(), &copy_,
                          text_, sizeof text_);
  }
  int32_t Guard(CUstream stream) { return Table()->guard(copy_, stream, text_, sizeof text_); }
  /// As in the library: on a separate thread, where no context is current.
  int32_t WaitForAll() {
    int32_t code = 0;
    std::thread([&] {
      size_t done = 0;
      code = Table()->wait_pieces(copy_, pieces_.size(), &done, text_, sizeof text_);
      if (code == 0) {
        EXPECT_EQ(done, pieces_.size());
      }
    }).join();
    return code;
  }
  void Finish() {
    std::thread([&] { Table()->finish(std::exchange(copy_, nullptr)); }).join();
  }
  /// Returns whether the slot has only bytes `first` of the first state and `second` of the second.
  bool Holds(unsigned char first, unsigned char second) const {
    for (size_t at = 0; at < slot_.size(); ++at) {
      if (slot_[at] != (IsOfFirst(at) ? first : second)) return false;
    }
    return true;
  }
  static bool IsOfFirst(size_t slot_offset) { return slot_offset / kPieceBytes / 2 % 2 == 0; }

  std::vector<int32_t> indices_ = {0};  // the devices
  std::vector<unsigned char> slot_;
  std::vector<holdfast_device_piece> pieces_;
  holdfast_device_copy* copy_ = nullptr;
};

}  // namespace holdfast::cuda
