#include "agent/pipeline/disk_retention.h"

#include <fmt/format.h>

#include <map>

#include "base/log.h"
#include "storage/volume/quota_volume.h"

namespace holdfast::agent {

void DiskRetention::RemoveVersion(const std::string& job, VersionId version) {
  const bool posted = background_.Post([this, job, version] {
    std::vector<ShardKey> keys;
    for (const StoredShard& shard : volume_.List()) {
      if (shard.identity.job == job && shard.identity.version == version) {
        keys.push_back(shard.identity.key());
      }
    }
    Remove(job, version, keys);
  });
  if (!posted) Log(LogLevel::kWarn, "RemovalDropped", {Kv("version", ToString(version))});
}

void DiskRetention::RemoveJob(const std::string& job, Incarnation upto) {
  const bool posted = background_.Post([this, job, upto] {
    std::map<VersionId, std::vector<ShardKey>> versions;
    for (const StoredShard& shard : volume_.List()) {
      const ShardIdentity& identity = shard.identity;
      if (identity.job != job || identity.version.incarnation > upto) continue;
      versions[identity.version].push_back(identity.key());
    }
    for (const auto& [version, keys] : versions) Remove(job, version, keys);
    Log(LogLevel::kInfo, "JobForgotten",
        {Kv("job", job), Kv("upto", upto.value), Kv("versions_on_disk", versions.size())});
  });
  if (!posted) Log(LogLevel::kWarn, "RemovalDropped", {Kv("job", job)});
}

void DiskRetention::Remove(const std::string& job, VersionId version,
                           const std::vector<ShardKey>& keys) {
  const Status status = volume_.RemoveVersion(job, version);
  if (!status.ok() && status.code() != ErrorCode::kNotFound) {
    Log(LogLevel::kWarn, "VersionNotRemoved",
        {Kv("job", job), Kv("version", ToString(version)), Kv("error", status.ToString())});
    return;
  }
  Log(LogLevel::kDebug, "VersionRemoved", {Kv("job", job), Kv("version", ToString(version))});
  for (const ShardKey& key : keys) link_.Report(RemovedReplica{key, Tier::kDisk});
  damage_.ForgetOnDisk(keys);
  warnings_.Set(DiskQuotaOf(job), "");  // it has room again, or the next write sets it
}

void DiskRetention::WarnOfQuarantine() {
  // If the queue is full, this check is dropped; the next one follows soon.
  static_cast<void>(background_.Post([this] {
    const uint64_t files = volume_.QuarantinedFiles();
    const std::string text = fmt::format(
        "quarantined files: {} in quarantine/ of the data directories, damaged or "
        "unknown; inspect them, then delete them",
        files);
    warnings_.Set("quarantine", files == 0 ? "" : text);
  }));
}

}  // namespace holdfast::agent
