#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <memory>
#include <string>

#include "coordinator/server/coordinator_server.h"

namespace holdfast::coord {

/// A real server on a unix socket, with its files in a folder of the test. SetUp() starts nothing:
/// a test completes `config_` first.
class ServerFixture : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (std::filesystem::temp_directory_path() / "coord-XXXXXX").string();
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    dir_ = pattern;
    config_.cluster = "test";
    config_.listen = "unix:" + dir_ + "/c.sock";
    config_.data_dir = dir_ + "/data";
  }
  void TearDown() override {
    server_.reset();
    if (!dir_.empty()) std::filesystem::remove_all(dir_);
  }
  /// Starts the server, after the end of the previous one.
  void Start() {
    server_.reset();
    auto server = CoordinatorServer::Start(config_, Clock::Real());
    ASSERT_TRUE(server.has_value()) << server.error().ToString();
    server_ = *std::move(server);
  }

  std::string dir_;
  CoordinatorConfig config_;
  std::unique_ptr<CoordinatorServer> server_;
};

}  // namespace holdfast::coord
