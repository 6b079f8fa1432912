#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <optional>
#include <string>

#include "testing/cluster/cluster.h"

namespace holdfast::local {

/// A test with a cluster of real processes in a temporary folder. Members of derived classes are
/// destroyed before the cluster ends, and the folder is removed last. With HOLDFAST_KEEP, the
/// folder of a failed test stays for inspection.
class ClusterTest : public ::testing::Test {
 protected:
  ClusterTest() { options_.root = root_; }
  ~ClusterTest() override {
    cluster_.reset();
    if (HasFailure() && std::getenv("HOLDFAST_KEEP") != nullptr) return;
    std::error_code ignored;
    std::filesystem::remove_all(root_, ignored);
  }

  /// Starts the servers of `options_`.
  void StartServers() {
    cluster_.emplace(options_);
    const Status started = cluster_->Start();
    ASSERT_TRUE(started.ok()) << started.ToString();
  }

  const std::string root_ = MakeTempDir("hf").value();
  ClusterOptions options_;
  std::optional<Cluster> cluster_;
};

}  // namespace holdfast::local
