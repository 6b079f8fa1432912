#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "bench/live_client.h"
#include "testing/cluster/cluster.h"

namespace holdfast::bench {

struct GroupShape {
  int nodes = 4;
  int parity = 1;
  uint64_t bytes = 0;             // of state per node
  uint64_t rate_bytes_per_s = 0;  // send limit of each node; 0: no limit
};

/// A real coordinator and real agents over loopback TCP: one parity group, with one rank per node
/// in this process. Nothing is written to disk.
class LiveGroup {
 public:
  /// Starts the group and connects all ranks.
  static Result<std::unique_ptr<LiveGroup>> Start(const GroupShape& shape);
  ~LiveGroup();

  /// Connects all ranks as a new start of the job.
  Status Connect(const std::string& run_id);
  Status Save(uint64_t step);
  /// Waits until every rank has been notified that `step` has reached `tier`.
  Status Await(uint64_t step, v1::Tier tier);
  /// Ends all ranks, destroys one node and replaces it with an empty one.
  Status LoseNode(int node);
  v1::Client& client(int rank) { return *clients_[static_cast<size_t>(rank)]; }
  std::vector<std::vector<float>>& tensors() { return tensors_; }

  /// The totals of all agents so far.
  struct Account {
    uint64_t sent_bytes = 0;  // to peers, including frames
    double cpu_seconds = 0;
  };
  Result<Account> Accounts();

 private:
  explicit LiveGroup(const GroupShape& shape) : shape_(shape) {}

  const GroupShape shape_;
  std::string root_;
  std::unique_ptr<local::Cluster> cluster_;
  std::vector<std::vector<float>> tensors_;  // by rank
  std::vector<std::unique_ptr<v1::Client>> clients_;
};

/// Returns the bytes that each node sends for one version: S·(n−1)/(n−m).
double BytesToSend(const GroupShape& shape);
/// Returns e.g. "4_1", nodes and parity, for the names of rows.
std::string NameOf(const GroupShape& shape);
/// Returns e.g. "192 MiB per node, 125 MB/s per node".
std::string LoadOf(const GroupShape& shape);

}  // namespace holdfast::bench
