#include "agent/pipeline/parity_keeper.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "agent/parity/builder.h"
#include "agent/pipeline/node.h"
#include "storage/base/crash_point.h"
#include "storage/base/log.h"
#include "storage/parity/parity_image.h"

namespace holdfast::agent {
namespace {
// Interval at which a waiting keeper checks whether a rank has begun to save an eligible version.
// It is far shorter than the steps of any job that needs protection.
constexpr std::chrono::milliseconds kPollInterval(5);
// The interval while the node has no trainers of the job. A new trainer takes longer than this to
// reach its first save.
constexpr std::chrono::milliseconds kIdlePollInterval(250);
}  // namespace

JobState ForParity(JobState job) {
  job.for_parity = true;
  job.memory_committed = job.peer_committed;
  job.group.reset();
  return job;
}

ParityKeeper::ParityKeeper(ParityTools tools, std::string job)
    : tools_(std::move(tools)), job_name_(std::move(job)), thread_([this] { Run(); }) {}

ParityKeeper::~ParityKeeper() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    if (current_) current_->cancellation->Cancel(CancelledError("the agent is stopping"));
    changed_.NotifyAll();
  }
  thread_.join();
}

void ParityKeeper::SetJobState(const JobState& job) {
  MutexLock lock(mutex_);
  job_ = job;
  if (current_ && IsObsolete(*current_)) {
    current_->cancellation->Cancel(
        AbortedError(ToString(current_->identity.version) + " no longer needs parity"));
  }
  changed_.NotifyAll();
}

void ParityKeeper::Post(std::function<void()> task) {
  MutexLock lock(mutex_);
  tasks_.push_back(std::move(task));
  changed_.NotifyAll();
}

bool ParityKeeper::IsObsolete(const Work& work) const {
  const VersionId version = work.identity.version;
  const auto& aborted = job_->aborted;
  return !job_->group || version.incarnation != job_->incarnation ||
         version.step < job_->peer_target_step ||
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
  MutexLock lock(mutex_);
  for (;;) {
    if (stopping_) return std::nullopt;
    if (!tasks_.empty()) {
      const std::function<void()> task = std::move(tasks_.front());
      tasks_.pop_front();
      mutex_.Unlock();
      task();
      mutex_.Lock();
      continue;
    }
    const auto position = job_ && job_->group ? job_->group->PositionOf(tools_.node) : std::nullopt;
    if (!position) {
      changed_.Wait(mutex_);
      continue;
    }
    const PlanMember& self = job_->group->members()[*position];
    bool trained_here = false;
    for (const PlanRank& rank : self.ranks) {
      const std::shared_ptr<RankPipeline> pipeline = tools_.find_rank(job_name_, rank.rank);
      trained_here = trained_here || (pipeline != nullptr && pipeline->connected.load());
      const auto due = pipeline == nullptr ? std::nullopt : pipeline->slots.NextForPeers();
      if (!due || due->version == done_) continue;
      Work work{*job_->group, *position, *due, std::make_shared<Cancellation>()};
      work.identity.rank = ParityRank(self.number);
      if (IsObsolete(work)) continue;
      // Members that have not read their rows of the last version yet get Aborted.
      if (done_) {
        tools_.source.rows().Drop(job_name_, *done_, AbortedError("a newer version is protected"));
      }
      current_ = work;
      return work;
    }
    changed_.WaitFor(mutex_, trained_here ? kPollInterval : kIdlePollInterval);
  }
}

Status ParityKeeper::Protect(const Work& work) {
  const ShardIdentity& identity = work.identity;
  HOLDFAST_ASSIGN_OR_RETURN(const ParityImage image,
                            ParityImage::Make(work.plan, work.position, identity));
  auto memory = tools_.reserve(job_name_, identity.rank, image.image_bytes());
  tools_.warn(memory ? "" : "no memory for parity: " + memory.error().message());
  if (!memory) return memory.error();
  RankSlots& slots = (*memory)->slots;
  {
    MutexLock lock(mutex_);
    slots.SetJobState(ForParity(*job_));
  }
  // The parity was built before a restart of the agent, and reported when the slot was adopted.
  if (const auto made = slots.Pin(identity.version)) {
    slots.Unpin(*made);
    return Status::Ok();
  }
  std::vector<FreedSlot> freed;
  const auto slot =
      slots.LeaseForRestore(identity.version, identity.world, image.image_bytes(), &freed);
  for (const FreedSlot& old : freed) {
    tools_.link.Report(RemovedReplica{{job_name_, old.version, identity.rank}, Tier::kMemory});
  }
  if (!slot) return slot.error();
  const GroupAccess access{work.plan,
                           tools_.node,
                           job_name_,
                           identity.version,
                           identity.version.incarnation,
                           tools_.source,
                           tools_.transport,
                           *work.cancellation};
  const Clock::TimePoint deadline =
      Clock::Real().Now() + std::chrono::milliseconds(tools_.build_timeout_ms);
  auto seal = BuildParity(access, identity.world, tools_.source.rows(),
                          (*memory)->segment.slot(*slot), tools_.clock, deadline);
  Status status = seal ? Status::Ok() : seal.error();
  if (seal) seal->life = slots.life();
  HOLDFAST_CRASH_POINT("agent.parity_built");
  if (status.ok()) status = slots.SealBuilt(*slot, *seal);
  if (!status.ok()) {
    slots.DropRestore(*slot);
    return status;
  }
  Log(LogLevel::kDebug, "ParityMade", {Kv("shard", ToString(identity.key()))});
  HOLDFAST_CRASH_POINT("agent.before_report_peer");
  tools_.link.Report(
      StoredReplica{identity, Tier::kMemory, seal->digest(), seal->image_bytes, "", seal->life});
  return Status::Ok();
}

}  // namespace holdfast::agent
