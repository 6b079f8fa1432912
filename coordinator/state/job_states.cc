#include "coordinator/state/job_states.h"

#include <algorithm>
#include <optional>
#include <vector>

#include "coordinator/contract/limits.h"
#include "coordinator/state/parity_plan.h"
#include "coordinator/state/versions.h"

namespace holdfast::coord {
namespace {
/// Returns the newest version at each tier, and the newest others: nodes learn a commit when the
/// job state changes, and those of older versions after an upgrade.
std::vector<VersionCommit> CommitsOf(const ReadContext& context, const Job& job,
                                     const JobState& job_state) {
  std::vector<VersionCommit> commits;
  size_t others = 0;
  for (auto it = job.versions.rbegin(); it != job.versions.rend(); ++it) {
    const VersionState& version = it->second;
    if (!version.committed() || version.commit_digest == 0) continue;
    const bool newest = std::ranges::any_of(kTierTable, [&](const TierTraits& traits) {
      return job_state.committed[traits.tier] == version.id;
    });
    if (!newest && others == kCommitsSentMax) continue;
    if (!newest) ++others;
    commits.push_back(CommitOf(context, job, version));
  }
  std::ranges::reverse(commits);
  return commits;
}
}  // namespace

JobState JobStateOf(const ReadContext& context, const Job& job) {
  JobState job_state;
  job_state.job = job.name;
  job_state.incarnation = job.incarnation;
  for (const TierTraits& traits : kTierTable) {
    const bool parity = traits.reporter == TierReporter::kParity;
    job_state.committed[traits.tier] = parity ? PeerFloor(job) : NewestCommitted(job, traits.tier);
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
  job_state.flush = job.flush;
  job_state.commits = CommitsOf(context, job, job_state);
  return job_state;
}

void SendJobStates(Context& context, Job& job) {
  if (job.job_state_changed) {
    job.job_state_to.insert(job.subscribers.begin(), job.subscribers.end());
  }
  if (!job.job_state_to.empty()) {
    const JobState common = JobStateOf(context, job);
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
