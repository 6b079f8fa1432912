#include "cli/shards/shard_source.h"

#include <fmt/format.h>

#include "base/tiers.h"
#include "cli/cluster/coordinator_client.h"
#include "cli/core/interrupt.h"
#include "cli/core/text.h"
#include "cli/shards/group_source.h"

namespace holdfast::cli {

namespace {

ShardSource PlannedShard(const RestorePlan& plan, const coordinator::ShardSource& source) {
  ShardSource shard;
  shard.expected = {{plan.job, plan.version, Rank{source.rank()}},
                    plan.world,
                    source.image_bytes(),
                    source.digest()};
  shard.tier = static_cast<Tier>(source.tier());
  shard.node = source.node();
  shard.address = source.address();
  return shard;
}

/// Returns the source of a shard that has no replica: its parity group.
ShardSource DecodedShard(const ExpectedShard& expected) {
  ShardSource shard;
  shard.expected = expected;
  shard.tier = Tier::kPeer;
  shard.node = "parity group";
  shard.decoded = true;
  return shard;
}

/// Returns the replicas of a planned shard: the planned one first, the parity group last.
std::vector<ShardSource> AllReplicas(const ShardSource& planned, const LostShards& lost) {
  std::vector<ShardSource> all = {planned};
  for (ShardSource& other : lost.replicas().Of(planned.expected.key.rank)) {
    if (!other.SamePlace(planned)) all.push_back(std::move(other));
  }
  const bool parity = !lost.replicas().Parity().empty();
  if (parity && !planned.decoded) all.push_back(DecodedShard(planned.expected));
  return all;
}

/// Returns the chunks of a replica, or of the shard that its group decodes.
std::unique_ptr<ChunkSource> OpenShard(const ShardSource& shard, const GlobalOptions& options,
                                       const Clock& clock, LostShards* lost) {
  if (!shard.decoded) return OpenReplica(shard, options, clock);
  return std::make_unique<GroupChunks>(*lost, shard.expected.key);
}

/// Reads from live agents, as planned by the coordinator.
class ClusterSource : public RestoreSource {
 public:
  ClusterSource(const GlobalOptions& options, const Clock& clock, CoordinatorClient client,
                uint32_t tier)
      : options_(options), clock_(clock), client_(std::move(client)), tier_(tier) {}

  Result<RestorePlan> Plan(const std::string& job, std::optional<VersionId> version) override {
    auto reply = client_.PlanRestore(job, version, tier_);
    if (!reply && tier_ == 0 && reply.error().code() == ErrorCode::kFailedPrecondition) {
      return PlanWithDecoding(job, version, reply.error());
    }
    if (!reply) return Fail(reply.error());
    RestorePlan plan{job, FromProto(reply->version()), reply->world(), {}};
    for (const auto& source : reply->sources()) plan.shards.push_back(PlannedShard(plan, source));
    return plan;
  }

  /// With a tier that the user chose, only the planned replica.
  std::vector<ShardSource> ReplicasOf(const ShardSource& planned) override {
    if (tier_ != 0) return {planned};
    const auto lost = Lost(planned.expected.key);
    return lost ? AllReplicas(planned, **lost) : std::vector<ShardSource>{planned};
  }

  std::unique_ptr<ChunkSource> Open(const ShardSource& shard) override {
    return OpenShard(shard, options_, clock_, Lost(shard.expected.key).value_or(nullptr));
  }

 private:
  /// Plans the nearest replica of each rank's shard, and decoding for shards without one. `why` is
  /// the error of the plan without decoding.
  Result<RestorePlan> PlanWithDecoding(const std::string& job, std::optional<VersionId> version,
                                       const Status& why) {
    auto reply = client_.PlanAllReplicas(job, version, /*as_is=*/true);
    if (!reply) return Fail(why);
    RestorePlan plan{job, FromProto(reply->version()), reply->world(), {}};
    std::vector<const coordinator::ShardSource*> nearest(plan.world);
    for (const auto& source : reply->sources()) {
      const coordinator::ShardSource*& best = nearest[source.rank()];
      if (best == nullptr || source.tier() < best->tier()) best = &source;
    }
    for (uint32_t rank = 0; rank < plan.world; ++rank) {
      if (nearest[rank] != nullptr) {
        plan.shards.push_back(PlannedShard(plan, *nearest[rank]));
        continue;
      }
      const ShardKey key{job, plan.version, Rank{rank}};
      HOLDFAST_ASSIGN_OR_RETURN(LostShards * lost, Lost(key));
      auto seal = lost->Find(key.rank);
      if (!seal) {
        return Fail(Status(ErrorCode::kFailedPrecondition,
                           fmt::format("rank {} of {}/{} has no replica on a live node, and {}",
                                       rank, job, ToString(plan.version), seal.error().message())));
      }
      plan.shards.push_back(DecodedShard({key, plan.world, seal->image_bytes, seal->digest()}));
    }
    return plan;
  }

  /// Asks the coordinator for all replicas of the version once.
  Result<LostShards*> Lost(const ShardKey& key) {
    MutexLock lock(mutex_);
    if (lost_ == nullptr) {
      HOLDFAST_ASSIGN_OR_RETURN(const auto reply,
                                client_.PlanAllReplicas(key.job, key.version, /*as_is=*/true));
      lost_ = std::make_unique<LostShards>(VersionReplicas(reply, key.job, options_, clock_));
    }
    return lost_.get();
  }

  const GlobalOptions& options_;
  const Clock& clock_;
  CoordinatorClient client_;
  const uint32_t tier_;
  Mutex mutex_;
  std::unique_ptr<LostShards> lost_ HOLDFAST_GUARDED_BY(mutex_);
};

/// Reads data directories on this machine directly.
class DataDirSource : public RestoreSource {
 public:
  DataDirSource(std::vector<OfflineVolume> volumes, const GlobalOptions& options,
                const Clock& clock)
      : volumes_(std::move(volumes)), options_(options), clock_(clock) {}

