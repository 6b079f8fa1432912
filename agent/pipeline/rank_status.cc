#include "agent/pipeline/rank_status.h"

namespace holdfast::agent {
namespace {
bool ReportsCollective(RankPipeline& rank) {
  return rank.connected.load() && rank.segment.control().phase(Phase::kCollective).open.load() != 0;
}
}  // namespace

std::vector<RankStatus> StatusOf(RankRegistry& ranks) {
  std::vector<RankStatus> result;
  ranks.ForEach([&](RankPipeline& rank) {
    result.push_back({rank.segment.owner(), rank.segment.slot_bytes(), ReportsCollective(rank),
                      rank.segment.control().phase(Phase::kCollective).begun.load(),
                      rank.slots.view().Snapshot()});
  });
  return result;
}

bool InCollective(RankRegistry& ranks) {
  bool any = false;
  ranks.ForEach([&](RankPipeline& rank) { any = any || ReportsCollective(rank); });
  return any;
}

}  // namespace holdfast::agent
