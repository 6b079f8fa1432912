#include "cli/shards/shard_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <set>
#include <tuple>

#include "base/random.h"
#include "base/tiers.h"
#include "cli/cluster/agent_client.h"
#include "cli/cluster/coordinator_client.h"
#include "cli/core/interrupt.h"
#include "cli/core/parallel.h"
#include "cli/core/progress.h"
#include "cli/core/text.h"
#include "cli/core/version_json.h"
#include "cli/shards/commit_check.h"
#include "cli/shards/group_source.h"
#include "cli/shards/verification_record.h"

namespace holdfast::cli {

namespace {

/// Shards checked concurrently, on different nodes.
constexpr size_t kConcurrentChecks = 4;

/// An error counts as damage only when it is about the bytes, not when it prevented the check.
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

/// Decodes a complete shard and discards the bytes.
Status DecodeAll(LostShards& lost, const ShardSeal& seal, Progress& progress) {
  GroupChunks source(lost, seal.identity.key());
  std::vector<std::byte> buffer(std::min(kChunkBytes, seal.image_bytes));
  for (uint64_t index = 0; index < seal.chunk_crcs.size(); ++index) {
    WantedChunk chunk{index, std::span(buffer).first(ChunkBytes(seal, index))};
    HOLDFAST_RETURN_IF_ERROR(source.Read(seal, {&chunk, 1}));
    progress.Add(chunk.into.size());
  }
  return Status::Ok();
}

/// Checks whether a shard without a replica can be decoded from its parity group; `deep` decodes
/// it.
void CheckInGroup(LostShards& lost, bool deep, Progress& progress, ShardCheck& check) {
  if (IsParity(check.key.rank)) {
    check.message += ": its group survives fewer losses";
    return;
  }
  auto seal = lost.Find(check.key.rank);
  Status status = seal ? Status::Ok() : seal.error();
  if (seal) check.bytes = seal->image_bytes;
  if (status.ok() && deep) status = DecodeAll(lost, *seal, progress);
  check.decodable = status.ok();
  check.message += !status.ok() ? ": " + status.message()
                   : deep       ? ": decoded from its parity group, every byte verified"
                                : ": its parity group can decode it";
}

/// Returns the replicas of one version at one tier on live nodes.
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

/// For a version that is incomplete on disk: adds all its replicas, and the shards that are missing
/// on disk. Returns false when the coordinator does not list them.
bool CollectRemaining(CoordinatorClient& client, const std::string& job, VersionId version,
                      CheckReport& report) {
  auto plan = client.PlanAllReplicas(job, version, /*as_is=*/true);
  if (!plan) return false;
  std::set<Rank> on_disk;
  const auto add = [&](const coordinator::ShardSource& source) {
    const Tier tier = static_cast<Tier>(source.tier());
    if (tier == Tier::kDisk) on_disk.insert(Rank{source.rank()});
    report.checks.push_back({{job, version, Rank{source.rank()}},
                             tier,
                             source.node(),
                             source.address(),
                             source.image_bytes(),
                             Verdict::kOk,
                             ""});
  };
  for (const auto& source : plan->sources()) add(source);
  for (const auto& source : plan->parity()) add(source);
  const auto miss = [&](Rank rank, const std::string& node) {
    if (on_disk.count(rank) != 0) return;
    ShardCheck check{{job, version, rank}, Tier::kDisk, node, "", 0, Verdict::kMissing, ""};
    check.message = "no live node has it on disk";
    report.missing.push_back(std::move(check));
  };
  std::map<Rank, std::string> home;
  for (const auto& group : plan->groups()) {
    for (const auto& member : group.members()) {
      for (const auto& rank : member.ranks()) home[Rank{rank.rank()}] = member.node();
      home[ParityRank(member.number())] = member.node();
    }
  }
  for (uint32_t rank = 0; rank < plan->world(); ++rank) home.emplace(Rank{rank}, "");
  for (const auto& [rank, node] : home) miss(rank, node);
  return true;
}

/// Adds the replicas of one version at each tier where it is complete.
Status CollectVersion(CoordinatorClient& client, const std::string& job,
                      const coordinator::VersionInfo& info, CheckReport& report) {
  VersionId version = FromProto(info.version());
  std::string name = job + "/" + ToString(version);
  const uint32_t disk = TierBit(Tier::kDisk);
  const bool whole_on_disk = (info.available_tiers() & disk) != 0;
  if ((info.committed_tiers() & disk) != 0 && !whole_on_disk) {
    if (CollectRemaining(client, job, version, report)) return Status::Ok();
  }
  if (info.available_tiers() == 0) {
    report.partial = true;
    report.notes.push_back(name + ": no tier has all of its shards on live nodes" +
                           (info.why_not().empty() ? "" : ": " + info.why_not()));
    return Status::Ok();
  }
  // Tier peer is parity in memory, and is listed with tier memory.
  for (const TierTraits& traits : kTierTable) {
    const Tier tier = traits.tier;
    if (!HasReplicas(tier)) continue;
    if ((info.available_tiers() & TierBit(tier)) == 0) continue;
    Result<std::vector<ShardCheck>> copies = CopiesOf(client, job, version, tier);
    if (!copies && copies.error().code() != ErrorCode::kUnavailable &&
        copies.error().code() != ErrorCode::kDeadlineExceeded) {
      // Training replaces versions in memory every step, also during the check.
      report.notes.push_back(fmt::format("{} is no longer complete at tier {}: {}", name,
                                         ToString(tier), copies.error().message()));
      continue;
    }
    if (!copies) return copies.error();
    std::move(copies->begin(), copies->end(), std::back_inserter(report.checks));
  }
  return Status::Ok();
}

/// Adds the replicas of all committed versions that `options` selects.
Status CollectOnline(CoordinatorClient& client, const CheckOptions& options, CheckReport& report,
                     Commits& commits) {
  HOLDFAST_ASSIGN_OR_RETURN(std::vector<std::string> jobs, client.Jobs(options.job));
  bool found = false;
  for (const std::string& job : jobs) {
    HOLDFAST_ASSIGN_OR_RETURN(auto listed, client.ListVersions(job, false));
    for (const auto& info : listed.versions()) {
      if (options.version && FromProto(info.version()) != *options.version) continue;
      found = true;
      if (info.committed_tiers() == 0 || info.state() == "removing") {
        if (options.version)
          report.notes.push_back(job + "/" + ToString(*options.version) + " is " + info.state() +
                                 ": nothing to check");
        continue;
      }
      if (info.commit_digest() != 0) {
        const VersionId version = FromProto(info.version());
        commits[{job, version}] = {job, {}, version, info.world(), info.commit_digest()};
      }
      HOLDFAST_RETURN_IF_ERROR(CollectVersion(client, job, info, report));
    }
  }
  if (!found && options.version) {
    return NotFoundError(options.job + " has no version " + ToString(*options.version) +
                         "; `holdfast versions " + options.job + "` lists them");
  }
  return Status::Ok();
}

/// Returns whether the coordinator still lists the replica. One that its node does not find may
/// have been replaced since the list was made.
bool IsStillListed(CoordinatorClient& client, const ShardCheck& check) {
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
    // Selection sampling: every remaining check has the same probability.
    if (random.Below(count - i) < wanted - kept.size()) kept.push_back(std::move(report.checks[i]));
  }
  report.left_out = count - kept.size();
  report.checks = std::move(kept);
}

namespace {

using VersionKey = std::pair<std::string, VersionId>;

/// Checks whether shards without a replica can be decoded from their parity groups.
Status ExplainMissingOnline(Context& context, CoordinatorClient& client,
                            const CheckOptions& options, CheckReport& report) {
  if (report.missing.empty()) return Status::Ok();
  Progress progress("decoding missing shards", 0, options.deep, context.clock);
  std::map<VersionKey, std::unique_ptr<LostShards>> versions;
  for (ShardCheck& check : report.missing) {
    HOLDFAST_RETURN_IF_ERROR(Interrupt::Check());
    const ShardKey& key = check.key;
    std::unique_ptr<LostShards>& lost = versions[{key.job, key.version}];
    if (lost == nullptr) {
      HOLDFAST_ASSIGN_OR_RETURN(const auto plan,
                                client.PlanAllReplicas(key.job, key.version, /*as_is=*/true));
      lost = std::make_unique<LostShards>(
          VersionReplicas(plan, key.job, context.options, context.clock));
    }
    CheckInGroup(*lost, options.deep, progress, check);
  }
  return Status::Ok();
}

}  // namespace

Result<CheckReport> CheckOnline(Context& context, const CheckOptions& options) {
  HOLDFAST_ASSIGN_OR_RETURN(CoordinatorClient client,
                            CoordinatorClient::Open(context.options, context.clock));
  CheckReport report;
  Commits commits;
  HOLDFAST_RETURN_IF_ERROR(CollectOnline(client, options, report, commits));
  ReplicaCounts left_out = CountReplicas(report.checks);
  TakeSample(options.share, report);
  for (const auto& [version, sampled] : CountReplicas(report.checks)) left_out[version] -= sampled;
  HOLDFAST_RETURN_IF_ERROR(ExplainMissingOnline(context, client, options, report));
  Progress progress("verifying", options.deep ? TotalBytes(report.checks) : 0, options.deep,
                    context.clock);
  std::map<std::string, Result<AgentClient>> agents;
  for (const ShardCheck& check : report.checks) {
    if (agents.count(check.node) == 0)
      agents.emplace(check.node,
                     AgentClient::Open(check.node, check.address, context.options, context.clock));
  }
  // Agents were opened above, so that the threads only read the map.
  ParallelFor(report.checks.size(), kConcurrentChecks, [&](size_t i) {
    ShardCheck& check = report.checks[i];
    const Result<AgentClient>& agent = agents.at(check.node);
    Status status =
        agent ? agent->VerifyShard(check.key, check.tier, options.deep, check.bytes, &check.digest)
              : agent.error();
    check.verdict = VerdictOf(status);
    check.message = status.message();
    if (check.verdict == Verdict::kMissing && !IsStillListed(client, check))
      check.verdict = Verdict::kReplaced;
    progress.Add(check.bytes);
    return !Interrupt::requested();
  });
  HOLDFAST_RETURN_IF_ERROR(Interrupt::Check());
  std::move(report.missing.begin(), report.missing.end(), std::back_inserter(report.checks));
  report.missing.clear();
  std::stable_sort(report.checks.begin(), report.checks.end(),
                   [](const ShardCheck& a, const ShardCheck& b) {
                     return std::tie(a.key, a.tier) < std::tie(b.key, b.tier);
                   });
  CheckCommits(commits, report);
  RecordVerifications(client, left_out, options.deep, report);
  return report;
}

namespace {

/// Returns whether the options select this version.
bool Wanted(const CheckOptions& options, const std::string& job, VersionId version) {
  return (options.job.empty() || options.job == job) &&
         (!options.version || *options.version == version);
}

/// A replica to check, and the volume that has it.
struct Located {
  ShardKey key;
  const OfflineVolume* volume;
};

/// Finds shards that should be in the given data directories and are not. Directories of several
/// nodes should have all shards of a version. Those of one node should have the shards that parity
/// groups place there.
class MissingFinder {
 public:
  MissingFinder(const std::vector<OfflineVolume>& volumes, const CheckOptions& options,
                const GlobalOptions& global, const Clock& clock)
      : volumes_(volumes), options_(options), global_(global), clock_(clock) {
    for (size_t v = 0; v < volumes.size(); ++v) {
      for (const StoredShard& shard : volumes[v].shards) {
        Found& found = FoundOf(shard.identity.job, shard.identity.version);
        found.world = std::max(found.world, shard.identity.world);
        found.shards[shard.identity.rank] = v;
      }
      for (const DamagedSeal& seal : volumes[v].damaged) {
        FoundOf(seal.job, seal.version).damaged.insert(seal.rank);
      }
      for (const ShardKey& key : volumes[v].unsealed) {
        FoundOf(key.job, key.version).unsealed[key.rank] = v;
      }
    }
  }

