#include <fmt/format.h>

#include <set>

#include "coordinator/state/peers.h"
#include "coordinator/state/state.h"

// Going back in mid-run: ranks of an incarnation that has versions of its own want one of them, or
// an older one. The decision of how the incarnation began stays what it was; where it began without
// one, and lost its versions, going back to an earlier incarnation's is that decision.

namespace holdfast::coord {

void State::AdvanceRollback(Job& job) {
  RestorePlan& plan = job.plan;
  if (plan.rollbacks.empty()) return;
  std::set<Rank> together;  // want the newest, which must be the same for all of them
  for (const RestoreAsk& ask : plan.rollbacks) {
    if (ask.wanted.incarnation.value == 0) together.insert(ask.rank);
  }
  const bool all = together.size() == job.lineage().world;
  const VersionId newest = all ? NewestRestorable(job) : VersionId{};
  std::vector<RestoreAsk> waiting;
  for (RestoreAsk& ask : std::exchange(plan.rollbacks, {})) {
    const bool named = ask.wanted.incarnation.value != 0;
    if (!named && !all) {
      waiting.push_back(std::move(ask));
    } else if (!named && newest.incarnation.value == 0) {
      if (GateOpen(job)) {
        Answer(ask.request, WhyNothing(job));
      } else {
        waiting.push_back(std::move(ask));
      }
    } else if (!AnswerRollback(job, ask, named ? ask.wanted : newest)) {
      waiting.push_back(std::move(ask));
    }
  }
  plan.rollbacks = std::move(waiting);
  if (plan.rollbacks.empty()) plan.open = job.lineage().decision != Decision::kFresh;
}

/// False: nodes that may have what is missing may still come back.
bool State::AnswerRollback(Job& job, const RestoreAsk& ask, VersionId wanted) {
  auto found = job.versions.find(wanted);
  if (found == job.versions.end() || !found->second.committed() || IsAbandoned(job, wanted)) {
    Answer(ask.request, WhyNotWanted(job, wanted));
    return true;
  }
  const VersionState& version = found->second;
  const auto decide = [&] {
    LineageRecord& lineage = job.lineage();
    if (lineage.decision != Decision::kNone || wanted.incarnation == job.incarnation) return;
    lineage.decision = Decision::kVersion;
    lineage.restored = wanted;
    effects_.emplace_back(PutLineage{lineage, LineageChange::kDecided});
    job.word_changed = true;
  };
  if (ask.view) {
    if (ask.wanted.incarnation.value == 0 && IsWhole(job, version)) decide();
    if (!AnswerView(job, version, ask)) return false;
  } else if (version.world != job.lineage().world) {
    Answer(ask.request, OtherWorld(job, version));
    return true;
  } else if (const Copy* own = CopyBeside(job, version, ask.rank)) {
    // Its agent has it in memory, or brings it there from its disk.
    decide();
    effects_.emplace_back(
        Reply{ask.request, {}, job.incarnation, wanted, own->tier, version.world});
  } else {
    Answer(ask.request,
           FailedPreconditionError(fmt::format(
               "version {} of job '{}': the node of rank {} has no copy of its shard; open a view "
               "of the version, which reads it from wherever it is",
               ToString(wanted), job.name, ask.rank.value)));
    return true;
  }
  job.plan.rolled_back_to = wanted;
  // What some ranks saved before they went back and others did not must not be completed by what
  // the others save now.
  for (auto& [id, pending] : job.versions) {
    const bool newer = id > wanted && id.incarnation == job.incarnation;
    if (newer && pending.phase == Phase::kPending) Abort(job, pending, true);
  }
  return true;
}

/// The nearest copy of the rank's shard on the rank's own node.
const Copy* State::CopyBeside(const Job& job, const VersionState& version, Rank rank) {
  const Copy* best = nullptr;
  for (const Copy& copy : version.ranks[rank.value].copies) {
    if (copy.node != job.rank_nodes[rank.value]) continue;
    if (best == nullptr || copy.tier < best->tier) best = &copy;
  }
  return best;
}

}  // namespace holdfast::coord
