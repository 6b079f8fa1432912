#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "deploy/local/cluster.h"
#include "storage/base/ids.h"

#define HOLDFAST_HPP_EXPLICIT_NAMESPACE
#include <holdfast/holdfast.hpp>

namespace holdfast::local {

/// A job whose global tensors have known bytes and whose number of ranks changes from start to
/// start. Its ranks live in this process: each saves its slices through the client library, and
/// gets others back from views. Thread-compatible.
class ReshapingJob {
 public:
  explicit ReshapingJob(Cluster& cluster);
  ~ReshapingJob();

  /// Starts again with `nodes.size()` ranks, rank r at the agent of node nodes[r]. Ranks of the
  /// start before are cut off without a word.
  Status Open(const std::vector<int>& nodes);
  void Close();

  /// Saves step after step until one of this start is committed at `tier`.
  Result<VersionId> SaveUntil(v1::Tier tier, std::chrono::milliseconds timeout);

  struct Seen {
    VersionId version;
    uint32_t world = 0;
    v1::Tier tier = v1::Tier::kMemory;
  };
  /// Every rank at once opens a view and loads its new slices, and everything whole. DataLoss: some
  /// byte is not what it was in that version; Internal: ranks saw different versions.
  Result<Seen> ViewAll(std::chrono::milliseconds timeout);

  v1::Client& client(int rank) { return *clients_[static_cast<size_t>(rank)]; }
  uint32_t world() const { return static_cast<uint32_t>(clients_.size()); }

  /// A tensor of one rank, with memory of its own.
  struct Owned {
    v1::Tensor tensor;
    std::vector<std::byte> bytes;
  };
  /// What `rank` of `world` saves, and gets back.
  static std::vector<Owned> SlicesOf(uint32_t rank, uint32_t world);
  /// All global tensors, whole.
  static std::vector<Owned> Everything();
  /// The bytes of each tensor in a version.
  static void Fill(std::vector<Owned>& tensors, VersionId version);
  static Status Check(const std::vector<Owned>& tensors, VersionId version);
  static std::vector<v1::Tensor> Described(std::vector<Owned>& tensors);

 private:
  Status ViewOne(int rank, std::chrono::milliseconds timeout, Seen* seen);

  Cluster& cluster_;
  std::vector<std::vector<Owned>> states_;  // by rank
  std::vector<std::unique_ptr<v1::Client>> clients_;
  uint64_t starts_ = 0;  // also the incarnation
  uint64_t step_ = 0;
};

}  // namespace holdfast::local
