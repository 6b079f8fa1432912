#include "agent/pipeline/shard_preparer.h"

#include <fmt/format.h>

#include <chrono>
#include <optional>

#include "agent/pipeline/restore.h"
#include "agent/pipeline/tier_copy.h"
#include "base/log.h"
#include "storage/parity/parity_image.h"

namespace holdfast::agent {
namespace {
constexpr size_t kParkedMax = 4096;
constexpr uint32_t kRepairs = 2;
}  // namespace

ShardPreparer::ShardPreparer(const PreparerParts& parts)
    : parts_(parts),
      repairs_(kRepairs, parts.tools.clock),
      copies_(parts.copies_at_once, parts.tools.clock) {}

void ShardPreparer::Apply(PrepareShard prepare) {
  const ShardKey key = prepare.identity.key();
  if (auto running = running_.find({key, prepare.into}); running != running_.end()) {
    running->second.push_back(std::move(prepare));
    return;
  }
  // A shard can go to a tier that is stored without memory on this node.
  if (!IsStored(prepare.into) && IsParity(key.rank)) return StartParity(std::move(prepare));
  RankLease rank = parts_.ranks.Find(key.job, key.rank);
  if (rank || IsStored(prepare.into)) return Start(std::move(prepare), std::move(rank));
  if (parked_.size() >= kParkedMax) parked_.erase(parked_.begin());
  parked_.push_back(
      {std::move(prepare), parts_.tools.clock.Now() + std::chrono::milliseconds(parts_.wait_ms)});
}

void ShardPreparer::Start(PrepareShard prepare, RankLease rank) {
  const ShardKey key = prepare.identity.key();
  const Tier into = prepare.into;
  const JobState* job = parts_.jobs.Find(key.job);
  // Peers refuse older incarnations, so that a missing job state does no harm.
  const Incarnation version = prepare.identity.version.incarnation;
  PrepareTask task{std::move(prepare), job == nullptr ? version : job->incarnation};
  std::vector<PrepareShard>& waiting = running_[{key, into}];
  waiting.push_back(task);
  // The coordinator may have repeated a directive that was parked. Each restore of the same shard
  // would fill another slot, until none is left for saves.
  if (waiting.size() > 1) return;
  // Restores to disk take long and are not urgent: they must not delay restores to memory.
  const bool shared = IsShared(into) || IsShared(task.tier);
  Executor& executor = shared ? copies_ : into == Tier::kDisk ? repairs_ : parts_.tools.workers;
  const bool posted = executor.Post([this, task = std::move(task), rank = std::move(rank)] {
    const Status status = Run(task, rank.get());
    parts_.loop.Post(
        [this, key = task.identity.key(), into = task.into, status] { Finish(key, into, status); });
  });
  if (!posted) Finish(key, into, UnavailableError("the agent is overloaded or stopping"));
}

void ShardPreparer::StartParity(PrepareShard prepare) {
  const ShardKey key = prepare.identity.key();
  const Tier into = prepare.into;
  const auto refuse = [&](const Status& why) { Report(prepare, why); };
  const auto position =
      prepare.group ? prepare.group->PositionOf(parts_.tools.node()) : std::optional<uint32_t>();
  if (!position) {
    return refuse(InvalidArgumentError(
        fmt::format("the directive names no parity group with node {}", parts_.tools.node())));
  }
  const auto image = ParityImage::Make(*prepare.group, *position, prepare.identity);
  if (!image) return refuse(image.error());
  const JobState* known = parts_.jobs.Find(key.job);
  const Incarnation current = known == nullptr ? Incarnation{} : known->incarnation;
  running_[{key, into}].push_back(prepare);
  auto task = [this, prepare = PrepareTask{std::move(prepare), current},
               bytes = image->image_bytes()] {
    const ShardKey shard = prepare.identity.key();
    auto rank = parts_.memory.ReserveParity(shard.job, shard.rank, bytes);
    Status status = rank ? Status::Ok() : rank.error();
    if (status.ok()) status = Run(prepare, rank->get());
    parts_.loop.Post([this, shard, into = prepare.into, status] { Finish(shard, into, status); });
  };
  // The job's parity keeper runs the task between two versions, since both need the free slot.
  if (parts_.parity.Post(key.job, task) || parts_.tools.workers.Post(task)) return;
  Finish(key, into, UnavailableError("the agent is overloaded or stopping"));
}

Status ShardPreparer::Run(const PrepareTask& prepare, RankPipeline* rank) {
  if (IsShared(prepare.into)) {
    return CopyToTier(parts_.tools, prepare, [this] { return copies_.stopping(); });
  }
  RankSlots* slots = rank == nullptr ? nullptr : &rank->slots;
  return prepare.into == Tier::kDisk ? BringToDisk(parts_.tools, slots, prepare)
                                     : BringIntoMemory(parts_.tools, *slots, prepare);
}

void ShardPreparer::Report(const PrepareShard& prepare, const Status& outcome) {
  if (prepare.request) parts_.tools.link.Report(Prepared{*prepare.request, outcome});
}

void ShardPreparer::Finish(const ShardKey& key, Tier into, const Status& status) {
  auto waiting = running_.extract({key, into});
  if (waiting.empty()) return;
  Log(status.ok() ? LogLevel::kInfo : LogLevel::kWarn, "ShardPrepared",
      {Kv("shard", ToString(key)), Kv("tier", ToString(into)), Kv("outcome", status.ToString())});
  std::vector<PrepareShard>& prepares = waiting.mapped();
  for (size_t i = 0; i < prepares.size(); ++i) {
    // The failure is that of the source of the first directive. The others may name other sources:
    // with this failure, the coordinator would give up replicas that were never read.
    if (i > 0 && !status.ok()) {
      Apply(std::move(prepares[i]));
    } else {
      Report(prepares[i], status);
    }
  }
  if (Session* session = parts_.sessions.FindReady(key.job, key.rank)) {
    if (status.ok() && into == Tier::kMemory) session->restores.prepared = key.version;
    session->retry_due = true;
  }
}

void ShardPreparer::StartParked(const std::string& job, Rank rank, const RankLease& memory) {
  std::vector<Parked> parked;
  parked.swap(parked_);
  for (Parked& one : parked) {
    const ShardIdentity& identity = one.prepare.identity;
    if (identity.job == job && identity.rank == rank) {
      Start(std::move(one.prepare), memory);
    } else {
      parked_.push_back(std::move(one));
    }
  }
}

void ShardPreparer::ExpireParked() {
  const Clock::TimePoint now = parts_.tools.clock.Now();
  std::vector<Parked> parked;
  parked.swap(parked_);
  for (Parked& one : parked) {
    if (now < one.deadline) {
      parked_.push_back(std::move(one));
      continue;
    }
    // The coordinator waits for the outcome of each request.
    const ShardIdentity& identity = one.prepare.identity;
    Report(one.prepare,
           UnavailableError(fmt::format("rank {} of {} has not connected to node {}",
                                        identity.rank.value, identity.job, parts_.tools.node())));
  }
}

}  // namespace holdfast::agent
