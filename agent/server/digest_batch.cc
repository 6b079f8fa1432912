#include "agent/server/digest_batch.h"

#include <algorithm>
#include <utility>

namespace holdfast::agent {
namespace {
// Polls are not exactly periodic: without this allowance, every other pause would take one poll
// longer.
constexpr uint64_t kAllowanceNs = 20'000'000;
}  // namespace

void DigestBatch::Add(std::vector<coordinator::Digest> digests,
                      std::vector<ObservedRank> observations) {
  if (digests.empty()) return;
  digests_ += digests.size();
  for (ObservedRank& observed : observations) observed.telemetry = {};
  polls_.push_back({std::move(digests), std::move(observations)});
}

bool DigestBatch::IsDue(uint64_t now_ns) const {
  if (polls_.empty()) return false;
  return digests_ >= kDigestsMax || now_ns - taken_ns_ + kAllowanceNs >= pause_ns_;
}

std::vector<DigestBatch::Poll> DigestBatch::Take(uint64_t now_ns) {
  taken_ns_ = now_ns;
  digests_ = 0;
  return std::exchange(polls_, {});
}

void DigestBatch::SetPause(uint64_t pause_ns) { pause_ns_ = std::min(pause_ns, kPauseMaxNs); }

}  // namespace holdfast::agent
