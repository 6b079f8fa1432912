#include "coordinator/state/job_states.h"

#include <optional>

#include "coordinator/state/parity_plan.h"
#include "coordinator/state/versions.h"

namespace holdfast::coord {
namespace {
/// Converts the state's "no version", incarnation 0, to that of messages.
std::optional<VersionId> Named(VersionId version) {
  return version.incarnation.value == 0 ? std::nullopt : std::optional(version);
}
}  // namespace

JobState JobStateOf(const Job& job) {
  JobState job_state;
  job_state.job = job.name;
  job_state.incarnation = job.incarnation;
  for (const TierTraits& traits : kTierTable) {
    const bool parity = traits.reporter == TierReporter::kParity;
    job_state.committed[traits.tier] =
        Named(parity ? PeerFloor(job) : NewestCommitted(job, traits.tier));
    if (traits.pace == TierPace::kTarget) {
      job_state.target_step[traits.tier] = job.targets[traits.tier].step();
    }
  }
  for (const auto& [id, version] : job.versions) {
    if (version.phase == Phase::kAborted) job_state.aborted.push_back(id);
  }
  if (job.lineage().decision == Decision::kVersion) job_state.restore = job.lineage().restored;
  job_state.phase = job.phase;
  job_state.release = job.released;
  if (job.uid != kNoOwner) job_state.owner = job.uid;
  job_state.flush = Named(job.flush);
  return job_state;
}

void SendJobStates(Context& context, Job& job) {
  if (job.job_state_changed) {
    job.job_state_to.insert(job.subscribers.begin(), job.subscribers.end());
  }
  if (!job.job_state_to.empty()) {
    const JobState common = JobStateOf(job);
    const GroupIndex* groups = job.groups_of(job.incarnation);
    for (NodeIndex node : job.job_state_to) {
      if (!context.cluster.nodes[node].attached) continue;
      JobState job_state = common;
      if (groups != nullptr && groups->by_node.count(node) != 0) {
        const uint32_t group = groups->members[groups->by_node.at(node)].group;
        job_state.group = GroupOf(context, job, job.incarnation, group, nullptr);
      }
      SendDirective(context, node, std::move(job_state));
    }
  }
  job.job_state_changed = false;
  job.job_state_to.clear();
}

}  // namespace holdfast::coord
