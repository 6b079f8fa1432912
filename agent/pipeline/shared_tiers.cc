#include "agent/pipeline/shared_tiers.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <set>
#include <vector>

#include "base/log.h"

namespace holdfast::agent {
namespace {
// A job is listed this long after its rank 0 appears, and then in intervals.
constexpr std::chrono::seconds kListAfter(20);
constexpr std::chrono::minutes kListPause(10);
constexpr int64_t kHangMs = 60'000;
}  // namespace

void SharedTiers::SetLife(LifeId life) {
  if (life.value == 0) return;  // not known yet
  for (const TierTraits& traits : kTierTable) {
    if (IsShared(traits.tier) && stores_[traits.tier] != nullptr) {
      stores_[traits.tier]->SetLife(life);
    }
  }
}

void SharedTiers::RemoveVersion(Tier tier, const std::string& job, VersionId version) {
  if (stores_[tier] == nullptr) return;
  const bool posted = thread_.Post([this, tier, job, version] { Remove(tier, job, version); });
  if (!posted) Log(LogLevel::kWarn, "RemovalDropped", {Kv("version", ToString(version))});
}

void SharedTiers::Remove(Tier tier, const std::string& job, VersionId version) {
  const Status status = stores_[tier]->RemoveVersion(job, version);
  if (status.ok() || status.code() == ErrorCode::kNotFound) {
    Log(LogLevel::kDebug, "VersionRemoved",
        {Kv("job", job), Kv("version", ToString(version)), Kv("tier", ToString(tier))});
    return;
  }
  Log(LogLevel::kWarn, "VersionNotRemoved",
      {Kv("job", job), Kv("version", ToString(version)), Kv("tier", ToString(tier)),
       Kv("error", status.ToString())});
}

void SharedTiers::RemoveJob(const std::string& job, Incarnation upto) {
  for (const TierTraits& traits : kTierTable) {
    const Tier tier = traits.tier;
    if (!IsShared(tier) || stores_[tier] == nullptr) continue;
    const bool posted = thread_.Post([this, tier, job, upto] {
      const auto shards = stores_[tier]->ListJob(job);
      if (!shards) {
        return Log(
            LogLevel::kWarn, "TierNotListed",
            {Kv("job", job), Kv("tier", ToString(tier)), Kv("error", shards.error().ToString())});
      }
      std::set<VersionId> versions;
      for (const StoredShard& shard : *shards) {
        if (shard.identity.version.incarnation <= upto) versions.insert(shard.identity.version);
      }
      for (VersionId version : versions) Remove(tier, job, version);
    });
    if (!posted) Log(LogLevel::kWarn, "RemovalDropped", {Kv("job", job)});
  }
}

void SharedTiers::ListIfDue(const std::string& job) {
  const Clock::TimePoint now = clock_.Now();
  const auto [known, added] = next_listing_.try_emplace(job, now + kListAfter);
  if (now < known->second) return;
  known->second = now + kListPause;
  for (const TierTraits& traits : kTierTable) {
    const Tier tier = traits.tier;
    if (!IsShared(tier) || stores_[tier] == nullptr) continue;
    // A listing that is dropped is repeated after the pause.
    static_cast<void>(thread_.Post([this, tier, job] { List(tier, job); }));
  }
}

void SharedTiers::List(Tier tier, const std::string& job) {
  const auto shards = stores_[tier]->ListJob(job);
  if (!shards) {
    Log(LogLevel::kWarn, "TierNotListed",
        {Kv("job", job), Kv("tier", ToString(tier)), Kv("error", shards.error().ToString())});
    return;
  }
  for (const StoredShard& shard : *shards) {
    link_.Report(
        StoredReplica{shard.identity, tier, shard.digest, shard.image_bytes, "", shard.life});
  }
}

void SharedTiers::WarnOfHang(int64_t oldest_copy_ms) {
  const int64_t oldest_ms = std::max(oldest_copy_ms, thread_.OldestTaskMs());
  warnings_.Set("shared", oldest_ms < kHangMs
                              ? ""
                              : fmt::format("a shared tier has not answered for {} s: check the "
                                            "file system of remote.url",
                                            oldest_ms / 60'000 * 60));
}

}  // namespace holdfast::agent
