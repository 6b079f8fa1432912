#include "cli/shards/verification_record.h"

namespace holdfast::cli {
namespace {
using coordinator::Verification;

void Add(Verdict verdict, Verification& outcome) {
  switch (verdict) {
    case Verdict::kOk:
      return outcome.set_ok(outcome.ok() + 1);
    case Verdict::kDamaged:
      return outcome.set_damaged(outcome.damaged() + 1);
    case Verdict::kMissing:
      return outcome.set_missing(outcome.missing() + 1);
    case Verdict::kUnchecked:
      return outcome.set_unchecked(outcome.unchecked() + 1);
    case Verdict::kReplaced:
      return;
  }
}
}  // namespace

ReplicaCounts CountReplicas(const std::vector<ShardCheck>& checks) {
  ReplicaCounts counts;
  for (const ShardCheck& check : checks) ++counts[{check.key.job, check.key.version}];
  return counts;
}

void RecordVerifications(CoordinatorClient& client, const ReplicaCounts& left_out, bool deep,
                         CheckReport& report) {
  std::map<std::pair<std::string, VersionId>, Verification> outcomes;
  for (const ShardCheck& check : report.checks) {
    if (check.verdict == Verdict::kReplaced) continue;
    Add(check.verdict, outcomes[{check.key.job, check.key.version}]);
  }
  for (auto& [version, outcome] : outcomes) {
    const auto left = left_out.find(version);
    outcome.set_left_out(left == left_out.end() ? 0 : left->second);
    outcome.set_deep(deep);
    const Status status = client.RecordVerification(version.first, version.second, outcome);
    // A version may be removed during the check.
    if (status.ok() || status.code() == ErrorCode::kNotFound) continue;
    if (status.code() != ErrorCode::kUnsupported) {
      report.notes.push_back("the coordinator did not record the results: " + status.message());
    }
    return;
  }
}

}  // namespace holdfast::cli
