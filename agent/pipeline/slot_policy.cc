#include "agent/pipeline/slot_policy.h"

#include <algorithm>

namespace holdfast::agent {
namespace {

// Returns the position of the slot in the order in which slots are freed, lowest first. 0: the slot
// must stay.
int FreeOrder(const SlotInfo& slot, const JobState& job) {
  const VersionId version = slot.version;
  if (slot.state != SlotState::kSealed || slot.in_use || slot.held) return 0;
  const bool adopted = version == job.committed[Tier::kMemory] || version == job.restore ||
                       version == job.committed[Tier::kPeer];
  if (slot.other_life && !adopted) {
    return slot.disk_done ? 1 : 0;
  }
  if (std::find(job.aborted.begin(), job.aborted.end(), version) != job.aborted.end()) return 1;
  if (job.committed[Tier::kMemory] == version || job.committed[Tier::kPeer] == version) return 0;
  // Another member failed and the target has moved past this parity: it can never be committed.
  if (slot.parity && version.incarnation == job.incarnation &&
      version.step < job.target_step[Tier::kPeer]) {
    return 1;
  }
  const bool restored_and_past = job.committed[Tier::kMemory].has_value() &&
                                 job.committed[Tier::kMemory]->incarnation == job.incarnation;
  if (job.restore == version && !restored_and_past) return 0;
  const bool newer_committed =
      job.committed[Tier::kMemory].has_value() && *job.committed[Tier::kMemory] > version;
  if (version.incarnation < job.incarnation && !newer_committed) return 2;
  return newer_committed ? 3 : 0;
}

}  // namespace

std::vector<uint32_t> FreeableSlots(std::span<const SlotInfo> slots, const JobState* job) {
  if (job == nullptr) return {};
  struct Candidate {
    int order;
    VersionId version;
    uint32_t slot;
    auto operator<=>(const Candidate&) const = default;
  };
  std::vector<Candidate> candidates;
  for (const SlotInfo& slot : slots) {
    int order = FreeOrder(slot, *job);
    if (order > 0) candidates.push_back({order, slot.version, slot.slot});
  }
  std::sort(candidates.begin(), candidates.end());
  std::vector<uint32_t> result;
  result.reserve(candidates.size());
  for (const Candidate& candidate : candidates) result.push_back(candidate.slot);
  return result;
}

}  // namespace holdfast::agent
