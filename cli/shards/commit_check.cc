#include "cli/shards/commit_check.h"

#include <fmt/format.h>

#include <vector>

#include "cli/core/text.h"

namespace holdfast::cli {
namespace {
using Digests = std::map<uint32_t, uint64_t>;  // by rank

/// Returns why the digests are not those of the commit; empty: they are, or some are missing.
std::string WhyNotCommitted(const VersionCommit& commit, const Digests& digests, bool* compared) {
  std::vector<uint64_t> in_order;
  for (const auto& [rank, digest] : digests) {
    if (rank == in_order.size()) in_order.push_back(digest);
  }
  *compared = in_order.size() == commit.world;
  if (!*compared || CommitDigest(in_order) == commit.digest) return "";
  return fmt::format("the digests of its {} shards combine to {}, but the commit has {}",
                     commit.world, FormatDigest(CommitDigest(in_order)),
                     FormatDigest(commit.digest));
}
}  // namespace

void CheckCommits(const Commits& commits, CheckReport& report) {
  std::map<std::pair<std::string, VersionId>, Digests> found;
  std::map<std::pair<std::string, VersionId>, std::string> differ;
  for (const ShardCheck& check : report.checks) {
    if (check.verdict != Verdict::kOk || check.digest == 0 || IsParity(check.key.rank)) continue;
    const std::pair version{check.key.job, check.key.version};
    const auto [known, added] = found[version].try_emplace(check.key.rank.value, check.digest);
    if (added || known->second == check.digest) continue;
    differ[version] =
        fmt::format("{}: its replicas have different digests", ShardName(check.key.rank));
  }
  for (const auto& [version, commit] : commits) {
    bool compared = false;
    std::string why = WhyNotCommitted(commit, found[version], &compared);
    if (const auto other = differ.find(version); other != differ.end()) why = other->second;
    if (!why.empty()) {
      report.contradictions.push_back(
          fmt::format("{}/{}: {}", version.first, ToString(version.second), why));
    } else if (compared) {
      ++report.committed;
    }
  }
}

}  // namespace holdfast::cli
