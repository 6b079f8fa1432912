#pragma once

#include <atomic>
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

/// A job whose ranks live in this process and save known bytes through the client library. Restored
/// bytes are compared with those of the version. Thread-compatible.
class SavingJob {
 public:
  SavingJob(Cluster& cluster, int ranks, uint64_t words = 256 << 10);
  ~SavingJob();

  /// Restarts the job with a new run ID: rank r at the agent of node nodes[r] (by default node r).
  /// Closes the ranks of the previous start without waiting for their saves.
  Status Open(std::vector<int> nodes = {});
  /// Closes all ranks.
  void Close();

  /// Saves the next step on every rank. A rank without a free slot skips it. Returns the step.
  uint64_t Save();
  /// Saves steps until `done` returns true. Returns false on timeout.
  template <typename Condition>
  bool SaveUntil(Condition done, std::chrono::milliseconds timeout);
  /// Returns the newest version that `rank` (by default any rank) has seen committed at `tier`.
  std::optional<VersionId> Newest(v1::Tier tier, std::optional<int> rank = std::nullopt);

  struct Restored {
    VersionId version;
    std::vector<v1::Tier> tiers;  // by rank
  };
  /// Restores all ranks concurrently. DataLoss: a rank's bytes differ from those of the version.
  /// Internal: ranks restored different versions.
  Result<Restored> Restore(std::chrono::milliseconds timeout);

  v1::Client& client(int rank) { return *clients_[static_cast<size_t>(rank)]; }
  uint64_t step() const { return step_; }

 private:
  /// Sets `state` to the bytes of a rank in a version.
  void Fill(std::vector<uint64_t>& state, int rank, VersionId version) const;
  Status Check(int rank, VersionId version) const;

  Cluster& cluster_;
  std::vector<std::vector<uint64_t>> states_;  // by rank
  std::vector<std::unique_ptr<v1::Client>> clients_;
  uint64_t starts_ = 0;  // equals the incarnation
  std::atomic<uint64_t> step_{0};  // a test may read it while another thread saves
};

template <typename Condition>
bool SavingJob::SaveUntil(Condition done, std::chrono::milliseconds timeout) {
  return WaitUntil(
      [&] {
        if (done()) return true;
        Save();
        std::this_thread::sleep_for(std::chrono::milliseconds(15));
        return false;
      },
      timeout);
}

}  // namespace holdfast::local
