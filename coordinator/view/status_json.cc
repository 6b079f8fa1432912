#include "coordinator/view/status_json.h"

#include "base/clock.h"
#include "coordinator/api/convert.h"
#include "coordinator/view/node_json.h"
#include "coordinator/view/run_json.h"

namespace holdfast::view {

namespace {

using coord::AnyVersion;

Json UnderProtectedJson(const coordinator::JobStatus& job) {
  Json versions = Json::array();
  for (const auto& lacks : job.under_protected()) {
    versions.push_back({{"version", VersionJson(AnyVersion(lacks.version()))},
                        {"shards", lacks.shards()},
                        {"present", lacks.present()},
                        {"ordered", lacks.ordered()},
                        {"why", lacks.why()}});
  }
  return versions;
}

Json JobsJson(const ClusterSnapshot& snapshot) {
  Json jobs = Json::array();
  for (const auto& job : snapshot.status.jobs()) {
    JobHealth seen = HealthOf(snapshot, job);
    jobs.push_back({{"job", job.job()},
                    {"uid", job.uid()},
                    {"phase", seen.phase},
                    {"state", job.state()},
                    {"ended_at", TimeJson(job.ended_wall_nanos())},
                    {"not_durable_why", job.not_durable_why()},
                    {"keep_last", job.keep_last()},
                    {"keep_every", job.keep_every()},
                    {"incarnation", job.incarnation()},
                    {"world", job.world()},
                    {"ranks_joined", job.ranks_joined()},
                    {"memory_committed", VersionJson(AnyVersion(job.memory_committed()))},
                    {"memory_committed_at", TimeJson(seen.committed_wall_nanos[Tier::kMemory])},
                    {"peer_committed", VersionJson(AnyVersion(job.peer_committed()))},
                    {"peer_committed_at", TimeJson(seen.committed_wall_nanos[Tier::kPeer])},
                    {"peer_target", VersionJson(AnyVersion(job.peer_target()))},
                    {"peer_target_held", job.peer_target_held()},
                    {"peer_members", job.peer_members()},
                    {"not_protected_why", job.not_protected_why()},
                    {"disk_committed", VersionJson(AnyVersion(job.disk_committed()))},
                    {"disk_committed_at", TimeJson(seen.committed_wall_nanos[Tier::kDisk])},
                    {"remote_committed", VersionJson(AnyVersion(job.remote_committed()))},
                    {"remote_committed_at", TimeJson(seen.committed_wall_nanos[Tier::kRemote])},
                    {"remote_copying", VersionJson(AnyVersion(job.remote_copying()))},
                    {"committed_at", TimeJson(job.committed_wall_nanos())},
                    {"restorable", VersionJson(AnyVersion(job.restorable()))},
                    {"restorable_tier", TierJson(job.restorable_tier())},
                    {"not_restorable_why", job.not_restorable_why()},
                    {"under_protected", UnderProtectedJson(job)},
                    {"pending_versions", job.pending_versions()},
                    {"pending_bytes", seen.pending_bytes},
                    {"committed_total", job.committed_total()},
                    {"aborted_total", job.aborted_total()},
                    {"newest_seen_step", job.newest_seen_step()}});
  }
  return jobs;
}

Json FindingsJson(const std::vector<Finding>& findings) {
  Json found = Json::array();
  for (const Finding& finding : findings) {
    found.push_back({{"code", finding.code},
                     {"level", NameOf(finding.level)},
                     {"subject", finding.subject},
                     {"message", finding.message},
                     {"next", finding.next}});
  }
  return found;
}

}  // namespace

Json StatusDocument(const ClusterSnapshot& snapshot, const std::vector<Finding>& findings) {
  return {{"time", FormatUtc(snapshot.now_wall_nanos)},
          {"health", NameOf(WorstLevel(findings))},
          {"findings", FindingsJson(findings)},
          {"cluster", snapshot.status.cluster()},
          {"epoch", snapshot.status.epoch()},
          {"page", snapshot.status.page_url()},
          {"nodes", NodesJson(snapshot.status, snapshot.runs)},
          {"quarantine", QuarantineJson(snapshot.runs)},
          {"runs", RunsJson(snapshot.runs)},
          {"jobs", JobsJson(snapshot)},
          {"other_jobs", snapshot.status.other_jobs()}};
}

}  // namespace holdfast::view