  Status Find(Progress& progress, CheckReport& report) {
    for (auto& [key, found] : versions_) {
      HOLDFAST_RETURN_IF_ERROR(Interrupt::Check());
      if (!Wanted(options_, key.first, key.second)) continue;
      FindOf(key, found, progress, report);
    }
    return Status::Ok();
  }

 private:
  struct Found {
    uint32_t world = 0;
    std::map<Rank, size_t> shards;    // volume that has a good seal
    std::map<Rank, size_t> unsealed;  // volume that has data without a seal
    std::set<Rank> damaged;
  };

  Found& FoundOf(const std::string& job, VersionId version) { return versions_[{job, version}]; }

  void FindOf(const VersionKey& key, const Found& found, Progress& progress, CheckReport& report) {
    LostShards lost(VersionReplicas(volumes_, key.first, key.second, global_, clock_));
    const auto miss = [&](Rank rank, const std::string& dir, const std::string& why) {
      ShardCheck check{
          {key.first, key.second, rank}, Tier::kDisk, dir, "", 0, Verdict::kMissing, why};
      CheckInGroup(lost, options_.deep, progress, check);
      report.missing.push_back(std::move(check));
    };
    const auto is_here = [&](Rank rank) {
      return found.shards.count(rank) != 0 || found.damaged.count(rank) != 0;
    };
    for (const auto& [rank, volume] : found.unsealed) {
      if (!is_here(rank)) {
        miss(rank, volumes_[volume].dirs[0], "its data exists here, but its seal does not");
      }
    }
    const bool one_node = volumes_.size() == 1;
    std::set<Rank> placed;  // by a plan
    for (const GroupPlan& plan : lost.Plans()) {
      for (const PlanMember& member : plan.members()) {
        std::vector<Rank> shards = {ParityRank(member.number)};
        for (const PlanRank& rank : member.ranks) shards.push_back(rank.rank);
        placed.insert(shards.begin(), shards.end());
        const bool any = std::any_of(shards.begin(), shards.end(), [&](Rank rank) {
          return is_here(rank) || found.unsealed.count(rank) != 0;
        });
        for (const Rank rank : shards) {
          if (is_here(rank) || found.unsealed.count(rank) != 0 || (one_node && !any)) continue;
          miss(rank, "-",
               fmt::format("no data directory here has it; it was on node {}", member.node));
        }
      }
    }
    std::vector<std::string> elsewhere;
    for (uint32_t rank = 0; rank < found.world; ++rank) {
      if (is_here(Rank{rank}) || placed.count(Rank{rank}) != 0 ||
          found.unsealed.count(Rank{rank}) != 0) {
        continue;
      }
      if (!one_node) {
        miss(Rank{rank}, "-", "no data directory here has it");
      } else {
        elsewhere.push_back(std::to_string(rank));
      }
    }
    if (elsewhere.empty()) return;
    report.partial = true;
    constexpr size_t kNamedMax = 8;
    if (elsewhere.size() > kNamedMax) {
      elsewhere.resize(kNamedMax);
      elsewhere.emplace_back("…");
    }
    report.notes.push_back(fmt::format(
        "{}/{} has {} ranks, and ranks {} are not in these data directories: give those of all "
        "nodes to check the complete version",
        key.first, ToString(key.second), found.world, Join(elsewhere, ", ")));
  }

