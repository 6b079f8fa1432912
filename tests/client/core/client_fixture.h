#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <holdfast/holdfast.h>

#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "tests/client/core/scripted_agent.h"

namespace holdfast::client {

/// A scripted agent in a temporary folder, and one tensor of 4 KiB to save.
class ClientFixture : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (std::filesystem::temp_directory_path() / "hf-client-XXXXXX").string();
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    dir_ = pattern;
    agent_ = std::make_unique<ScriptedAgent>(dir_ + "/agent.sock");
    values_.assign(1024, 1.5F);
    shape_ = {1024};
    tensors_.push_back({.name = "w",
                        .data = values_.data(),
                        .shape = shape_.data(),
                        .dimensions = 1,
                        .dtype = HOLDFAST_F32,
                        .device = HOLDFAST_HOST,
                        .device_index = 0,
                        .global_shape = nullptr,
                        .offset = nullptr,
                        .reserved = {}});
    socket_ = agent_->path();
    options_.socket_path = socket_.c_str();
    options_.job = "job";
    options_.run_id = "run-1";
    options_.world = 1;
    // Loaded machines are slow. Tests that need a time-out set a short one.
    options_.connect_timeout_ms = 60'000;
    options_.agent_timeout_ms = 30'000;
    options_.log = [](void* context, int, const char* text) {
      auto* self = static_cast<ClientFixture*>(context);
      std::lock_guard lock(self->log_mutex_);
      self->log_.emplace_back(text);
    };
    options_.log_context = this;
  }
  void TearDown() override {
    Close(0);
    agent_.reset();
    std::filesystem::remove_all(dir_);
  }

  holdfast_code Open() {
    return holdfast_open(&options_, tensors_.data(), tensors_.size(), &client_, &error_);
  }
  holdfast_code Save(uint64_t step) { return holdfast_save(client_, step, nullptr, &error_); }
  holdfast_code Guard() { return holdfast_guard(client_, nullptr, &error_); }
  holdfast_code Wait(uint64_t step, uint32_t tier = HOLDFAST_SEALED, uint64_t ms = 60'000) {
    return holdfast_wait(client_, step, tier, ms, &error_);
  }
  holdfast_code Close(uint64_t ms = 60'000) {
    return holdfast_close(std::exchange(client_, nullptr), ms, &error_);
  }
  std::string Message() const { return error_.message; }
  holdfast_stats Stats() {
    holdfast_stats stats{};
    stats.struct_size = sizeof stats;
    EXPECT_EQ(holdfast_get_stats(client_, &stats), HOLDFAST_OK);
    return stats;
  }
  template <typename Condition>
  bool Eventually(Condition condition, int ms = 60'000) {
    for (int i = 0; i < ms; ++i) {
      if (condition()) return true;
      ::usleep(1000);
    }
    return condition();
  }
  bool Connected() { return holdfast_connection(client_, nullptr) == HOLDFAST_OK; }

  std::string dir_;
  std::string socket_;
  std::unique_ptr<ScriptedAgent> agent_;
  std::vector<float> values_;
  std::vector<uint64_t> shape_;
  std::vector<holdfast_tensor> tensors_;
  holdfast_options options_ = HOLDFAST_OPTIONS_INIT;
  holdfast_client* client_ = nullptr;
  holdfast_error error_{};
  std::mutex log_mutex_;
  std::vector<std::string> log_;
};

/// A call that takes longer counts as hung. Not a measure of speed.
inline constexpr int64_t kHangMs = 20'000;

/// Returns the milliseconds that `work` took.
template <typename Work>
int64_t Timed(Work work) {
  auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::steady_clock::now() -
                                                               start)
      .count();
}

}  // namespace holdfast::client