  Result<RestorePlan> Plan(const std::string& job, std::optional<VersionId> wanted) override {
    HOLDFAST_ASSIGN_OR_RETURN(std::vector<OfflineVersion> versions, VersionsOf(volumes_, job));
    Status newest;  // why the newest cannot be read
    for (const OfflineVersion& version : versions) {
      if (wanted && version.version != *wanted) continue;
      auto plan = PlanOf(version);
      if (plan || wanted) return plan;
      HOLDFAST_RETURN_IF_ERROR(Interrupt::Check());
      if (newest.ok()) newest = plan.error();
    }
    return Fail(NoVersionError(job, wanted, versions, newest));
  }

  std::vector<ShardSource> ReplicasOf(const ShardSource& planned) override {
    return AllReplicas(planned, Lost(planned.expected.key));
  }

  std::unique_ptr<ChunkSource> Open(const ShardSource& shard) override {
    return OpenShard(shard, options_, clock_, &Lost(shard.expected.key));
  }

 private:
  /// Plans each rank's shard from a volume that has it, and decoding for missing shards.
  Result<RestorePlan> PlanOf(const OfflineVersion& version) {
    RestorePlan plan{version.job, version.version, version.world, {}};
    for (uint32_t rank = 0; rank < version.world; ++rank) {
      const ShardKey key{version.job, version.version, Rank{rank}};
      LostShards& lost = Lost(key);
      if (auto replicas = lost.replicas().Of(key.rank); !replicas.empty()) {
        plan.shards.push_back(std::move(replicas[0]));
        continue;
      }
      auto seal = lost.Find(key.rank);
      if (!seal) {
        HOLDFAST_RETURN_IF_ERROR(Interrupt::Check());
        return Fail(NotFoundError(fmt::format(
            "{}/{} is incomplete here: ranks {} of a world of {} are missing, and {}; give the "
            "data directories of all nodes",
            version.job, ToString(version.version), MissingRanks(version), version.world,
            seal.error().message())));
      }
      plan.shards.push_back(DecodedShard({key, version.world, seal->image_bytes, seal->digest()}));
    }
    return plan;
  }

  LostShards& Lost(const ShardKey& key) {
    MutexLock lock(mutex_);
    std::unique_ptr<LostShards>& lost = lost_[key.version];
    if (lost == nullptr) {
      lost = std::make_unique<LostShards>(
          VersionReplicas(volumes_, key.job, key.version, options_, clock_));
    }
    return *lost;
  }

  static Status NoVersionError(const std::string& job, std::optional<VersionId> wanted,
                               const std::vector<OfflineVersion>& versions, const Status& newest) {
    if (versions.empty()) return NotFoundError("these data directories have no shard of " + job);
    if (wanted) {
      return NotFoundError("these data directories have no shard of " + job + "/" +
                           ToString(*wanted));
    }
    return NotFoundError(
        fmt::format("no version of {} is complete here; the newest: {}", job, newest.message()));
  }

  /// Lists only the first few ranks, so that the message stays readable with thousands of ranks.
  static std::string MissingRanks(const OfflineVersion& version) {
    std::vector<std::string> missing;
    for (uint32_t rank = 0; rank < version.world; ++rank) {
      if (version.ranks.count(rank) > 0) continue;
      if (missing.size() == 8) {
        missing.emplace_back("…");
        break;
      }
      missing.push_back(std::to_string(rank));
    }
    return Join(missing, ", ");
  }

  std::vector<OfflineVolume> volumes_;
  const GlobalOptions& options_;
  const Clock& clock_;
  Mutex mutex_;
  std::map<VersionId, std::unique_ptr<LostShards>> lost_ HOLDFAST_GUARDED_BY(mutex_);
};

}  // namespace

void SourceOptions::AddTo(CLI::App& command) {
  command.add_option("--version", version_, "E.g. 3-120 [the newest that can be restored]")
      ->check(VersionCheck());
  CLI::Option* tier =
      command.add_option("--tier", tier_, "Read only from this tier: memory or disk [the nearest]")
          ->check(TierCheck());
  command
      .add_option("--from-data-dir", dirs_,
                  "Read these data directories of all nodes, without any service")
      ->type_name("DIR")
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
      ->excludes(tier);
}

Result<std::unique_ptr<RestoreSource>> SourceOptions::Open(Context& context, const std::string& job,
                                                           RestorePlan* plan) const {
  std::unique_ptr<RestoreSource> source;
  if (offline()) {
    HOLDFAST_ASSIGN_OR_RETURN(std::vector<OfflineVolume> volumes,
                              OpenDataDirs(dirs_, context.clock));
    source = std::make_unique<DataDirSource>(std::move(volumes), context.options, context.clock);
  } else {
    HOLDFAST_ASSIGN_OR_RETURN(CoordinatorClient client,
                              CoordinatorClient::Open(context.options, context.clock));
    uint32_t tier = tier_.empty() ? 0 : static_cast<uint32_t>(ParseTier(tier_).value_or(Tier{}));
    source =
        std::make_unique<ClusterSource>(context.options, context.clock, std::move(client), tier);
  }
  HOLDFAST_ASSIGN_OR_RETURN(*plan, source->Plan(job, VersionOf(version_)));
  return source;
}

void SourceOptions::PrintChosenVersion(const RestorePlan& plan) const {
  if (!offline() || !version_.empty()) return;
  PrintMessage(
      fmt::format("data directories do not record what was committed: {} is the newest version "
                  "with all shards here",
                  ToString(plan.version)));
}

}  // namespace holdfast::cli
