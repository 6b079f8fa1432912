#include "agent/pipeline/join_service.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "agent/api/hello.h"
#include "agent/api/segment_layout.h"
#include "base/config.h"
#include "base/log.h"
#include "base/process.h"

namespace holdfast::agent {
namespace {

constexpr size_t kJoinedMax = 256;
// Interval of the progress notices while memory is being reserved. Each notice restarts the
// trainer's timeout.
constexpr std::chrono::milliseconds kProgressInterval(1000);

}  // namespace

void JoinService::Refuse(Session& session, const Status& status) {
  Log(LogLevel::kWarn, "TrainerRefused",
      {Kv("pid", session.peer().pid), Kv("uid", session.peer().uid), Kv("job", session.job),
       Kv("error", status.ToString())});
  session.Reply(0, status);
  session.Close(status.message());
}

/// Refuses sizes that can never fit. RankMemory handles an arena that is full at the moment.
Status JoinService::CheckFits(const HelloMessage& hello, const std::string& job) const {
  const uint64_t need = SegmentBytesOf(hello);
  if (need <= parts_.arena_bytes) return Status::Ok();
  return ResourceExhaustedError(
      fmt::format("rank {} of {} needs {} ({} slots of {} and {} of control), but the arena of "
                  "node {} has {} in all: raise [arena] bytes in the agent's configuration, or "
                  "save less or with fewer slots",
                  hello.rank, job, FormatBytes(need), hello.slots,
                  FormatBytes(RoundUp(hello.slot_bytes, kSlotAlign)), FormatBytes(kControlBytes),
                  parts_.node, FormatBytes(parts_.arena_bytes)));
}

Status JoinService::Check(Session& session, const HelloMessage& hello) const {
  if (session.peer().pid <= 0) {
    return FailedPreconditionError(fmt::format(
        "the agent of node {} runs in another PID namespace and cannot see this "
        "process: run the agent in the host's PID namespace (Kubernetes: hostPID: true; "
        "Docker and Podman: --pid=host), or run both in one container",
        parts_.node));
  }
  HOLDFAST_ASSIGN_OR_RETURN(const Introduced introduced, CheckHello(hello));
  session.job = introduced.job;
  session.run_id = introduced.run_id;
  session.rank = Rank{hello.rank};
  session.world = hello.world;
  session.slots = hello.slots;
  session.slot_bytes = hello.slot_bytes;
  return CheckFits(hello, session.job);
}

Status JoinService::Claim(Session& session) {
  if (const RankLease rank = parts_.ranks.Find(session.job, session.rank)) {
    const uid_t owner = rank->segment.owner().uid;
    if (owner != session.peer().uid) {
      return Status(ErrorCode::kPermissionDenied,
                    fmt::format("rank {} of {} belongs to uid {}, this process runs as uid {}",
                                session.rank.value, session.job, owner, session.peer().uid));
    }
  }
  const auto refuse = [&](pid_t pid) {
    return FailedPreconditionError(
        fmt::format("rank {} of {} is still run by process {} on node {}: wait until it has ended, "
                    "or end it",
                    session.rank.value, session.job, pid, parts_.node));
  };
  const RankKey key{session.job, session.rank};
  if (const auto pid = parts_.processes.OtherProcessOf(key, session.peer().pid))
    return refuse(*pid);
  for (const auto& [id, other] : parts_.sessions.all()) {
    if (other.get() == &session || other->state == Session::State::kClosing) continue;
    if (other->job != session.job || other->rank != session.rank) continue;
    if (other->peer().pid != session.peer().pid && !ProcessGone(other->pid_fd())) {
      return refuse(other->peer().pid);
    }
    control_->ReadPackets(*other);  // packets sent before the end still count
    control_->EndSession(*other, "a new connection of the rank replaced it");
  }
  return Status::Ok();
}

void JoinService::Hello(Session& session, const HelloMessage& hello) {
  Status status = Check(session, hello);
  if (status.ok()) status = Claim(session);
  if (!status.ok()) return Refuse(session, status);
  session.state = Session::State::kJoining;
  session.joins_since = parts_.clock.Now();
  session.next_progress = session.joins_since + kProgressInterval;
  JoinRequest request = RequestOf(session);
  if (!parts_.processes.HasRecordOf({session.job, session.rank})) {
    // An agent that lost its run_dir has no record of trainers and relies on the Hello.
    if (hello.JoinedBefore() != 0) request.joined_before = Incarnation{hello.JoinedBefore()};
  }
  parts_.link.Join(request, [this, id = session.id()](const Result<Incarnation>& incarnation) {
    parts_.loop.Post([this, id, incarnation] { OnJoined(id, incarnation); });
  });
}

JoinRequest JoinService::RequestOf(const Session& session) const {
  JoinRequest request{session.job,   session.run_id,     session.rank,
                      session.world, session.peer().uid, RoundUp(session.slot_bytes, kSegmentAlign),
                      std::nullopt};
  // The process may have joined before: its connection was lost, or it opened another client.
  request.joined_before =
      session.incarnation
          ? session.incarnation
          : parts_.processes.JoinedBefore({session.job, session.rank}, session.peer().pid);
  return request;
}

void JoinService::OnJoined(uint64_t session_id, const Result<Incarnation>& incarnation) {
  Session* session = parts_.sessions.Find(session_id);
  if (session == nullptr || session->state != Session::State::kJoining) return;
  const std::pair<std::string, std::string> run{session->job, session->run_id};
  if (incarnation) {
    if (joined_.size() >= kJoinedMax) joined_.erase(joined_.begin());
    joined_[run] = {*incarnation, session->peer().uid};
    session->incarnation = *incarnation;
  } else if (auto known = joined_.find(run);
             incarnation.error().code() == ErrorCode::kUnavailable && known != joined_.end() &&
             known->second.uid == session->peer().uid) {
    session->incarnation = known->second.incarnation;
  } else {
    return Refuse(*session, incarnation.error());
  }
  const SegmentOwner owner{session->job, session->rank, session->peer().uid};
  const bool posted = parts_.workers.Post([this, id = session_id, owner, slots = session->slots,
                                           bytes = session->slot_bytes, world = session->world] {
    const Result<RankLease> rank = parts_.memory.Reserve(owner, slots, bytes, world);
    parts_.loop.Post([this, id, rank] { OnReserved(id, rank); });
  });
  if (!posted) Refuse(*session, UnavailableError("the agent is overloaded or stopping; try again"));
}

void JoinService::SendProgress(Session& session) {
  const Clock::TimePoint now = parts_.clock.Now();
  if (now < session.next_progress) return;
  session.next_progress = now + kProgressInterval;
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(now - session.joins_since);
  session.Notify(
      NoticeKind::kReserving, {session.incarnation.value_or(Incarnation{}), Step{}}, Tier::kMemory,
      UnavailableError(fmt::format(
          "the agent of node {} is reserving {} of memory for rank {} of {}: {} s so far",
          parts_.node, FormatBytes(session.slots * RoundUp(session.slot_bytes, kSlotAlign)),
          session.rank.value, session.job, seconds.count())));
}

void JoinService::OnReserved(uint64_t session_id, const Result<RankLease>& rank) {
  Session* session = parts_.sessions.Find(session_id);
  if (session == nullptr || session->state != Session::State::kJoining) return;
  if (!rank) return Refuse(*session, rank.error());
  if (ProcessGone(session->pid_fd())) {
    return control_->EndSession(*session, "its process has ended");
  }
  auto pid_fd = session->DuplicatePidFd();
  auto watched_fd = session->DuplicatePidFd();
  if (!pid_fd || !watched_fd) {
    return Refuse(*session, pid_fd ? watched_fd.error() : pid_fd.error());
  }
  const pid_t pid = session->peer().pid;
  session->pipeline = *rank;
  parts_.processes.OnJoined({session->job, session->rank}, pid, std::move(*pid_fd),
                            *session->incarnation);
  session->state = Session::State::kReady;
  SegmentControl& control = session->pipeline->segment.control();
  // Clear the state of an earlier trainer. The client publishes its state after the Welcome.
  for (PhaseHint& phase : control.phases) phase.open.store(0);
  ForgetWriter(control.collectives);
  parts_.watched.Join(
      {session->job, session->rank, session->world, *session->incarnation, NameProcess(pid)},
      std::move(*watched_fd), control);
  session->pipeline->connected.store(true);
  Welcome(*session);
}

void JoinService::Welcome(Session& session) {
  Segment& memory = session.pipeline->segment;
  WelcomeMessage welcome;
  welcome.slots = memory.slot_count();
  welcome.incarnation = session.incarnation->value;
  welcome.segment_bytes = memory.memory().size();
  welcome.control_bytes = kControlBytes;
  welcome.slot_bytes = memory.slot_bytes();
  welcome.segment_id = memory.id();
  PutText(welcome.node, parts_.node);
  welcome.features = kOpensVersions;
  const int fd = memory.fd();
  session.SendMessage(welcome, std::span(&fd, 1));
  if (session.state != Session::State::kReady) return;
  Log(LogLevel::kInfo, "TrainerJoined",
      {Kv("job", session.job), Kv("rank", session.rank.value), Kv("world", session.world),
       Kv("incarnation", session.incarnation->value), Kv("pid", session.peer().pid)});
  control_->OnReady(session);
}

void JoinService::RepeatJoins(const std::string& job, Incarnation incarnation) {
  for (const auto& [id, session] : parts_.sessions.all()) {
    const bool runs = session->state == Session::State::kReady && session->job == job &&
                      session->incarnation == incarnation;
    if (runs) parts_.link.Join(RequestOf(*session), [](const Result<Incarnation>&) {});
  }
}

void JoinService::ForgetJob(const std::string& job) {
  std::erase_if(joined_, [&](const auto& entry) { return entry.first.first == job; });
}

}  // namespace holdfast::agent
