#pragma once

#include <cstdint>
#include <vector>

#include "agent/pipeline/watched_ranks.h"
#include "coordinator/api/coordinator.pb.h"

namespace holdfast::agent {

/// Digests of consecutive polls that are sent as one message: a coordinator of many agents asks for
/// fewer messages. Thread-compatible.
class DigestBatch {
 public:
  struct Poll {
    std::vector<coordinator::Digest> digests;
    std::vector<ObservedRank> observations;  // without their telemetry
  };

  /// From this number of digests on, the message is due at once.
  static constexpr size_t kDigestsMax = 256;
  /// Upper limit of the pause: a coordinator that asks for a longer one gets this one.
  static constexpr uint64_t kPauseMaxNs = 1'000'000'000;

  /// Adds a poll, if it has digests.
  void Add(std::vector<coordinator::Digest> digests, std::vector<ObservedRank> observations);
  /// Whether the batch has digests, and the pause since the last message is over.
  bool IsDue(uint64_t now_ns) const;
  /// Returns all polls, oldest first. The batch is empty then, and the pause begins.
  std::vector<Poll> Take(uint64_t now_ns);
  /// Sets the pause between two messages; 0: a message after each poll.
  void SetPause(uint64_t pause_ns);

 private:
  std::vector<Poll> polls_;
  size_t digests_ = 0;
  uint64_t pause_ns_ = 0;
  uint64_t taken_ns_ = 0;  // time of the last Take()
};

}  // namespace holdfast::agent
