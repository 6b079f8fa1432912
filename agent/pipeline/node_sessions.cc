#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "agent/pipeline/node.h"
#include "agent/pipeline/trainer_record.h"
#include "storage/base/config.h"
#include "storage/base/crash_point.h"
#include "storage/base/job_name.h"
#include "storage/base/log.h"
#include "storage/base/process.h"

// Handles the packets of trainers. Every number in a packet is checked here or where it is used.

namespace holdfast::agent {
namespace {

constexpr uint32_t kSlotsMin = 2;
constexpr size_t kWaitingSavesMax = 4;
constexpr size_t kJoinedMax = 256;
constexpr uint64_t kRestoreTimeoutMaxMs = 3'600'000;
// How long after the restore decision a trainer's restore waits for the shard to be in memory.
constexpr std::chrono::seconds kRestoreGrace(30);

// Interval of the progress notices while memory is being reserved. Each restarts the trainer's
// timeout.
constexpr std::chrono::milliseconds kProgressInterval(1000);

// Pause before a request is repeated after the coordinator could not be reached.
constexpr std::chrono::milliseconds kRequestRetryPause(200);
// The coordinator accepts no larger steps.
constexpr uint64_t kStepMax = (uint64_t{1} << 63) - 2;

template <typename Message>
Message Decode(std::span<const std::byte> packet) {
  Message message;
  std::memcpy(&message, packet.data(), sizeof(message));
  return message;
}

Status ValidateRunId(std::string_view run_id) {
  const bool printable =
      std::all_of(run_id.begin(), run_id.end(), [](char c) { return c > 0x20 && c < 0x7f; });
  if (!run_id.empty() && printable) return Status::Ok();
  return Status(ErrorCode::kInvalidArgument,
                "the run ID must be 1 to 128 printable characters without spaces, and the same for "
                "all ranks of one start of the job (HOLDFAST_RUN_ID)");
}

}  // namespace

void Node::HandlePacket(Session& session, std::span<const std::byte> packet) {
  auto header = CheckPacket(packet);
  if (!header) {
    Refuse(session, header.error());
    return;
  }
  // Handlers rely on the identity that the Hello establishes.
  const bool is_hello = header->type == MessageType::kHello;
  if (is_hello != (session.state == Session::State::kHello)) {
    Refuse(session, {ErrorCode::kInvalidArgument,
                     fmt::format("{} is out of order: the first packet, and no other, must be "
                                 "Hello",
                                 NameOf(header->type))});
    return;
  }
  switch (header->type) {
    case MessageType::kHello:
      return HandleHello(session, Decode<HelloMessage>(packet));
    case MessageType::kBeginSave:
      return HandleBeginSave(session, Decode<BeginSaveMessage>(packet));
    case MessageType::kEndSave:
    case MessageType::kAbandonSave:
      return HandleEndSave(session, Decode<EndSaveMessage>(packet));
    case MessageType::kFindRestore:
    case MessageType::kOpenReader:
      return HandleFindRestore(session, Decode<FindRestoreMessage>(packet));
    case MessageType::kReadRange:
      return HandleReadRange(session, Decode<ReadRangeMessage>(packet));
    case MessageType::kCloseReader:
      return CloseReader(session, Decode<CloseReaderMessage>(packet).reader);
    case MessageType::kWantTier:
      return HandleWantTier(session, Decode<EndSaveMessage>(packet));
    case MessageType::kEndRestore:
      return HandleEndRestore(session, Decode<EndSaveMessage>(packet));
    case MessageType::kGoodbye:
      session.goodbye = true;
      return EndSession(session, "goodbye");
    case MessageType::kWelcome:
    case MessageType::kReply:
    case MessageType::kNotice:
      return Refuse(session, {ErrorCode::kInvalidArgument,
                              fmt::format("only the agent sends {}", NameOf(header->type))});
  }
}

// ---- joining ----

void Node::Refuse(Session& session, const Status& status) {
  Log(LogLevel::kWarn, "TrainerRefused",
      {Kv("pid", session.peer().pid), Kv("uid", session.peer().uid), Kv("job", session.job),
       Kv("error", status.ToString())});
  Reply(session, 0, status);
  EndSession(session, status.message());
}

Status Node::CheckHello(Session& session, const HelloMessage& hello) {
  if (session.peer().pid <= 0) {
    return Status(ErrorCode::kFailedPrecondition,
                  fmt::format("the agent of node {} runs in another PID namespace and cannot see "
                              "this process: run the agent in the host's (Kubernetes: hostPID: "
                              "true; Docker and Podman: --pid=host), or both in one container",
                              options_.node));
  }
  if (hello.protocol != kProtocolVersion) {
    return Status(ErrorCode::kUnsupported,
                  fmt::format("the trainer uses protocol {}, this agent {}: install the same "
                              "Holdfast version for both",
                              hello.protocol, kProtocolVersion));
  }
  const std::string job = GetText(hello.job);
  const std::string run_id = GetText(hello.run_id);
  HOLDFAST_RETURN_IF_ERROR(ValidateJobName(job));
  HOLDFAST_RETURN_IF_ERROR(ValidateRunId(run_id));
  if (hello.world == 0 || hello.world > kWorldMax || hello.rank >= hello.world) {
    return Status(ErrorCode::kInvalidArgument,
                  fmt::format("rank {} of a world of {}: a world has 1 to {} ranks, numbered "
                              "from 0",
                              hello.rank, hello.world, kWorldMax));
  }
  if (hello.slots < kSlotsMin || hello.slots > kSlotsMax) {
    return Status(ErrorCode::kInvalidArgument,
                  fmt::format("{} slots requested: between {} and {} are possible (one is always "
                              "kept while the next is written)",
                              hello.slots, kSlotsMin, kSlotsMax));
  }
  if (hello.slot_bytes == 0 || hello.slot_bytes > kSlotBytesMax) {
    return Status(ErrorCode::kInvalidArgument,
                  fmt::format("slots of {} bytes requested: between 1 and {} bytes are possible",
                              hello.slot_bytes, kSlotBytesMax));
  }
  // Refuse sizes that can never fit. Reserve() handles an arena that is full at the moment.
  const ArenaUsage usage = arena_.usage();
  const uint64_t need = kControlBytes + hello.slots * RoundUp(hello.slot_bytes, kSlotAlign);
  if (need > usage.budget_bytes) {
    return Status(ErrorCode::kResourceExhausted,
                  fmt::format("rank {} of {} needs {} slots of {} = {}, but the arena of node {} "
                              "has {} in all: raise [arena] bytes in the agent's configuration, or "
                              "save less or with fewer slots",
                              hello.rank, job, hello.slots, FormatBytes(hello.slot_bytes),
                              FormatBytes(need), options_.node, FormatBytes(usage.budget_bytes)));
  }
  session.job = job;
  session.run_id = run_id;
  session.rank = Rank{hello.rank};
  session.world = hello.world;
  session.slots = hello.slots;
  session.slot_bytes = hello.slot_bytes;
  return Status::Ok();
}

// Only one process may have a rank's memory mapped: two would write into the same slots.
Status Node::ClaimRank(Session& session) {
  if (std::shared_ptr<RankPipeline> rank = FindRank(session.job, session.rank)) {
    const uid_t owner = rank->segment.owner().uid;
    if (owner != session.peer().uid) {
      return Status(ErrorCode::kPermissionDenied,
                    fmt::format("rank {} of {} belongs to uid {}, this process runs as uid {}",
                                session.rank.value, session.job, owner, session.peer().uid));
    }
  }
  const RankKey key{session.job, session.rank};
  const auto refuse = [&](pid_t pid) {
    return Status(ErrorCode::kFailedPrecondition,
                  fmt::format("rank {} of {} is still run by process {} on node {}: wait until it "
                              "has ended, or end it",
                              session.rank.value, session.job, pid, options_.node));
  };
  auto trainer = trainers_.find(key);
  if (trainer != trainers_.end() && trainer->second.pid != session.peer().pid &&
      !ProcessGone(trainer->second.pid_fd.get())) {
    return refuse(trainer->second.pid);
  }
  for (const auto& [id, other] : sessions_) {
    if (other.get() == &session || other->state == Session::State::kClosing) continue;
    if (other->job != session.job || other->rank != session.rank) continue;
    if (other->peer().pid != session.peer().pid && !ProcessGone(other->pid_fd())) {
      return refuse(other->peer().pid);
    }
    ReadPackets(*other);  // packets sent before the end still count
    EndSession(*other, "a new connection of the rank replaced it");
  }
  return Status::Ok();
}

void Node::HandleHello(Session& session, const HelloMessage& hello) {
  Status status = CheckHello(session, hello);
  if (status.ok()) status = ClaimRank(session);
  if (!status.ok()) {
    Refuse(session, status);
    return;
  }
  session.state = Session::State::kJoining;
  session.joins_since = clock_.Now();
  session.next_progress = session.joins_since + kProgressInterval;
  JoinRequest request = JoinRequestOf(session);
  const RankKey key{session.job, session.rank};
  if (!trainers_.contains(key) && !departed_.contains(key)) {
    // An agent that lost its run_dir has no record of trainers and relies on the Hello.
    if (hello.JoinedBefore() != 0) request.joined_before = Incarnation{hello.JoinedBefore()};
  }
  link_.Join(request, [this, id = session.id()](const Result<Incarnation>& incarnation) {
    Post([this, id, incarnation] { OnJoined(id, incarnation); });
  });
}

JoinRequest Node::JoinRequestOf(const Session& session) const {
  JoinRequest request{session.job,   session.run_id,     session.rank,
                      session.world, session.peer().uid, RoundUp(session.slot_bytes, kSegmentAlign),
                      std::nullopt};
  if (session.incarnation.value != 0) {
    request.joined_before = session.incarnation;
    return request;
  }
  // The process may have joined before: its connection was lost, or it opened another client.
  const pid_t pid = session.peer().pid;
  const uint64_t start_ticks = StartTicksOf(pid);
  const auto same = [&](const auto& one) {
    return one.pid == pid && one.start_ticks == start_ticks;
  };
  const RankKey key{session.job, session.rank};
  auto trainer = trainers_.find(key);
  auto departed = departed_.find(key);
  if (trainer != trainers_.end() && same(trainer->second)) {
    request.joined_before = trainer->second.incarnation;
  } else if (departed != departed_.end() && same(departed->second)) {
    request.joined_before = departed->second.incarnation;
  }
  return request;
}

void Node::OnJoined(uint64_t session_id, const Result<Incarnation>& incarnation) {
  Session* session = FindSession(session_id);
  if (session == nullptr || session->state != Session::State::kJoining) return;
  const std::pair<std::string, std::string> run{session->job, session->run_id};
  if (incarnation) {
    if (joined_.size() >= kJoinedMax) joined_.erase(joined_.begin());
    joined_[run] = *incarnation;
    session->incarnation = *incarnation;
  } else if (auto known = joined_.find(run);
             incarnation.error().code() == ErrorCode::kUnavailable && known != joined_.end()) {
    session->incarnation = known->second;
  } else {
    Refuse(*session, incarnation.error());
    return;
  }
  const SegmentOwner owner{session->job, session->rank, session->peer().uid};
  const bool posted = workers_.Post(
      [this, id = session_id, owner, slots = session->slots, bytes = session->slot_bytes,
       world = session->world] { ReserveOnWorker(id, owner, slots, bytes, world); });
  if (!posted) {
    Refuse(*session, {ErrorCode::kUnavailable, "the agent is overloaded or stopping; try again"});
  }
}

void Node::SendReservationProgress(Session& session) {
  const Clock::TimePoint now = clock_.Now();
  if (now < session.next_progress) return;
  session.next_progress = now + kProgressInterval;
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(now - session.joins_since);
  Notify(session, NoticeKind::kReserving, {session.incarnation, Step{}}, Tier::kMemory,
         Status(ErrorCode::kUnavailable,
                fmt::format("the agent of node {} is reserving {} of memory for rank {} of {}: {} "
                            "s so far",
                            options_.node,
                            FormatBytes(session.slots * RoundUp(session.slot_bytes, kSlotAlign)),
                            session.rank.value, session.job, seconds.count())));
}

/// A trainer waits for a version at a tier. The coordinator then brings the version there, even if
/// it would be superseded otherwise.
void Node::HandleWantTier(Session& session, const EndSaveMessage& message) {
  if (message.slot > static_cast<uint32_t>(Tier::kRemote)) {
    return Refuse(session, {ErrorCode::kInvalidArgument,
                            fmt::format("tier {} does not exist", message.slot)});
  }
  link_.Report(TierWanted{
      session.job, {session.incarnation, Step{message.step}}, static_cast<Tier>(message.slot)});
}

void Node::ReserveOnWorker(uint64_t session_id, const SegmentOwner& owner, uint32_t slots,
                           uint64_t slot_bytes, uint32_t world) {
  Result<Segment*> segment = Reserve(owner, slots, slot_bytes, world);
  Post([this, session_id, segment] { OnReserved(session_id, segment); });
}

void Node::OnReserved(uint64_t session_id, const Result<Segment*>& segment) {
  Session* session = FindSession(session_id);
  if (session == nullptr || session->state != Session::State::kJoining) return;
  if (!segment) {
    Refuse(*session, segment.error());
    return;
  }
  session->pipeline = FindRank(session->job, session->rank);
  if (session->pipeline == nullptr) {
    Refuse(*session, {ErrorCode::kUnavailable, "the rank's memory was replaced; try again"});
    return;
  }
  if (ProcessGone(session->pid_fd())) {
    EndSession(*session, "its process has ended");
    return;
  }
  auto pid_fd = session->DuplicatePidFd();
  auto watched_fd = session->DuplicatePidFd();
  if (!pid_fd || !watched_fd) {
    Refuse(*session, pid_fd ? watched_fd.error() : pid_fd.error());
    return;
  }
  RememberTrainer(*session, std::move(*pid_fd));
  goodbyes_.erase({session->job, session->rank});
  session->state = Session::State::kReady;
  Segment& memory = session->pipeline->segment;
  // Clear the state of an earlier trainer. The client publishes its state after the Welcome.
  for (PhaseHint& phase : memory.control().phases) phase.open.store(0);
  ForgetWriter(memory.control().collectives);
  watched_.Join({session->job, session->rank, session->world, session->incarnation,
                 NameProcess(session->peer().pid)},
                std::move(*watched_fd), memory.control());
  session->pipeline->connected.store(true);
  WelcomeMessage welcome;
  welcome.slots = memory.slot_count();
  welcome.incarnation = session->incarnation.value;
  welcome.segment_bytes = memory.memory().size();
  welcome.control_bytes = kControlBytes;
  welcome.slot_bytes = memory.slot_bytes();
  welcome.segment_id = memory.id();
  PutText(welcome.node, options_.node);
  const int fd = memory.fd();
  if (!session->SendMessage(welcome, std::span(&fd, 1))) {
    EndSession(*session, "the trainer does not read its packets");
    return;
  }
  Log(LogLevel::kInfo, "TrainerJoined",
      {Kv("job", session->job), Kv("rank", session->rank.value), Kv("world", session->world),
       Kv("incarnation", session->incarnation.value), Kv("pid", session->peer().pid)});
  if (auto job = jobs_.find(session->job); job != jobs_.end()) {
    session->pipeline->slots.SetJobState(job->second);
    NotifyCommitted(*session, nullptr, job->second);
  }
  std::vector<ParkedPrepare> parked;
  parked.swap(parked_);
  for (ParkedPrepare& one : parked) {
    const ShardIdentity& identity = one.prepare.identity;
    if (identity.job == session->job && identity.rank == session->rank) {
      StartPrepare(std::move(one.prepare), session->pipeline);
    } else {
      parked_.push_back(std::move(one));
    }
  }
}

void Node::RememberTrainer(Session& session, UniqueFd pid_fd) {
  const pid_t pid = session.peer().pid;
  trainers_[{session.job, session.rank}] =
      Trainer{pid, std::move(pid_fd), StartTicksOf(pid), session.incarnation};
  StoreTrainers();
}

void Node::StoreTrainers() {
  if (options_.trainers_file.empty()) return;
  std::vector<TrainerRecord> records;
  for (const auto& [key, trainer] : trainers_) {
    records.push_back(
        {key.first, key.second, trainer.pid, trainer.start_ticks, trainer.incarnation});
  }
  Status status = WriteTrainers(options_.trainers_file, records);
  if (!status.ok()) Log(LogLevel::kWarn, "TrainersNotRecorded", {Kv("error", status.ToString())});
}

void Node::LoadTrainers() {
  for (const TrainerRecord& record : ReadTrainers(options_.trainers_file)) {
    auto pid_fd = PidFdOf(record.pid);
    // Compare after the descriptor is open: from here on the PID cannot be reused.
    if (!pid_fd || StartTicksOf(record.pid) != record.start_ticks) continue;
    trainers_[{record.job, record.rank}] =
        Trainer{record.pid, std::move(*pid_fd), record.start_ticks, record.incarnation};
  }
}

// ---- saves ----

void Node::HandleBeginSave(Session& session, const BeginSaveMessage& message) {
  if (message.step > kStepMax) {
    return Reply(session, message.header.ticket,
                 {ErrorCode::kInvalidArgument,
                  fmt::format("step {}: the largest possible step is {}", message.step, kStepMax)});
  }
  WaitingSave save;
  save.ticket = message.header.ticket;
  save.step = message.step;
  save.image_bytes = message.image_bytes;
  save.skipping = message.skipping != 0;
  save.deadline = clock_.Now() + std::chrono::milliseconds(message.wait_ms);
  const bool may_wait =
      message.wait != 0 && message.wait_ms > 0 && session.waiting_saves.size() < kWaitingSavesMax;
  const bool first = session.waiting_saves.empty();
  if (first && TryBeginSave(session, save, /*last_chance=*/!may_wait)) return;
  if (may_wait) {
    session.waiting_saves.push_back(save);
  } else {
    Reply(session, save.ticket, {ErrorCode::kResourceExhausted, "earlier saves wait for a slot"});
  }
}

bool Node::TryBeginSave(Session& session, const WaitingSave& save, bool last_chance) {
  const VersionId version{session.incarnation, Step{save.step}};
  const ShardKey key{session.job, version, session.rank};
  Status status;
  ReplyMessage reply;
  if (session.fenced) {
    status = {ErrorCode::kFenced,
              fmt::format("a newer run of {} has started; this one (incarnation {}) may not save",
                          session.job, session.incarnation.value)};
  } else if (save.image_bytes == 0) {
    status = {ErrorCode::kInvalidArgument, "an image of 0 bytes cannot be saved"};
  } else {
    std::vector<FreedSlot> freed;
    auto slot = session.pipeline->slots.BeginSave(version, session.world, save.image_bytes, &freed);
    for (const FreedSlot& old : freed) {
      const ShardKey old_key{session.job, old.version, session.rank};
      link_.Report(RemovedReplica{old_key, Tier::kMemory});
      const Status why{ErrorCode::kAborted, "superseded: a newer version is written to disk"};
      if (old.disk_missed) link_.Report(FailedReplica{old_key, Tier::kDisk, why.message()});
      if (old.disk_superseded) {
        Notify(session, NoticeKind::kFailed, old.version, Tier::kDisk, why);
      }
    }
    if (slot) {
      reply.slot = *slot;
    } else {
      status = slot.error();
    }
  }
  // Without a free slot, the save waits for a commit as long as the trainer permits.
  if (status.code() == ErrorCode::kResourceExhausted && !last_chance) return false;
  if (status.ok()) HOLDFAST_CRASH_POINT("agent.after_begin_save");
  if (status.code() == ErrorCode::kResourceExhausted) {
    session.starved = true;
    if (save.skipping) ReportNotSaved(key, "the trainer skipped it: no slot was free");
  }
  reply.header.ticket = save.ticket;
  reply.code = static_cast<uint32_t>(status.code());
  reply.incarnation = version.incarnation.value;
  reply.step = save.step;
  reply.image_bytes = save.image_bytes;
  PutText(reply.text, status.message());
  if (!session.SendMessage(reply)) EndSession(session, "the trainer does not read its packets");
  return true;
}

void Node::HandleEndSave(Session& session, const EndSaveMessage& message) {
  const VersionId version{session.incarnation, Step{message.step}};
  RankSlots& slots = session.pipeline->slots;
  Status status;
  if (message.header.type == MessageType::kEndSave) {
    status = slots.EndSave(message.slot, version);
  } else {
    const Status why(ErrorCode::kAborted, "the trainer abandoned the save");
    status = slots.AbandonSave(message.slot, version, why);
    if (status.ok()) ReportNotSaved({session.job, version, session.rank}, why.message());
  }
  if (!status.ok()) Notify(session, NoticeKind::kFailed, version, Tier::kMemory, status);
  RetryWaitingRequests(session);
}

void Node::ReportNotSaved(const ShardKey& key, const std::string& why) {
  link_.Report(FailedReplica{key, Tier::kMemory, why});
  link_.Report(FailedReplica{key, Tier::kDisk, why});
}

// ---- restores ----

void Node::HandleFindRestore(Session& session, const FindRestoreMessage& message) {
  const uint64_t ticket = message.header.ticket;
  if (session.pending_restore || session.waiting_reader || !session.waiting_restores.empty()) {
    Reply(session, ticket,
          {ErrorCode::kFailedPrecondition,
           "an earlier FindRestore or OpenReader has no reply yet: wait for it"});
    return;
  }
  PendingRestore pending;
  pending.ticket = ticket;
  pending.request.job = session.job;
  pending.request.incarnation = session.incarnation;
  pending.request.rank = session.rank;
  pending.request.reshard = message.header.type == MessageType::kOpenReader;
  if (message.wanted_incarnation != 0) {
    pending.request.wanted =
        VersionId{Incarnation{message.wanted_incarnation}, Step{message.wanted_step}};
  }
  pending.deadline = clock_.Now() + std::chrono::milliseconds(std::clamp<uint64_t>(
                                        message.timeout_ms, 1, kRestoreTimeoutMaxMs));
  session.pending_restore = std::move(pending);
  RequestRestore(session);
}

void Node::RequestRestore(Session& session) {
  PendingRestore& pending = *session.pending_restore;
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(pending.deadline - clock_.Now());
  pending.request.timeout_ms = std::max<int64_t>(1, left.count());
  pending.under_way = true;
  link_.DecideRestore(pending.request,
                      [this, id = session.id()](const Result<RestoreDecision>& decision) {
                        Post([this, id, decision] { OnRestoreDecided(id, decision); });
                      });
}

void Node::OnRestoreDecided(uint64_t session_id, const Result<RestoreDecision>& decision) {
  Session* session = FindSession(session_id);
  if (session == nullptr || session->state != Session::State::kReady) return;
  PendingRestore& pending = *session->pending_restore;
  if (!decision && decision.error().code() == ErrorCode::kUnavailable &&
      clock_.Now() + kRequestRetryPause < pending.deadline) {
    pending.under_way = false;
    pending.retry_at = clock_.Now() + kRequestRetryPause;
    return;
  }
  const uint64_t ticket = pending.ticket;
  const Clock::TimePoint request_deadline = pending.deadline;
  const bool reshard = pending.request.reshard;
  session->pending_restore.reset();
  if (!decision) {
    Reply(*session, ticket, decision.error());
    return;
  }
  if (reshard) {
    session->waiting_reader = WaitingReader{ticket, *decision, request_deadline};
    CheckOwnShard(*session, *decision);
    return RetryWaitingRequests(*session);
  }
  WaitingRestore restore{ticket, *decision, {}};
  if (TryAnswerRestore(*session, restore)) return;
  restore.deadline = std::max(clock_.Now() + kRequestRetryPause,
                              std::min(clock_.Now() + kRestoreGrace, request_deadline));
  session->waiting_restores.push_back(restore);
  // The version was decided earlier and its slot has been freed since: the disk may still have it.
  PrepareShard prepare;
  prepare.identity = {session->job, decision->version, session->rank, session->world};
  prepare.tier = Tier::kDisk;
  prepare.source_node = options_.node;
  auto seal = volume_.ReadSeal(prepare.identity.key());
  if (seal && seal->identity == prepare.identity &&
      !preparing_.contains({seal->identity.key(), Tier::kMemory})) {
    StartPrepare(std::move(prepare), session->pipeline);
  }
}

bool Node::TryAnswerRestore(Session& session, const WaitingRestore& restore) {
  auto slot = session.pipeline->slots.Pin(restore.decision.version);
  if (!slot) return false;
  RankSlots& slots = session.pipeline->slots;
  if (std::find(session.pins.begin(), session.pins.end(), *slot) != session.pins.end()) {
    slots.Unpin(*slot);
  } else {
    session.pins.push_back(*slot);
  }
  ReplyMessage reply;
  reply.header.ticket = restore.ticket;
  reply.slot = *slot;
  reply.incarnation = restore.decision.version.incarnation.value;
  reply.step = restore.decision.version.step.value;
  reply.image_bytes = session.pipeline->segment.record(*slot).image_bytes;
  reply.tier = static_cast<uint32_t>(restore.decision.tier);
  if (!session.SendMessage(reply)) EndSession(session, "the trainer does not read its packets");
  return true;
}

void Node::HandleEndRestore(Session& session, const EndSaveMessage& message) {
  auto pin = std::find(session.pins.begin(), session.pins.end(), message.slot);
  if (pin == session.pins.end()) {
    Notify(session, NoticeKind::kFailed, {session.incarnation, Step{message.step}}, Tier::kMemory,
           {ErrorCode::kFailedPrecondition,
            fmt::format("slot {} is not being restored from", message.slot)});
    return;
  }
  session.pins.erase(pin);
  session.pipeline->slots.Unpin(message.slot);
  RetryWaitingRequests(session);
}

// ---- answers ----

void Node::RetryWaitingRequests(Session& session) {
  const Clock::TimePoint now = clock_.Now();
  if (session.pending_restore && !session.pending_restore->under_way &&
      now >= session.pending_restore->retry_at) {
    RequestRestore(session);
  }
  if (session.waiting_reader) TryStartReader(session, now);
  // Saves wait in order: a later one must not take the slot of an earlier one.
  while (session.state == Session::State::kReady && !session.waiting_saves.empty()) {
    const WaitingSave save = session.waiting_saves.front();
    if (!TryBeginSave(session, save, now >= save.deadline)) break;
    session.waiting_saves.pop_front();
  }
  for (size_t i = 0; i < session.waiting_restores.size();) {
    const WaitingRestore restore = session.waiting_restores[i];
    const bool answered = TryAnswerRestore(session, restore);
    if (!answered && now < restore.deadline) {
      ++i;
      continue;
    }
    session.waiting_restores.erase(session.waiting_restores.begin() + static_cast<ptrdiff_t>(i));
    if (answered) continue;
    Reply(session, restore.ticket,
          {ErrorCode::kUnavailable, fmt::format("version {} is decided, but not in this node's "
                                                "memory yet; try again",
                                                ToString(restore.decision.version))});
  }
  if (session.state == Session::State::kReady && session.starved && session.waiting_saves.empty() &&
      session.pipeline->slots.HasRoom()) {
    session.starved = false;
    Notify(session, NoticeKind::kSlotFree, {session.incarnation, Step{}}, Tier::kMemory);
  }
}

void Node::Reply(Session& session, uint64_t ticket, const Status& status) {
  ReplyMessage reply;
  reply.header.ticket = ticket;
  reply.code = static_cast<uint32_t>(status.code());
  reply.incarnation = session.incarnation.value;
  PutText(reply.text, status.message());
  if (!session.SendMessage(reply)) EndSession(session, "the trainer does not read its packets");
}

void Node::Notify(Session& session, NoticeKind kind, VersionId version, Tier tier,
                  const Status& status) {
  NoticeMessage notice;
  notice.kind = kind;
  notice.tier = static_cast<uint32_t>(tier);
  notice.incarnation = version.incarnation.value;
  notice.step = version.step.value;
  notice.code = static_cast<uint32_t>(status.code());
  PutText(notice.text, status.message());
  if (!session.SendMessage(notice)) EndSession(session, "the trainer does not read its packets");
}

void Node::NotifyCommitted(Session& session, const JobState* before, const JobState& now) {
  const auto changed = [](const std::optional<VersionId>& old_version,
                          const std::optional<VersionId>& new_version) {
    return new_version.has_value() && new_version != old_version;
  };
  if (changed(before ? before->memory_committed : std::nullopt, now.memory_committed)) {
    Notify(session, NoticeKind::kCommitted, *now.memory_committed, Tier::kMemory);
  }
  if (changed(before ? before->peer_committed : std::nullopt, now.peer_committed)) {
    Notify(session, NoticeKind::kCommitted, *now.peer_committed, Tier::kPeer);
  }
  if (changed(before ? before->disk_committed : std::nullopt, now.disk_committed)) {
    Notify(session, NoticeKind::kCommitted, *now.disk_committed, Tier::kDisk);
  }
}

}  // namespace holdfast::agent
