#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "bench/live_client.h"
#include "deploy/local/cluster.h"

namespace holdfast::bench {

struct GroupShape {
  int nodes = 4;
  int parity = 1;
  uint64_t bytes = 0;             // of state a node
  uint64_t rate_bytes_per_s = 0;  // what each node may send; 0: as fast as it goes
};

/// A real coordinator and real agents over loopback TCP, one parity group, a rank a node in this
/// process. Nothing is written to disk.
class LiveGroup {
 public:
  /// The group with all ranks connected.
  static Result<std::unique_ptr<LiveGroup>> Start(const GroupShape& shape);
  ~LiveGroup();

  /// Connects all ranks as a new start of the job.
  Status Connect(const std::string& run_id);
  Status Save(uint64_t step);
  /// Until every rank knows that `step` has reached `tier`.
  Status Await(uint64_t step, v1::Tier tier);
  /// All ranks end, one node with them; an empty one takes its place.
  Status LoseNode(int node);
  v1::Client& client(int rank) { return *clients_[static_cast<size_t>(rank)]; }
  std::vector<std::vector<float>>& tensors() { return tensors_; }

  /// What the agents have done so far, summed.
  struct Account {
    uint64_t sent_bytes = 0;  // to peers, frames included
    double cpu_seconds = 0;
  };
  Result<Account> Accounts();

 private:
  explicit LiveGroup(const GroupShape& shape) : shape_(shape) {}

  const GroupShape shape_;
  std::string root_;
  std::unique_ptr<local::Cluster> cluster_;
  std::vector<std::vector<float>> tensors_;  // a rank
  std::vector<std::unique_ptr<v1::Client>> clients_;
};

/// What each node sends for one version: S·(n−1)/(n−m).
double BytesToSend(const GroupShape& shape);
/// "4_1": nodes and parity, for the names of rows.
std::string NameOf(const GroupShape& shape);
/// "192 MiB a node, 125 MB/s a node"
std::string LoadOf(const GroupShape& shape);

}  // namespace holdfast::bench
