#include "agent/pipeline/persister.h"

#include <fmt/format.h>

#include "base/log.h"

namespace holdfast::agent {

Persister::Persister(DiskSlots& slots, Volume& volume, RankEvents& events)
    : slots_(slots), volume_(volume), events_(events), thread_([this] { Run(); }) {}

Persister::~Persister() { thread_.join(); }

void Persister::Run() {
  const SegmentOwner& owner = slots_.segment().owner();
  while (std::optional<SaveJob> job = slots_.TakeDisk()) {
    const bool given_up = !Write(*job);
    slots_.FinishDisk(*job, given_up);
    events_.OnSlotsChanged(owner.job, owner.rank);
  }
}

bool Persister::Write(const SaveJob& job) {
  const ShardKey key = job.identity.key();
  Result<ShardSeal> seal = WriteOnce(job);
  // Aborted: the version was removed during the write, by a directive of the coordinator.
  const auto given_up = [](const Status& status) {
    return status.code() == ErrorCode::kCancelled || status.code() == ErrorCode::kAborted;
  };
  if (!seal && seal.error().code() != ErrorCode::kOutOfSpace && !given_up(seal.error())) {
    Log(LogLevel::kWarn, "ShardWriteRepeated",
        {Kv("shard", ToString(key)), Kv("error", seal.error().ToString())});
    seal = WriteOnce(job);
  }
  if (seal) {
    Log(LogLevel::kDebug, "ShardStored", {Kv("shard", ToString(key))});
    events_.OnStored(*seal);
  } else if (!given_up(seal.error())) {
    Log(LogLevel::kWarn, "ShardNotStored",
        {Kv("shard", ToString(key)), Kv("error", seal.error().ToString())});
    events_.OnNotStored(key, seal.error());
  }
  return seal || !given_up(seal.error());
}

Result<ShardSeal> Persister::WriteOnce(const SaveJob& job) {
  const std::span<const std::byte> image = slots_.segment().slot(job.slot).first(job.image_bytes);
  auto writer = volume_.CreateShard(job.identity, image);
  if (!writer && writer.error().code() == ErrorCode::kAlreadyExists) return AlreadyStored(job);
  if (!writer) return Fail(writer.error());
  uint64_t seen = 0;
  for (;;) {
    const DiskSlots::DiskFollow follow = slots_.AwaitChecksummed(job.slot, seen);
    if (follow.given_up) return Fail({ErrorCode::kCancelled, "the save was given up"});
    if (follow.checksummed > seen) {
      HOLDFAST_RETURN_IF_ERROR((*writer)->Advance(follow.checksummed));
      seen = follow.checksummed;
    }
    if (follow.sealed) break;
  }
  HOLDFAST_ASSIGN_OR_RETURN(ShardSeal seal, slots_.segment().seal(job.slot));
  HOLDFAST_RETURN_IF_ERROR((*writer)->Publish(seal));
  return seal;
}

Result<ShardSeal> Persister::AwaitSeal(const SaveJob& job) {
  for (uint64_t seen = 0;;) {
    const DiskSlots::DiskFollow follow = slots_.AwaitChecksummed(job.slot, seen);
    if (follow.given_up) return Fail({ErrorCode::kCancelled, "the save was given up"});
    if (follow.sealed) return slots_.segment().seal(job.slot);
    seen = follow.checksummed;
  }
}

// Handles a shard that is on disk already: an earlier agent was killed after it published the shard
// and before it reported the shard.
Result<ShardSeal> Persister::AlreadyStored(const SaveJob& job) {
  HOLDFAST_ASSIGN_OR_RETURN(ShardSeal seal, AwaitSeal(job));
  HOLDFAST_ASSIGN_OR_RETURN(const ShardSeal stored, volume_.ReadSeal(job.identity.key()));
  if (stored.digest() == seal.digest()) return seal;
  if (stored.life != seal.life && stored.life.value != 0) {
    // The replica belongs to another life of the coordinator's store: keep it in quarantine. The
    // caller then repeats the write.
    HOLDFAST_RETURN_IF_ERROR(volume_.Quarantine(
        job.identity.key(), "of life " + ToString(stored.life) + " of the store"));
  }
  return Fail(
      {ErrorCode::kDataLoss, fmt::format("{} is on disk already, with other bytes than in memory",
                                         ToString(job.identity.key()))});
}

}  // namespace holdfast::agent
