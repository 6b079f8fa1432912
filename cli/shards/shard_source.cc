#include "cli/shards/shard_source.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/tiers.h"
#include "cli/cluster/coordinator_client.h"
#include "cli/core/interrupt.h"
#include "cli/core/text.h"
#include "cli/offline/data_dirs.h"
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
ShardSource DecodedShard(const ShardKey& key, uint32_t world, const ShardSeal& seal) {
  ShardSource shard;
  shard.expected = {key, world, seal.image_bytes, seal.digest()};
  shard.tier = Tier::kPeer;
  shard.node = "parity group";
  shard.decoded = true;
  return shard;
}

/// Creates the `LostShards` of the requested version once.
class LostShardsCache {
 public:
  template <typename Make>
  Result<LostShards*> Get(const Make& make) {
    MutexLock lock(mutex_);
    if (lost_ == nullptr) {
      HOLDFAST_ASSIGN_OR_RETURN(lost_, make());
    }
    return lost_.get();
  }

 private:
  Mutex mutex_;
  std::unique_ptr<LostShards> lost_ HOLDFAST_GUARDED_BY(mutex_);
};

/// Reads from live agents, as planned by the coordinator.
class ClusterSource : public RestoreSource {
 public:
  ClusterSource(const GlobalOptions& options, CoordinatorClient client, uint32_t tier)
      : options_(options), client_(std::move(client)), tier_(tier) {}

  Result<RestorePlan> Plan(const std::string& job, VersionId version) override {
    auto reply = client_.PlanRestore(job, version, tier_);
    if (!reply && tier_ == 0 && reply.error().code() == ErrorCode::kFailedPrecondition) {
      return PlanWithDecoding(job, version, reply.error());
    }
    if (!reply) return Fail(reply.error());
    RestorePlan plan{job, FromProto(reply->version()), reply->world(), {}};
    for (const auto& source : reply->sources()) plan.shards.push_back(PlannedShard(plan, source));
    return plan;
  }

  Status ReadShard(const ShardSource& shard, ShardSink& sink) override {
    if (shard.decoded) return ReadPart(shard, 0, shard.expected.image_bytes, sink);
    HOLDFAST_ASSIGN_OR_RETURN(AgentClient agent,
                              AgentClient::Open(shard.node, shard.address, options_));
    return agent.ReadShard(shard.expected.key, shard.tier, sink);
  }

  Status ReadPart(const ShardSource& shard, uint64_t offset, uint64_t bytes,
                  ShardSink& sink) override {
    if (shard.decoded) {
      HOLDFAST_ASSIGN_OR_RETURN(LostShards * lost, Lost(shard.expected.key));
      return lost->Stream(shard.expected.key.rank, offset, bytes, sink);
    }
    HOLDFAST_ASSIGN_OR_RETURN(AgentClient agent,
                              AgentClient::Open(shard.node, shard.address, options_));
    return agent.ReadPart(shard.expected.key, shard.tier, offset, bytes, sink);
  }

  Result<ShardSource> NextReplica(const ShardSource& failed) override {
    const ExpectedShard& wanted = failed.expected;
    for (const TierTraits& traits : kTierTable) {
      const Tier tier = traits.tier;
      if (tier <= failed.tier || tier_ != 0 || failed.decoded) continue;
      auto reply =
          client_.PlanRestore(wanted.key.job, wanted.key.version, static_cast<uint32_t>(tier));
      if (!reply || wanted.key.rank.value >= static_cast<uint32_t>(reply->sources_size())) continue;
      RestorePlan plan{wanted.key.job, wanted.key.version, wanted.world, {}};
      ShardSource other =
          PlannedShard(plan, reply->sources(static_cast<int>(wanted.key.rank.value)));
      if (other.expected.digest == wanted.digest) return other;
    }
    if (failed.decoded || tier_ != 0) return Fail(NotFoundError("no other replica"));
    HOLDFAST_ASSIGN_OR_RETURN(LostShards * lost, Lost(wanted.key));
    HOLDFAST_ASSIGN_OR_RETURN(const ShardSeal seal, lost->Find(wanted.key.rank));
    ShardSource decoded = DecodedShard(wanted.key, wanted.world, seal);
    if (decoded.expected.digest == wanted.digest) return decoded;
    return Fail(NotFoundError("no other replica"));
  }

