#include "agent/pipeline/restore_service.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <utility>

namespace holdfast::agent {
namespace {
constexpr uint64_t kRestoreTimeoutMaxMs = 3'600'000;
// How long after the restore decision a trainer's restore waits for the shard to be in memory.
constexpr std::chrono::seconds kRestoreGrace(30);
// Pause before a request is repeated after the coordinator could not be reached.
constexpr std::chrono::milliseconds kRequestRetryPause(200);
}  // namespace

void RestoreService::Find(Session& session, const FindRestoreMessage& message) {
  const uint64_t ticket = message.header.ticket;
  if (session.restores.pending || session.readers.waiting || !session.restores.waiting.empty()) {
    return session.Reply(ticket,
                         FailedPreconditionError(
                             "an earlier FindRestore or OpenReader has no reply yet: wait for it"));
  }
  PendingRestore pending;
  pending.ticket = ticket;
  pending.request.job = session.job;
  pending.request.incarnation = *session.incarnation;
  pending.request.rank = session.rank;
  pending.type = message.header.type;
  pending.request.reshard = pending.type != MessageType::kFindRestore;
  if (message.wanted_incarnation != 0) {
    pending.request.wanted =
        VersionId{Incarnation{message.wanted_incarnation}, Step{message.wanted_step}};
  }
  const auto timeout = std::clamp<uint64_t>(message.timeout_ms, 1, kRestoreTimeoutMaxMs);
  pending.deadline = tools_.clock.Now() + std::chrono::milliseconds(timeout);
  session.restores.pending = std::move(pending);
  Request(session);
}

void RestoreService::Request(Session& session) {
  PendingRestore& pending = *session.restores.pending;
  const auto left =
      std::chrono::ceil<std::chrono::milliseconds>(pending.deadline - tools_.clock.Now());
  pending.request.timeout_ms = std::max<int64_t>(1, left.count());
  pending.under_way = true;
  tools_.link.DecideRestore(pending.request,
                            [this, id = session.id()](const Result<RestoreDecision>& decision) {
                              loop_.Post([this, id, decision] { OnDecided(id, decision); });
                            });
}

void RestoreService::OnDecided(uint64_t session_id, const Result<RestoreDecision>& decision) {
  Session* session = sessions_.FindReady(session_id);
  if (session == nullptr) return;
  PendingRestore& pending = *session->restores.pending;
  if (!decision && decision.error().code() == ErrorCode::kUnavailable &&
      tools_.clock.Now() + kRequestRetryPause < pending.deadline) {
    pending.under_way = false;
    pending.retry_at = tools_.clock.Now() + kRequestRetryPause;
    return;
  }
  const PendingRestore decided = std::move(pending);
  session->restores.pending.reset();
  if (!decision) return session->Reply(decided.ticket, decision.error());
  if (decided.request.reshard) {
    return readers_.Open(*session, {.ticket = decided.ticket,
                                    .all_shards = decided.type == MessageType::kOpenReader,
                                    .decision = *decision,
                                    .deadline = decided.deadline});
  }
  WaitingRestore restore{decided.ticket, *decision, {}};
  if (!TryAnswer(*session, restore)) AwaitShard(*session, restore, decided.deadline);
}

void RestoreService::AwaitShard(Session& session, WaitingRestore restore,
                                Clock::TimePoint request_deadline) {
  const Clock::TimePoint now = tools_.clock.Now();
  restore.deadline =
      std::max(now + kRequestRetryPause, std::min(now + kRestoreGrace, request_deadline));
  session.restores.waiting.push_back(restore);
  // The version was decided earlier and its slot has been freed since: the disk may still have it,
  // or a shared tier.
  PrepareShard prepare;
  prepare.identity = {session.job, restore.decision.version, session.rank, session.world};
  prepare.tier = Tier::kDisk;
  prepare.source_node = tools_.node();
  const ShardKey key = prepare.identity.key();
  if (preparer_.IsPreparing(key, Tier::kMemory)) return;
  const auto seal = tools_.volume.ReadSeal(key);
  const bool on_disk = seal && seal->identity == prepare.identity;
  if (!on_disk) prepare.tier = restore.decision.tier;
  if (on_disk || IsShared(prepare.tier)) preparer_.Start(std::move(prepare), session.pipeline);
}

bool RestoreService::TryAnswer(Session& session, const WaitingRestore& restore) {
  RankSlots& slots = session.pipeline->slots;
  const auto slot = slots.pins().Pin(restore.decision.version);
  if (!slot) return false;
  std::vector<uint32_t>& pins = session.restores.pins;
  if (std::find(pins.begin(), pins.end(), *slot) != pins.end()) {
    slots.pins().Unpin(*slot);
  } else {
    pins.push_back(*slot);
  }
  ReplyMessage reply;
  reply.header.ticket = restore.ticket;
  reply.slot = *slot;
  reply.incarnation = restore.decision.version.incarnation.value;
  reply.step = restore.decision.version.step.value;
  reply.image_bytes = session.pipeline->segment.record(*slot).image_bytes;
  reply.tier = static_cast<uint32_t>(restore.decision.tier);
  session.SendMessage(reply);
  return true;
}

void RestoreService::End(Session& session, const EndSaveMessage& message) {
  std::vector<uint32_t>& pins = session.restores.pins;
  auto pin = std::find(pins.begin(), pins.end(), message.slot);
  if (pin == pins.end()) {
    return session.Notify(
        NoticeKind::kFailed, {*session.incarnation, Step{message.step}}, Tier::kMemory,
        FailedPreconditionError(fmt::format("slot {} is not being restored from", message.slot)));
  }
  pins.erase(pin);
  session.pipeline->slots.pins().Unpin(message.slot);
  session.retry_due = true;
}

void RestoreService::Retry(Session& session) {
  Session::Restores& restores = session.restores;
  const Clock::TimePoint now = tools_.clock.Now();
  if (restores.pending && !restores.pending->under_way && now >= restores.pending->retry_at) {
    Request(session);
  }
  std::erase_if(restores.waiting, [&](const WaitingRestore& restore) {
    if (TryAnswer(session, restore)) return true;
    if (now < restore.deadline) return false;
    session.Reply(restore.ticket,
                  UnavailableError(fmt::format(
                      "version {} is decided, but not in this node's memory yet; try again",
                      ToString(restore.decision.version))));
    return true;
  });
}

void RestoreService::UnpinAll(Session& session) {
  for (uint32_t slot : session.restores.pins) session.pipeline->slots.pins().Unpin(slot);
  session.restores.pins.clear();
}

}  // namespace holdfast::agent
