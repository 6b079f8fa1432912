#include "agent/pipeline/adoption.h"

#include <algorithm>
#include <chrono>
#include <vector>

#include "agent/pipeline/restore.h"
#include "base/log.h"

namespace holdfast::agent {

void Adoption::Start() {
  for (const StoredShard& shard : volume_.recovery().shards) {
    link_.Report(StoredReplica{shard.identity, Tier::kDisk, shard.digest, shard.image_bytes, "",
                               shard.life});
  }
  struct Found {
    VersionId version;
    RankLease rank;
  };
  std::vector<Found> found;
  for (Segment* segment : arena_.segments()) {
    const RankLease rank = ranks_.Add(*segment);
    for (const auto& [version, verified] : rank->slots.view().SealedVersions()) {
      found.push_back({version, rank});
    }
  }
  std::stable_sort(found.begin(), found.end(),
                   [](const Found& a, const Found& b) { return a.version > b.version; });
  {
    MutexLock lock(mutex_);
    checks_left_ = static_cast<uint32_t>(found.size());
  }
  for (const Found& one : found) {
    const bool posted = workers_.Post([this, one] { Verify(one.rank, one.version); });
    if (!posted) Verify(one.rank, one.version);
  }
}

void Adoption::Verify(const RankLease& rank, VersionId version) {
  const SegmentOwner& owner = rank->segment.owner();
  const ShardKey key{owner.job, version, owner.rank};
  auto slot = rank->slots.pins().Pin(version, SlotPins::Find::kAny);
  if (slot) {
    Status status = VerifySlot(rank->segment, *slot);
    auto seal = rank->segment.seal(*slot);
    if (status.ok() && seal) {
      auto stored = volume_.ReadSeal(key);
      rank->slots.pins().Verified(*slot, stored && stored->digest() == seal->digest());
      link_.Report(StoredReplica{seal->identity, Tier::kMemory, seal->digest(), seal->image_bytes,
                                 "", seal->life});
      Log(LogLevel::kInfo, "SlotAdopted",
          {Kv("shard", ToString(key)), Kv("bytes", seal->image_bytes)});
    } else {
      damage_.OnDamaged(key, Tier::kMemory, status.ok() ? seal.error() : status);
    }
    rank->slots.pins().Unpin(*slot);
    ranks_.NotifySlotsChanged(owner.job, owner.rank);
  }
  MutexLock lock(mutex_);
  --checks_left_;
  changed_.NotifyAll();
}

bool Adoption::Await(int64_t timeout_ms) {
  const Clock::TimePoint deadline = clock_.Now() + std::chrono::milliseconds(timeout_ms);
  MutexLock lock(mutex_);
  while (checks_left_ > 0) {
    const auto left = deadline - clock_.Now();
    if (left <= Clock::Duration::zero()) return false;
    changed_.WaitFor(mutex_, left);
  }
  return true;
}

}  // namespace holdfast::agent