 private:
  /// Plans the nearest replica of each rank's shard, and decoding for shards without one. `why` is
  /// the error of the plan without decoding.
  Result<RestorePlan> PlanWithDecoding(const std::string& job, VersionId version,
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
      plan.shards.push_back(DecodedShard(key, plan.world, *seal));
    }
    return plan;
  }

  Result<LostShards*> Lost(const ShardKey& key) {
    return lost_.Get([&]() -> Result<std::unique_ptr<LostShards>> {
      HOLDFAST_ASSIGN_OR_RETURN(const auto reply,
                                client_.PlanAllReplicas(key.job, key.version, /*as_is=*/true));
      return std::make_unique<LostShards>(key.job, key.version, ImagesOf(reply, key.job, options_));
    });
  }

  const GlobalOptions& options_;
  CoordinatorClient client_;
  const uint32_t tier_;
  LostShardsCache lost_;
};

/// Reads data directories on this machine directly.
class DataDirSource : public RestoreSource {
 public:
  explicit DataDirSource(std::vector<OfflineVolume> volumes) : volumes_(std::move(volumes)) {}

  Result<RestorePlan> Plan(const std::string& job, VersionId wanted) override {
    HOLDFAST_ASSIGN_OR_RETURN(std::vector<OfflineVersion> versions, VersionsOf(volumes_, job));
    Status newest;  // why the newest cannot be read
    for (const OfflineVersion& version : versions) {
      if (wanted != VersionId{} && version.version != wanted) continue;
      auto plan = PlanOf(version);
      if (plan || wanted != VersionId{}) return plan;
      HOLDFAST_RETURN_IF_ERROR(Interrupt::Check());
      if (newest.ok()) newest = plan.error();
    }
    return Fail(NoVersionError(job, wanted, versions, newest));
  }

  Status ReadShard(const ShardSource& shard, ShardSink& sink) override {
    if (shard.decoded) return ReadPart(shard, 0, shard.expected.image_bytes, sink);
    const Volume& volume = *volumes_[shard.volumes[0]].volume;
    HOLDFAST_ASSIGN_OR_RETURN(const ShardSeal seal, volume.ReadSeal(shard.expected.key));
    HOLDFAST_RETURN_IF_ERROR(sink.Begin(seal));
    return volume.StreamShard(seal, [&](uint64_t offset, std::span<const std::byte> chunk) {
      Status status = Interrupt::Check();
      return status.ok() ? sink.Chunk(offset, chunk) : status;
    });
  }

  Status ReadPart(const ShardSource& shard, uint64_t offset, uint64_t bytes,
                  ShardSink& sink) override {
    if (shard.decoded) {
      return Lost(shard.expected.key).Stream(shard.expected.key.rank, offset, bytes, sink);
    }
    const Volume& volume = *volumes_[shard.volumes[0]].volume;
    HOLDFAST_ASSIGN_OR_RETURN(auto chunks, volume.OpenChunks(shard.expected.key));
    HOLDFAST_RETURN_IF_ERROR(sink.Begin(chunks->seal()));
    for (uint64_t at = offset; at < offset + bytes; at += kChunkBytes) {
      HOLDFAST_RETURN_IF_ERROR(Interrupt::Check());
      HOLDFAST_ASSIGN_OR_RETURN(const auto chunk, chunks->Read(at / kChunkBytes));
      HOLDFAST_RETURN_IF_ERROR(sink.Chunk(at, chunk));
    }
    return Status::Ok();
  }

  Result<ShardSource> NextReplica(const ShardSource& failed) override {
    if (failed.decoded) return Fail(NotFoundError("no other replica"));
    std::vector<size_t> rest(failed.volumes.begin() + 1, failed.volumes.end());
    if (!rest.empty()) return SourceOf(failed.expected.key, failed.expected.world, rest);
    const ShardKey& key = failed.expected.key;
    HOLDFAST_ASSIGN_OR_RETURN(const ShardSeal seal, Lost(key).Find(key.rank));
    if (seal.digest() != failed.expected.digest) return Fail(NotFoundError("no other replica"));
    return DecodedShard(key, failed.expected.world, seal);
  }