  const std::vector<OfflineVolume>& volumes_;
  const CheckOptions& options_;
  const GlobalOptions& global_;
  const Clock& clock_;
  std::map<VersionKey, Found> versions_;
};

/// Returns the commits that the volumes know of these versions, which their seals attribute to
/// lives.
Commits CommitsIn(const std::vector<OfflineVolume>& volumes,
                  const std::map<VersionKey, LifeId>& lives, CheckReport& report) {
  Commits commits;
  for (const OfflineVolume& volume : volumes) {
    const auto known = volume.volume->ReadCommits();
    if (!known) {
      report.notes.push_back(fmt::format("{}: {}", volume.dirs[0], known.error().message()));
      continue;
    }
    for (const VersionCommit& commit : *known) {
      const auto life = lives.find({commit.job, commit.version});
      if (life == lives.end() || life->second != commit.life) continue;
      const auto [other, added] = commits.try_emplace({commit.job, commit.version}, commit);
      if (added || other->second == commit) continue;
      report.contradictions.push_back(
          fmt::format("{}/{}: {} and another node know commits of it with different digests",
                      commit.job, ToString(commit.version), volume.dirs[0]));
    }
  }
  return commits;
}

Status NoShardError(const CheckOptions& options) {
  std::string what = options.job.empty() ? "" : " of " + options.job;
  if (options.version) what += "/" + ToString(*options.version);
  return NotFoundError("these data directories have no shard" + what);
}

}  // namespace

Result<CheckReport> CheckOffline(Context& context, const CheckOptions& options,
                                 const std::vector<std::string>& dirs) {
  HOLDFAST_ASSIGN_OR_RETURN(std::vector<OfflineVolume> volumes, OpenDataDirs(dirs, context.clock));
  CheckReport report;
  std::map<std::pair<ShardKey, std::string>, const Volume*> located;
  std::vector<ShardCheck> damaged;
  std::map<VersionKey, LifeId> lives;
  for (const OfflineVolume& volume : volumes) {
    for (const StoredShard& shard : volume.shards) {
      ShardKey key = shard.identity.key();
      if (!Wanted(options, key.job, key.version)) continue;
      located[{key, volume.dirs[0]}] = volume.volume.get();
      report.checks.push_back(
          {key, Tier::kDisk, volume.dirs[0], "", shard.image_bytes, Verdict::kOk, ""});
      report.checks.back().digest = shard.digest;
      lives[{key.job, key.version}] = shard.life;
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
  {
    Progress progress("decoding missing shards", 0, options.deep, context.clock);
    HOLDFAST_RETURN_IF_ERROR(
        MissingFinder(volumes, options, context.options, context.clock).Find(progress, report));
  }
  if (report.checks.empty() && damaged.empty() && report.missing.empty() && !options.job.empty())
    return Fail(NoShardError(options));
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
  CheckCommits(CommitsIn(volumes, lives, report), report);
  // Damaged and missing seals are always reported, also outside the sample: finding them is cheap.
  std::move(report.missing.begin(), report.missing.end(), std::back_inserter(report.checks));
  report.missing.clear();
  std::move(damaged.begin(), damaged.end(), std::back_inserter(report.checks));
  std::stable_sort(report.checks.begin(), report.checks.end(),
                   [](const ShardCheck& a, const ShardCheck& b) { return a.key < b.key; });
  return report;
}

}  // namespace holdfast::cli
