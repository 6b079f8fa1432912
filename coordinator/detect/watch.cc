#include "coordinator/detect/watch.h"

namespace holdfast::detect {
namespace {

/// Returns the distance between neighbouring members of a communicator of unknown role, else 0.
uint32_t StrideOf(const CommInfo& comm) {
  if (comm.role != CommunicatorRole::kUnknown || comm.by_rank.size() < 2) return 0;
  return comm.members[comm.by_rank[1]] - comm.members[comm.by_rank[0]];
}

}  // namespace

CommClass ClassOf(Index comm, const Watches& watches, const Table& table) {
  const CommInfo& info = table.comm(comm);
  const bool watched = comm < watches.size() && watches[comm];
  const bool equal_work = watched && !watches[comm]->spans_stages;
  return {info.role, equal_work, info.members.size(), StrideOf(info)};
}

}  // namespace holdfast::detect
