#include "client/cli/shard_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "client/cli/agent_client.h"
#include "client/cli/coordinator_client.h"
#include "client/cli/interrupt.h"
#include "client/cli/parallel.h"
#include "client/cli/progress.h"
#include "client/cli/text.h"
#include "client/cli/version_json.h"
#include "storage/base/random.h"

namespace holdfast::cli {

namespace {

/// Shards checked at the same time: they lie on different nodes.
constexpr size_t kChecksAtOnce = 4;

/// Only a statement about the bytes is damage; everything that kept us from looking is not.
Verdict VerdictOf(const Status& status) {
  switch (status.code()) {
    case ErrorCode::kOk:
      return Verdict::kOk;
    case ErrorCode::kNotFound:
      return Verdict::kMissing;
    case ErrorCode::kUnavailable:
    case ErrorCode::kDeadlineExceeded:
    case ErrorCode::kCancelled:
    case ErrorCode::kPermissionDenied:
    case ErrorCode::kResourceExhausted:
    case ErrorCode::kUnsupported:
      return Verdict::kUnchecked;
    default:
      return Verdict::kDamaged;
  }
}

uint64_t TotalBytes(const std::vector<ShardCheck>& checks) {
  uint64_t total = 0;
  for (const ShardCheck& check : checks) total += check.bytes;
  return total;
}

/// The copies of one version at one tier that live nodes hold.
Result<std::vector<ShardCheck>> CopiesOf(CoordinatorClient& client, const std::string& job,
                                         VersionId version, Tier tier) {
  HOLDFAST_ASSIGN_OR_RETURN(auto plan,
                            client.PlanRestore(job, version, static_cast<uint32_t>(tier)));
  std::vector<ShardCheck> copies;
  const auto add = [&](const coordinator::ShardSource& source) {
    ShardCheck check;
    check.key = {job, version, Rank{source.rank()}};
    check.tier = tier;
    check.node = source.node();
    check.address = source.address();
    check.bytes = source.image_bytes();
    copies.push_back(std::move(check));
  };
  for (const auto& source : plan.sources()) add(source);
  for (const auto& source : plan.parity()) add(source);
  return copies;
}

/// Adds the copies of one version at each tier that has it whole.
Status CollectVersion(CoordinatorClient& client, const std::string& job,
                      const coordinator::VersionInfo& info, CheckReport& report) {
  VersionId version = FromProto(info.version());
  std::string name = job + "/" + ToString(version);
  if (info.available_tiers() == 0) {
    report.partial = true;
    report.notes.push_back(name + ": no tier has all of its shards on live nodes" +
                           (info.why_not().empty() ? "" : ": " + info.why_not()));
    return Status::Ok();
  }
  // Tier peer is parity in memory: it is listed with what lies there.
  for (Tier tier : {Tier::kMemory, Tier::kDisk, Tier::kRemote}) {
    if ((info.available_tiers() & TierBit(tier)) == 0) continue;
    Result<std::vector<ShardCheck>> copies = CopiesOf(client, job, version, tier);
    if (!copies && copies.error().code() != ErrorCode::kUnavailable &&
        copies.error().code() != ErrorCode::kDeadlineExceeded) {
      // It went on while we looked: training replaces versions in memory every step.
      report.notes.push_back(fmt::format("{} is no longer whole at tier {}: {}", name,
                                         ToString(tier), copies.error().message()));
      continue;
    }
    if (!copies) return copies.error();
    std::move(copies->begin(), copies->end(), std::back_inserter(report.checks));
  }
  return Status::Ok();
}

/// Adds the copies of all committed versions that `options` names.
Status CollectOnline(CoordinatorClient& client, const CheckOptions& options, CheckReport& report) {
  HOLDFAST_ASSIGN_OR_RETURN(std::vector<std::string> jobs, client.Jobs(options.job));
  bool found = false;
  for (const std::string& job : jobs) {
    HOLDFAST_ASSIGN_OR_RETURN(auto listed, client.ListVersions(job, false));
    for (const auto& info : listed.versions()) {
      if (options.version != VersionId{} && FromProto(info.version()) != options.version) continue;
      found = true;
      if (info.committed_tiers() == 0 || info.state() == "removing") {
        if (options.version != VersionId{})
          report.notes.push_back(job + "/" + ToString(options.version) + " is " + info.state() +
                                 ": nothing to check");
        continue;
      }
      HOLDFAST_RETURN_IF_ERROR(CollectVersion(client, job, info, report));
    }
  }
  if (!found && options.version != VersionId{}) {
    return NotFoundError(options.job + " has no version " + ToString(options.version) +
                         "; `holdfast versions " + options.job + "` lists them");
  }
  return Status::Ok();
}

/// A shard that its node does not find may have been replaced since we asked where it is.
bool StillPromised(CoordinatorClient& client, const ShardCheck& check) {
  auto copies = CopiesOf(client, check.key.job, check.key.version, check.tier);
  return copies && std::any_of(copies->begin(), copies->end(), [&](const ShardCheck& copy) {
           return copy.key == check.key && copy.node == check.node;
         });
}

}  // namespace

void TakeSample(double share, CheckReport& report) {
  size_t count = report.checks.size();
  if (share >= 1 || count == 0) return;
  auto wanted =
      std::max<size_t>(1, static_cast<size_t>(std::ceil(share * static_cast<double>(count))));
  Random random(RandomSeed());
  std::vector<ShardCheck> kept;
  for (size_t i = 0; i < count; ++i) {
    // Selection sampling: each of the rest is as likely.
    if (random.Below(count - i) < wanted - kept.size()) kept.push_back(std::move(report.checks[i]));
  }
  report.left_out = count - kept.size();
  report.checks = std::move(kept);
}

Result<CheckReport> CheckOnline(Context& context, const CheckOptions& options) {
  HOLDFAST_ASSIGN_OR_RETURN(CoordinatorClient client, CoordinatorClient::Open(context.options));
  CheckReport report;
  HOLDFAST_RETURN_IF_ERROR(CollectOnline(client, options, report));
  TakeSample(options.share, report);
  Progress progress("verifying", options.deep ? TotalBytes(report.checks) : 0, options.deep,
                    context.clock);
  std::map<std::string, Result<AgentClient>> agents;
  for (const ShardCheck& check : report.checks) {
    if (agents.count(check.node) == 0)
      agents.emplace(check.node, AgentClient::Open(check.node, check.address, context.options));
  }
  ParallelFor(report.checks.size(), kChecksAtOnce, [&](size_t i) {
    ShardCheck& check = report.checks[i];
    const Result<AgentClient>& agent = agents.at(check.node);
    Status status = agent ? agent->VerifyShard(check.key, check.tier, options.deep, check.bytes)
                          : agent.error();
    check.verdict = VerdictOf(status);
    check.message = status.message();
    if (check.verdict == Verdict::kMissing && !StillPromised(client, check))
      check.verdict = Verdict::kGone;
    progress.Add(check.bytes);
    return !Interrupt::requested();
  });
  HOLDFAST_RETURN_IF_ERROR(Interrupt::Check());
  return report;
}

namespace {

/// Whether a shard found on disk is one the operator asked for.
bool Wanted(const CheckOptions& options, const std::string& job, VersionId version) {
  return (options.job.empty() || options.job == job) &&
         (options.version == VersionId{} || options.version == version);
}

/// A copy to check, and the volume it lies on.
struct Located {
  ShardKey key;
  const OfflineVolume* volume;
};

Status NothingThere(const CheckOptions& options) {
  std::string what = options.job.empty() ? "" : " of " + options.job;
  if (options.version != VersionId{}) what += "/" + ToString(options.version);
  return NotFoundError("these data directories hold no shard" + what);
}

}  // namespace

Result<CheckReport> CheckOffline(Context& context, const CheckOptions& options,
                                 const std::vector<std::string>& dirs) {
  HOLDFAST_ASSIGN_OR_RETURN(std::vector<OfflineVolume> volumes, OpenDataDirs(dirs));
  CheckReport report;
  std::map<std::pair<ShardKey, std::string>, const Volume*> located;
  std::vector<ShardCheck> damaged;
  for (const OfflineVolume& volume : volumes) {
    for (const StoredShard& shard : volume.shards) {
      ShardKey key = shard.identity.key();
      if (!Wanted(options, key.job, key.version)) continue;
      located[{key, volume.dirs[0]}] = volume.volume.get();
      report.checks.push_back(
          {key, Tier::kDisk, volume.dirs[0], "", shard.image_bytes, Verdict::kOk, ""});
    }
    for (const DamagedSeal& seal : volume.damaged) {
      ShardKey key{seal.job, seal.version, seal.rank};
      if (!Wanted(options, seal.job, seal.version) || located.count({key, volume.dirs[0]}) > 0)
        continue;
      damaged.push_back(
          {key, Tier::kDisk, volume.dirs[0], "", 0, VerdictOf(seal.error), seal.error.message()});
    }
    for (const std::string& path : volume.leftovers)
      report.notes.push_back(path + " was never published or is being deleted: it does not count");
  }
  if (report.checks.empty() && damaged.empty() && !options.job.empty())
    return Fail(NothingThere(options));
  TakeSample(options.share, report);
  {
    Progress progress("verifying", options.deep ? TotalBytes(report.checks) : 0, options.deep,
                      context.clock);
    for (ShardCheck& check : report.checks) {
      Status status = located[{check.key, check.node}]->VerifyShard(check.key, options.deep);
      check.verdict = VerdictOf(status);
      check.message = status.message();
      progress.Add(check.bytes);
      HOLDFAST_RETURN_IF_ERROR(Interrupt::Check());
    }
  }
  // Seals that cannot be read are always told: finding them cost nothing.
  std::move(damaged.begin(), damaged.end(), std::back_inserter(report.checks));
  std::stable_sort(report.checks.begin(), report.checks.end(),
                   [](const ShardCheck& a, const ShardCheck& b) { return a.key < b.key; });
  return report;
}

}  // namespace holdfast::cli
