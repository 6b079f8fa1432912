#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#define HOLDFAST_HPP_EXPLICIT_NAMESPACE
#include <holdfast/holdfast.hpp>

#include "bench/bench.h"
#include "testing/cluster/cluster.h"

namespace holdfast::bench {

/// A cluster of one node with a rank's state in this process, for end-to-end benchmarks.
struct LiveClient {
  std::unique_ptr<local::Cluster> cluster;
  std::vector<std::vector<float>> tensors;
  std::vector<v1::Tensor> state;

  static Result<LiveClient> Start(const std::string& dir, uint64_t bytes, int tensor_count,
                                  int disk_every);
  /// Like Start, with the caller's tensors of `bytes` in total.
  static Result<LiveClient> StartWith(const std::string& dir, uint64_t bytes, int disk_every,
                                      std::vector<v1::Tensor> state);
  /// Connects as a new start of the job.
  Result<v1::Client> Open(const std::string& run_id);
  uint64_t bytes() const;
};

Status FromClient(const v1::Status& status);

}  // namespace holdfast::bench
