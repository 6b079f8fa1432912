#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/ids.h"
#include "testing/cluster/cluster.h"

#define HOLDFAST_HPP_EXPLICIT_NAMESPACE
#include <holdfast/holdfast.hpp>

namespace holdfast::local {

/// A job whose global tensors have known bytes, and whose number of ranks changes from start to
/// start. Its ranks live in this process. Each saves its slices through the client library, and
/// loads other slices with version readers. Thread-compatible.
class ReshapingJob {
 public:
  explicit ReshapingJob(Cluster& cluster);
  ~ReshapingJob();

  /// Restarts the job with `nodes.size()` ranks, rank r at the agent of node nodes[r]. Closes the
  /// ranks of the previous start without waiting for their saves.
  Status Open(const std::vector<int>& nodes);
  void Close();

  /// Saves steps until a version of this start is committed at `tier`. Returns that version.
  Result<VersionId> SaveUntil(v1::Tier tier, std::chrono::milliseconds timeout);

  struct Loaded {
    VersionId version;
    uint32_t world = 0;
    v1::Tier tier = v1::Tier::kMemory;
  };
  /// All ranks concurrently open a version reader, and load their slices and all complete tensors.
  /// DataLoss: bytes differ from the version's. Internal: ranks opened different versions.
  Result<Loaded> LoadAll(std::chrono::milliseconds timeout);

  v1::Client& client(int rank) { return *clients_[static_cast<size_t>(rank)]; }
  uint32_t world() const { return static_cast<uint32_t>(clients_.size()); }

  /// A tensor of one rank, with its memory.
  struct Owned {
    v1::Tensor tensor;
    std::vector<std::byte> bytes;
  };
  /// The slices that `rank` of `world` saves and loads.
  static std::vector<Owned> SlicesOf(uint32_t rank, uint32_t world);
  /// All global tensors, complete.
  static std::vector<Owned> Everything();
  /// Sets the tensors to their bytes in a version.
  static void Fill(std::vector<Owned>& tensors, VersionId version);
  /// Compares the tensors with their bytes in a version. DataLoss: they differ.
  static Status Check(const std::vector<Owned>& tensors, VersionId version);
  static std::vector<v1::Tensor> Described(std::vector<Owned>& tensors);

 private:
  Status LoadOne(int rank, std::chrono::milliseconds timeout, Loaded* loaded);

  Cluster& cluster_;
  std::vector<std::vector<Owned>> states_;  // by rank
  std::vector<std::unique_ptr<v1::Client>> clients_;
  uint64_t starts_ = 0;  // equals the incarnation
  uint64_t step_ = 0;
};

}  // namespace holdfast::local
