#include "agent/pipeline/disk_pace.h"

#include <algorithm>
#include <utility>

namespace holdfast::agent {

bool DiskPace::IsEligible(VersionId version, const JobState* job) const {
  if (job == nullptr || version.incarnation != job->incarnation) return false;
  const bool target_taken =
      started_.incarnation == job->incarnation && started_.step >= job->target_step[Tier::kDisk];
  return !target_taken && version.step >= job->target_step[Tier::kDisk] && IsOnInterval(version);
}

bool DiskPace::IsLateParity(const DiskCandidate& candidate, const JobState* job) {
  return job != nullptr && candidate.parity && job->committed[Tier::kDisk] == candidate.version;
}

std::optional<uint32_t> DiskPace::Choose(std::span<const DiskCandidate> candidates,
                                         const JobState* job) {
  const DiskCandidate* first = nullptr;
  for (const DiskCandidate& candidate : candidates) {
    if (!IsEligible(candidate.version, job) && !IsLateParity(candidate, job)) continue;
    if (first == nullptr || candidate.version < first->version) first = &candidate;
  }
  if (first == nullptr) return std::nullopt;
  previous_ = std::exchange(started_, std::max(started_, first->version));
  return first->slot;
}

void DiskPace::GiveUp(VersionId version) {
  if (started_ == version) started_ = previous_;
}

}  // namespace holdfast::agent
