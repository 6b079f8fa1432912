#include "agent/pipeline/save_service.h"

#include <fmt/format.h>

#include <chrono>
#include <utility>

#include "base/crash_point.h"
#include "base/log.h"
#include "storage/volume/quota_volume.h"

namespace holdfast::agent {
namespace {
constexpr size_t kWaitingSavesMax = 4;
// The coordinator accepts no larger steps.
constexpr uint64_t kStepMax = (uint64_t{1} << 63) - 2;
}  // namespace

void SaveService::Begin(Session& session, const BeginSaveMessage& message) {
  if (message.step > kStepMax) {
    return session.Reply(message.header.ticket,
                         InvalidArgumentError(fmt::format(
                             "step {}: the largest possible step is {}", message.step, kStepMax)));
  }
  WaitingSave save;
  save.ticket = message.header.ticket;
  save.step = message.step;
  save.image_bytes = message.image_bytes;
  save.skipping = message.skipping != 0;
  save.deadline = clock_.Now() + std::chrono::milliseconds(message.wait_ms);
  auto& waiting = session.saves.waiting;
  const bool may_wait =
      message.wait != 0 && message.wait_ms > 0 && waiting.size() < kWaitingSavesMax;
  if (waiting.empty() && TryBegin(session, save, /*last_chance=*/!may_wait)) return;
  if (may_wait) {
    waiting.push_back(save);
  } else {
    session.Reply(save.ticket, {ErrorCode::kResourceExhausted, "earlier saves wait for a slot"});
  }
}

Result<uint32_t> SaveService::Lease(Session& session, VersionId version, uint64_t image_bytes) {
  if (session.fenced) {
    return Fail(FencedError(
        fmt::format("a newer incarnation of {} has started; incarnation {} may not save",
                    session.job, session.incarnation->value)));
  }
  if (image_bytes == 0) return Fail(InvalidArgumentError("an image of 0 bytes cannot be saved"));
  std::vector<FreedSlot> freed;
  auto slot =
      session.pipeline->slots.saves().BeginSave(version, session.world, image_bytes, &freed);
  for (const FreedSlot& old : freed) {
    const ShardKey old_key{session.job, old.version, session.rank};
    link_.Report(RemovedReplica{old_key, Tier::kMemory});
    const Status why{ErrorCode::kAborted, "superseded: a newer version is written to disk"};
    if (old.disk_missed) link_.Report(FailedReplica{old_key, Tier::kDisk, why.message()});
    if (old.disk_superseded) session.Notify(NoticeKind::kFailed, old.version, Tier::kDisk, why);
  }
  return slot;
}

bool SaveService::TryBegin(Session& session, const WaitingSave& save, bool last_chance) {
  const VersionId version{*session.incarnation, Step{save.step}};
  const auto slot = Lease(session, version, save.image_bytes);
  const bool no_slot = !slot && slot.error().code() == ErrorCode::kResourceExhausted;
  // Without a free slot, the save waits for a commit as long as the trainer permits.
  if (no_slot && !last_chance) return false;
  if (slot) HOLDFAST_CRASH_POINT("agent.after_begin_save");
  if (no_slot) {
    session.saves.starved = true;
    if (save.skipping) {
      ReportNotSaved({session.job, version, session.rank},
                     "the trainer skipped it: no slot was free");
    }
  }
  ReplyMessage reply;
  if (slot) {
    reply.slot = *slot;
  } else {
    reply.code = static_cast<uint32_t>(slot.error().code());
    PutText(reply.text, slot.error().message());
  }
  reply.header.ticket = save.ticket;
  reply.incarnation = version.incarnation.value;
  reply.step = save.step;
  reply.image_bytes = save.image_bytes;
  session.SendMessage(reply);
  return true;
}

void SaveService::End(Session& session, const EndSaveMessage& message) {
  const VersionId version{*session.incarnation, Step{message.step}};
  RankSlots& slots = session.pipeline->slots;
  Status status;
  if (message.header.type == MessageType::kEndSave) {
    status = slots.saves().EndSave(message.slot, version);
  } else {
    const Status why(ErrorCode::kAborted, "the trainer abandoned the save");
    status = slots.saves().AbandonSave(message.slot, version, why);
    if (status.ok()) ReportNotSaved({session.job, version, session.rank}, why.message());
  }
  if (!status.ok()) session.Notify(NoticeKind::kFailed, version, Tier::kMemory, status);
  session.retry_due = true;
}

void SaveService::Retry(Session& session) {
  // Saves wait in order: a later one must not take the slot of an earlier one.
  Session::Saves& saves = session.saves;
  const Clock::TimePoint now = clock_.Now();
  while (session.state == Session::State::kReady && !saves.waiting.empty()) {
    const WaitingSave save = saves.waiting.front();
    if (!TryBegin(session, save, now >= save.deadline)) break;
    saves.waiting.pop_front();
  }
  if (session.state == Session::State::kReady && saves.starved && saves.waiting.empty() &&
      session.pipeline->slots.saves().HasRoom()) {
    saves.starved = false;
    session.Notify(NoticeKind::kSlotFree, {*session.incarnation, Step{}}, Tier::kMemory);
  }
}

void SaveService::GiveUpUnended(Session& session, const std::string& why) {
  for (VersionId version :
       session.pipeline->slots.saves().AbortUnended({ErrorCode::kAborted, why})) {
    ReportNotSaved({session.job, version, session.rank}, why);
  }
}

void SaveService::ReportNotSaved(const ShardKey& key, const std::string& why) {
  link_.Report(FailedReplica{key, Tier::kMemory, why});
  link_.Report(FailedReplica{key, Tier::kDisk, why});
}

// ---- from the ranks' threads ----

void SaveService::PostNotice(NoticeKind kind, const ShardKey& key, Tier tier, const Status& why) {
  loop_.Post([this, kind, key, tier, why] {
    Session* session = sessions_.FindReady(key.job, key.rank);
    if (session != nullptr) session->Notify(kind, key.version, tier, why);
  });
}

void SaveService::OnSealed(const ShardSeal& seal, std::vector<ReplicaSample> samples) {
  HOLDFAST_CRASH_POINT("agent.before_report_memory");
  StoredReplica report{seal.identity, Tier::kMemory, seal.digest(), seal.image_bytes, "",
                       seal.life};
  report.samples = std::move(samples);
  link_.Report(std::move(report));
  PostNotice(NoticeKind::kSealed, seal.identity.key(), Tier::kMemory, Status::Ok());
}

void SaveService::OnSaveFailed(const ShardKey& key, const Status& why) {
  // An aborted save was reported when it was given up.
  if (why.code() == ErrorCode::kAborted || why.code() == ErrorCode::kFenced ||
      why.code() == ErrorCode::kCancelled) {
    return;
  }
  Log(LogLevel::kWarn, "SaveFailed", {Kv("shard", ToString(key)), Kv("error", why.ToString())});
  ReportNotSaved(key, why.message());
  PostNotice(NoticeKind::kFailed, key, Tier::kMemory, why);
}

void SaveService::OnStored(const ShardSeal& seal) {
  warnings_.Set(kDiskWarning, "");
  warnings_.Set(DiskQuotaOf(seal.identity.job), "");
  HOLDFAST_CRASH_POINT("agent.before_report_disk");
  link_.Report(
      StoredReplica{seal.identity, Tier::kDisk, seal.digest(), seal.image_bytes, "", seal.life});
}

void SaveService::OnNotStored(const ShardKey& key, const Status& why) {
  link_.Report(FailedReplica{key, Tier::kDisk, why.message()});
  const bool full = why.code() == ErrorCode::kOutOfSpace;
  // The writes of other jobs do not end that a job has no room in its quota.
  const bool quota = full && why.message().starts_with(kDiskQuota);
  warnings_.Set(quota ? DiskQuotaOf(key.job) : kDiskWarning,
                fmt::format("{}: {}", full ? "disk full" : "disk failed", why.message()));
  PostNotice(NoticeKind::kFailed, key, Tier::kDisk, why);
}

void SaveService::OnSlotsChanged(const std::string& job, Rank rank) {
  loop_.Post([this, job, rank] {
    Session* session = sessions_.FindReady(job, rank);
    if (session != nullptr) session->retry_due = true;
  });
}

}  // namespace holdfast::agent
