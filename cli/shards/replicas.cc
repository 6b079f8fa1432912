#include "cli/shards/replicas.h"

#include <fmt/format.h>

#include "cli/shards/agent_chunks.h"
#include "coordinator/api/convert.h"
#include "storage/chunks/disk_chunks.h"

namespace holdfast::cli {

Status ExpectedShard::Check(const ShardSeal& seal) const {
  const std::string name = ToString(key);
  if (seal.identity.key() != key || seal.identity.world != world)
    return DataLossError(fmt::format("the source of {} has {} of a world of {} instead", name,
                                     ToString(seal.identity.key()), seal.identity.world));
  if (seal.image_bytes == 0) return DataLossError(name + " is empty");
  return Status::Ok();
}

std::unique_ptr<ChunkSource> OpenReplica(const ShardSource& replica, const GlobalOptions& options,
                                         const Clock& clock) {
  const ShardKey& key = replica.expected.key;
  if (replica.volume == nullptr) {
    return std::make_unique<AgentChunks>(replica.node, replica.address, replica.tier, key, options,
                                         clock);
  }
  return std::make_unique<DiskChunks>(*replica.volume, key, "disk on " + replica.node);
}

VersionReplicas::VersionReplicas(const std::vector<OfflineVolume>& volumes, const std::string& job,
                                 VersionId version, const GlobalOptions& options,
                                 const Clock& clock)
    : job_(job), version_(version), options_(options), clock_(clock) {
  for (const OfflineVolume& volume : volumes) {
    for (const StoredShard& shard : volume.shards) {
      const ShardIdentity& identity = shard.identity;
      if (identity.job != job || identity.version != version) continue;
      ShardSource replica;
      replica.expected = {identity.key(), identity.world, shard.image_bytes, shard.digest};
      replica.node = volume.dirs[0];
      replica.volume = volume.volume.get();
      replicas_[identity.rank].push_back(std::move(replica));
    }
  }
}

VersionReplicas::VersionReplicas(const coordinator::PlanRestoreReply& plan, const std::string& job,
                                 const GlobalOptions& options, const Clock& clock)
    : job_(job), version_(coord::FromProto(plan.version())), options_(options), clock_(clock) {
  const auto add = [&](const coordinator::ShardSource& source) {
    ShardSource replica;
    replica.expected = {
        {job, version_, Rank{source.rank()}}, plan.world(), source.image_bytes(), source.digest()};
    replica.tier = static_cast<Tier>(source.tier());
    replica.node = source.node();
    replica.address = source.address();
    replicas_[Rank{source.rank()}].push_back(std::move(replica));
  };
  for (const auto& source : plan.sources()) add(source);
  for (const auto& source : plan.parity()) add(source);
}

std::vector<ShardSource> VersionReplicas::Of(Rank shard) const {
  const auto found = replicas_.find(shard);
  return found == replicas_.end() ? std::vector<ShardSource>() : found->second;
}

SourceList VersionReplicas::Open(Rank shard) const {
  SourceList sources;
  for (const ShardSource& replica : Of(shard))
    sources.push_back(OpenReplica(replica, options_, clock_));
  return sources;
}

std::vector<Rank> VersionReplicas::Parity() const {
  std::vector<Rank> parity;
  for (const auto& [rank, replicas] : replicas_) {
    if (IsParity(rank)) parity.push_back(rank);
  }
  return parity;
}

}  // namespace holdfast::cli
