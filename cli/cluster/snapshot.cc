#include "cli/cluster/snapshot.h"

namespace holdfast::cli {

Result<view::ClusterSnapshot> CollectSnapshot(CoordinatorClient& client, const std::string& job,
                                              int64_t now_wall_nanos) {
  view::ClusterSnapshot snapshot;
  HOLDFAST_ASSIGN_OR_RETURN(snapshot.status, client.GetStatus(job));
  for (const auto& one : snapshot.status.jobs()) {
    HOLDFAST_ASSIGN_OR_RETURN(snapshot.versions[one.job()], client.ListVersions(one.job(), false));
  }
  // A job of another launcher has no run.
  auto runs = client.GetRuns(job);
  if (!runs && runs.error().code() != ErrorCode::kNotFound) return Fail(runs.error());
  if (runs) snapshot.runs = *std::move(runs);
  snapshot.now_wall_nanos = now_wall_nanos;
  return snapshot;
}

}  // namespace holdfast::cli