 private:
  /// Plans each rank's shard from a volume that has it, and decoding for missing shards.
  Result<RestorePlan> PlanOf(const OfflineVersion& version) {
    RestorePlan plan{version.job, version.version, version.world, {}};
    for (uint32_t rank = 0; rank < version.world; ++rank) {
      const ShardKey key{version.job, version.version, Rank{rank}};
      auto holders = version.ranks.find(rank);
      if (holders != version.ranks.end()) {
        HOLDFAST_ASSIGN_OR_RETURN(ShardSource source,
                                  SourceOf(key, version.world, holders->second));
        plan.shards.push_back(std::move(source));
        continue;
      }
      auto seal = Lost(key).Find(key.rank);
      if (!seal) {
        HOLDFAST_RETURN_IF_ERROR(Interrupt::Check());
        return Fail(NotFoundError(fmt::format(
            "{}/{} is incomplete here: ranks {} of a world of {} are missing, and {}; give the "
            "data directories of all nodes",
            version.job, ToString(version.version), MissingRanks(version), version.world,
            seal.error().message())));
      }
      plan.shards.push_back(DecodedShard(key, version.world, *seal));
    }
    return plan;
  }

  LostShards& Lost(const ShardKey& key) {
    MutexLock lock(mutex_);
    std::unique_ptr<LostShards>& lost = lost_[key.version];
    if (lost == nullptr) {
      lost = std::make_unique<LostShards>(key.job, key.version,
                                          ImagesOf(volumes_, key.job, key.version));
    }
    return *lost;
  }

  static Status NoVersionError(const std::string& job, VersionId wanted,
                               const std::vector<OfflineVersion>& versions, const Status& newest) {
    if (versions.empty()) return NotFoundError("these data directories have no shard of " + job);
    if (wanted != VersionId{})
      return NotFoundError("these data directories have no shard of " + job + "/" +
                           ToString(wanted));
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

  Result<ShardSource> SourceOf(const ShardKey& key, uint32_t world,
                               const std::vector<size_t>& holders) const {
    const OfflineVolume& volume = volumes_[holders[0]];
    for (const StoredShard& shard : volume.shards) {
      if (shard.identity.key() != key) continue;
      ShardSource source;
      source.expected = {key, world, shard.image_bytes, shard.digest};
      source.node = volume.dirs[0];
      source.volumes = holders;
      return source;
    }
    return Fail(InternalError(ToString(key) + " is no longer in the list of " + volume.dirs[0]));
  }

  std::vector<OfflineVolume> volumes_;
  Mutex mutex_;
  std::map<VersionId, std::unique_ptr<LostShards>> lost_ HOLDFAST_GUARDED_BY(mutex_);
};

}  // namespace

Status ExpectedShard::Check(const ShardSeal& seal) const {
  const std::string name = ToString(key);
  if (seal.identity.key() != key || seal.identity.world != world)
    return DataLossError(fmt::format("the source of {} has {} of a world of {} instead", name,
                                     ToString(seal.identity.key()), seal.identity.world));
  if (seal.image_bytes != image_bytes || seal.digest() != digest)
    return DataLossError("the source of " + name +
                         " has other bytes than those that were committed");
  if (seal.image_bytes == 0) return DataLossError(name + " is empty");
  return Status::Ok();
}

Status ReadAnyReplica(RestoreSource& source, ShardSource& shard, Progress& progress,
                      const std::function<Status()>& read, const std::function<void()>& failed) {
  while (true) {
    Status status = read();
    if (status.ok()) return status;
    HOLDFAST_RETURN_IF_ERROR(Interrupt::Check());
    // An error of the target, such as a full disk, would recur with every source.
    bool other_may_help =
        status.code() == ErrorCode::kDataLoss || status.code() == ErrorCode::kNotFound ||
        status.code() == ErrorCode::kUnavailable || status.code() == ErrorCode::kDeadlineExceeded;
    if (!other_may_help) return status;
    Result<ShardSource> other = source.NextReplica(shard);
    if (!other) return status;
    progress.Clear();
    PrintMessage(
        Printable(fmt::format("rank {}: the replica at tier {} on {} failed ({}); trying {} on {}",
                              shard.expected.key.rank.value, ToString(shard.tier), shard.node,
                              status.message(), ToString(other->tier), other->node)));
    failed();
    shard = *std::move(other);
  }
}

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
    HOLDFAST_ASSIGN_OR_RETURN(std::vector<OfflineVolume> volumes, OpenDataDirs(dirs_));
    source = std::make_unique<DataDirSource>(std::move(volumes));
  } else {
    HOLDFAST_ASSIGN_OR_RETURN(CoordinatorClient client, CoordinatorClient::Open(context.options));
    uint32_t tier = tier_.empty() ? 0 : static_cast<uint32_t>(ParseTier(tier_).value_or(Tier{}));
    source = std::make_unique<ClusterSource>(context.options, std::move(client), tier);
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
