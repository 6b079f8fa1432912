#include "agent/pipeline/parity_keeper.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "agent/chunks/decoded_chunks.h"
#include "agent/parity/builder.h"
#include "base/crash_point.h"
#include "base/log.h"
#include "storage/parity/parity_image.h"

namespace holdfast::agent {

ParityKeeper::ParityKeeper(const ParityTools& tools, std::string job)
    : tools_(tools),
      job_name_(std::move(job)),
      changed_(tools.ranks.peer_versions()),
      thread_([this] { Run(); }) {}

ParityKeeper::~ParityKeeper() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    if (current_) current_->cancellation->Cancel(CancelledError("the agent is stopping"));
  }
  changed_.Raise();
  thread_.join();
}

void ParityKeeper::SetJobState(const JobState& job) {
  {
    MutexLock lock(mutex_);
    job_ = job;
    if (current_ && IsObsolete(*current_)) {
      current_->cancellation->Cancel(
          AbortedError(ToString(current_->identity.version) + " no longer needs parity"));
    }
  }
  changed_.Raise();
}

void ParityKeeper::Post(std::function<void()> task) {
  {
    MutexLock lock(mutex_);
    tasks_.push_back(std::move(task));
  }
  changed_.Raise();
}

bool ParityKeeper::IsObsolete(const Work& work) const {
  const VersionId version = work.identity.version;
  const auto& aborted = job_->aborted;
  return !job_->group || version.incarnation != job_->incarnation ||
         version.step < job_->target_step[Tier::kPeer] ||
         std::find(aborted.begin(), aborted.end(), version) != aborted.end();
}

void ParityKeeper::Run() {
  while (std::optional<Work> work = Await()) {
    const Status status = Protect(*work);
    const ShardKey key = work->identity.key();
    if (status.ok()) {
      log_.CountMade();
    } else {
      if (const auto line = log_.CountNotMade(tools_.clock.Now())) {
        Log(LogLevel::kWarn, "ParityNotMade",
            {Kv("shard", ToString(key)), Kv("error", status.ToString()),
             Kv("not_made", line->not_made), Kv("made", line->made)});
      }
      tools_.link.Report(FailedReplica{key, Tier::kPeer, status.message()});
    }
    MutexLock lock(mutex_);
    done_ = key.version;
    current_.reset();
  }
}

std::optional<ParityKeeper::Work> ParityKeeper::Await() {
  for (;;) {
    // A change after this line ends the wait below.
    const uint64_t seen = changed_.count();
    {
      MutexLock lock(mutex_);
      if (stopping_) return std::nullopt;
    }
    if (RunTask()) continue;
    if (std::optional<Work> work = TakeWork()) return work;
    changed_.AwaitMore(seen);
  }
}

bool ParityKeeper::RunTask() {
  std::function<void()> task;
  {
    MutexLock lock(mutex_);
    if (tasks_.empty()) return false;
    task = std::move(tasks_.front());
    tasks_.pop_front();
  }
  task();
  return true;
}

std::optional<ParityKeeper::Work> ParityKeeper::TakeWork() {
  MutexLock lock(mutex_);
  const auto position = job_ && job_->group ? job_->group->PositionOf(tools_.node) : std::nullopt;
  if (!position) return std::nullopt;
  const PlanMember& self = job_->group->members()[*position];
  std::optional<Work> work;
  for (const PlanRank& rank : self.ranks) {
    const RankLease pipeline = tools_.ranks.Find(job_name_, rank.rank);
    const auto due = pipeline ? pipeline->slots.peers().NextForPeers() : std::nullopt;
    if (!due || (work && work->identity.version <= due->version)) continue;
    Work next{*job_->group, *position, *due, std::make_shared<Cancellation>()};
    next.identity.rank = ParityRank(self.number);
    if (!IsObsolete(next)) work = std::move(next);
  }
  // The ranks of the node may differ: one of them may lack the oldest version. Its parity is made
  // once, and newer versions wait until the target has passed it.
  if (!work || work->identity.version == done_) return std::nullopt;
  // Members that have not read their rows of the last version yet get Aborted.
  if (done_) {
    tools_.source.rows().Drop(job_name_, *done_, AbortedError("a newer version is protected"));
  }
  current_ = work;
  return work;
}

Status ParityKeeper::Protect(const Work& work) {
  const ShardIdentity& identity = work.identity;
  HOLDFAST_ASSIGN_OR_RETURN(const ParityImage image,
                            ParityImage::Make(work.plan, work.position, identity));
  auto memory = tools_.memory.ReserveParity(job_name_, identity.rank, image.image_bytes());
  tools_.warnings.Set(
      "parity/" + job_name_,
      memory ? "" : job_name_ + ": no memory for parity: " + memory.error().message());
  if (!memory) return memory.error();
  RankSlots& slots = (*memory)->slots;
  // The parity was built before a restart of the agent, and reported when the slot was adopted.
  if (const auto made = slots.pins().Pin(identity.version)) {
    slots.pins().Unpin(*made);
    return Status::Ok();
  }
  std::vector<FreedSlot> freed;
  const auto slot =
      slots.fills().LeaseToFill(identity.version, identity.world, image.image_bytes(), &freed);
  for (const FreedSlot& old : freed) {
    tools_.link.Report(RemovedReplica{{job_name_, old.version, identity.rank}, Tier::kMemory});
  }
  if (!slot) return slot.error();
  const GroupReach reach{tools_.node, tools_.source, tools_.transport, tools_.clock};
  const GroupAccess access = reach.To(work.plan, job_name_, identity.version,
                                      identity.version.incarnation, *work.cancellation);
  const Clock::TimePoint deadline =
      tools_.clock.Now() + std::chrono::milliseconds(tools_.build_timeout_ms);
  auto seal = BuildParity(access, identity.world, tools_.source.rows(),
                          (*memory)->segment.slot(*slot), tools_.clock, deadline);
  Status status = seal ? Status::Ok() : seal.error();
  if (seal) seal->life = slots.life();
  HOLDFAST_CRASH_POINT("agent.parity_built");
  if (status.ok()) status = slots.fills().SealBuilt(*slot, *seal);
  if (!status.ok()) {
    slots.fills().DropFilled(*slot);
    return status;
  }
  Log(LogLevel::kDebug, "ParityMade", {Kv("shard", ToString(identity.key()))});
  HOLDFAST_CRASH_POINT("agent.before_report_peer");
  tools_.link.Report(
      StoredReplica{identity, Tier::kMemory, seal->digest(), seal->image_bytes, "", seal->life});
  return Status::Ok();
}

}  // namespace holdfast::agent
