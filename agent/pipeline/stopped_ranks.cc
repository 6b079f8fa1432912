#include "agent/pipeline/stopped_ranks.h"

#include <vector>

#include "base/log.h"

namespace holdfast::agent {

void StoppedRanks::Tick() {
  std::vector<ShardKey> replicas;
  std::string found;
  // The registry's mutex is held during the visit, so the reports follow it.
  ranks_.ForEach([&](RankPipeline& rank) {
    if (!rank.segment.invariants().violated()) return;
    if (!withdrawn_.insert(rank.segment.id()).second) return;
    const SegmentOwner& owner = rank.segment.owner();
    for (const auto& [version, verified] : rank.slots.view().SealedVersions()) {
      replicas.push_back({owner.job, version, owner.rank});
    }
    const std::string name = ShardName(owner.rank) + " of " + owner.job;
    Log(LogLevel::kError, "RankStopped",
        {Kv("rank", name), Kv("why", rank.segment.invariants().what())});
    found += (found.empty() ? "" : "; ") + name + " stopped, " + rank.segment.invariants().what();
  });
  for (const ShardKey& key : replicas) link_.Report(RemovedReplica{key, Tier::kMemory, ""});
  if (found.empty()) return;
  text_ += (text_.empty() ? "invariant violated: " : "; ") + found;
  warnings_.Set("invariant", text_);
}

}  // namespace holdfast::agent
