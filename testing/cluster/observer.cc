#include "testing/cluster/observer.h"

#include <nlohmann/json.hpp>

namespace holdfast::local {
namespace {
std::optional<VersionId> VersionOf(const nlohmann::json& job, const char* key) {
  if (!job.contains(key) || !job[key].is_string()) return std::nullopt;
  auto version = ParseVersionId(job[key].get<std::string>());
  return version ? std::optional(*version) : std::nullopt;
}
}  // namespace

Result<JobSummary> Observe(const Cluster& cluster, const std::string& job) {
  HOLDFAST_ASSIGN_OR_RETURN(auto answer, cluster.Cli({"status", job, "-o", "json"}));
  auto document = nlohmann::json::parse(answer.out, nullptr, false);
  if (document.is_discarded() || !document.contains("jobs")) {
    return Fail(UnavailableError("holdfast status ended with " + std::to_string(answer.exit_code) +
                                 ": " + answer.errors));
  }
  JobSummary summary;
  for (const auto& finding : document.value("findings", nlohmann::json::array())) {
    summary.codes.push_back(finding.value("code", ""));
    summary.text += finding.value("code", "") + " " + finding.value("message", "") + "\n";
  }
  for (const auto& entry : document["jobs"]) {
    if (entry.value("job", "") != job) continue;
    summary.memory_committed = VersionOf(entry, "memory_committed");
    summary.peer_committed = VersionOf(entry, "peer_committed");
    summary.disk_committed = VersionOf(entry, "disk_committed");
    summary.restorable = VersionOf(entry, "restorable");
  }
  return summary;
}

Result<VersionId> AwaitCommit(const Cluster& cluster, const std::string& job, Tier tier,
                              std::optional<VersionId> than, std::chrono::milliseconds timeout) {
  std::optional<VersionId> found;
  std::string last = "nothing committed";
  WaitUntil(
      [&] {
        auto summary = Observe(cluster, job);
        if (!summary) {
          last = summary.error().ToString();
          return false;
        }
        auto& committed = tier == Tier::kDisk   ? summary->disk_committed
                          : tier == Tier::kPeer ? summary->peer_committed
                                                : summary->memory_committed;
        if (committed) last = "newest is " + ToString(*committed);
        if (committed && (!than || *committed > *than)) found = committed;
        return found.has_value();
      },
      timeout);
  if (found) return *found;
  return Fail(DeadlineExceededError("no newer version of " + job + " at tier " +
                                    std::string(ToString(tier)) + ": " + last));
}

}  // namespace holdfast::local
