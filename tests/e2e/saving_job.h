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

/// A job whose ranks live in this process and save known bytes through the client library: what
/// comes back is compared with what that version was, byte for byte. Thread-compatible.
class SavingJob {
 public:
  SavingJob(Cluster& cluster, int ranks, uint64_t words = 256 << 10);
  ~SavingJob();

  /// Starts the job again with a new run id: rank r at the agent of node nodes[r] (none given: of
  /// node r). Ranks of the start before are cut off without a word.
  Status Open(std::vector<int> nodes = {});
  /// The ranks end.
  void Close();

  /// Every rank saves the next step; a rank without a free slot skips it. Returns the step.
  uint64_t Save();
  /// Saves step after step until `done`; false when the time is over.
  template <typename Condition>
  bool SaveUntil(Condition done, std::chrono::milliseconds timeout);
  /// The newest version that `rank` knows to be committed at `tier`; nothing: any rank.
  std::optional<VersionId> Newest(v1::Tier tier, std::optional<int> rank = std::nullopt);

  struct Restored {
    VersionId version;
    std::vector<v1::Tier> tiers;  // by rank
  };
  /// Brings all ranks back at once. DataLoss: a rank got bytes that are not those of the version;
  /// Internal: ranks got different versions.
  Result<Restored> Restore(std::chrono::milliseconds timeout);

  v1::Client& client(int rank) { return *clients_[static_cast<size_t>(rank)]; }
  uint64_t step() const { return step_; }

 private:
  /// The bytes of a rank in a version.
  void Fill(std::vector<uint64_t>& state, int rank, VersionId version) const;
  Status Check(int rank, VersionId version) const;

  Cluster& cluster_;
  std::vector<std::vector<uint64_t>> states_;  // by rank
  std::vector<std::unique_ptr<v1::Client>> clients_;
  uint64_t starts_ = 0;  // also the incarnation
  uint64_t step_ = 0;
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
