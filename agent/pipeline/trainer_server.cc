#include "agent/pipeline/trainer_server.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "base/log.h"
#include "base/poll.h"
#include "base/process.h"

namespace holdfast::agent {
namespace {

// Connections accepted in one turn of the loop, so that a flood does not delay the trainers.
constexpr int kAcceptsPerTurn = 256;
constexpr std::chrono::seconds kPaceTime(1);
constexpr size_t kPacesMax = 4096;
// Packets handled for one trainer before the other trainers are served.
constexpr int kPacketsPerTurn = 16;

template <typename Message>
Message Decode(std::span<const std::byte> packet) {
  Message message;
  std::memcpy(&message, packet.data(), sizeof(message));
  return message;
}

/// Root and the user of the agent: they have no separate limit.
bool IsTrusted(uid_t uid) { return uid == 0 || uid == ::geteuid(); }

}  // namespace

void TrainerServer::Poll(int timeout_ms) {
  std::vector<pollfd> polled;
  std::vector<uint64_t> ids;
  polled.push_back({parts_.loop.fd(), POLLIN, 0});
  // Connections beyond the limits are accepted and closed: if they waited, those of other users
  // would wait behind them.
  polled.push_back({listener_.get(), POLLIN, 0});
  for (const auto& [id, session] : parts_.sessions.all()) {
    // The loop does not read packets of a trainer that is joining. It only detects the trainer's
    // end.
    const bool reads = session->state != Session::State::kJoining;
    const int events = (reads ? POLLIN : 0) | (session->has_backlog() ? POLLOUT : 0);
    ids.push_back(id);
    polled.push_back({session->socket(), static_cast<int16_t>(events), 0});
    polled.push_back({session->pid_fd(), POLLIN, 0});
  }
  holdfast::Poll(polled, timeout_ms);
  parts_.loop.Run();
  if (polled[1].revents != 0) Accept();
  for (size_t i = 0; i < ids.size(); ++i) {
    Session* session = parts_.sessions.Find(ids[i]);
    if (session == nullptr || session->state == Session::State::kClosing) continue;
    Serve(*session, polled[2 + 2 * i].revents, (polled[3 + 2 * i].revents & POLLIN) != 0);
  }
  for (const auto& [id, session] : parts_.sessions.all()) {
    if (session->retry_due) Retry(*session);
  }
  SweepClosed();
}

void TrainerServer::Serve(Session& session, int socket_events, bool dead) {
  if ((socket_events & POLLOUT) != 0) {
    session.FlushBacklog();
    if (session.state == Session::State::kClosing) return;
  }
  const bool hung_up = (socket_events & (POLLHUP | POLLERR)) != 0;
  // Packets sent before the end still count.
  if ((socket_events & POLLIN) != 0 || dead || hung_up) ReadPackets(session);
  if (dead || hung_up) {
    EndSession(session, dead ? "its process has ended" : "it closed the connection");
  }
}

void TrainerServer::Accept() {
  for (int i = 0; i < kAcceptsPerTurn; ++i) {
    auto accepted = AcceptUnix(listener_.get());
    if (!accepted) {
      Log(LogLevel::kWarn, "AcceptFailed", {Kv("error", accepted.error().ToString())});
      return;
    }
    if (!accepted->has_value()) return;
    UniqueFd socket = std::move(**accepted);
    auto peer = parts_.table.PeerOf(socket.get());
    if (!peer) continue;
    if (!KeepsPace(peer->uid)) continue;  // closes the connection
    DropSilent(peer->uid);
    if (!Admits(peer->uid)) continue;
    auto pid_fd = parts_.table.PidFdOfPeer(socket.get());
    // A process that the agent cannot see is refused after its Hello: it can be neither identified
    // nor observed.
    const bool visible = peer->pid > 0;
    if (!pid_fd && visible) continue;  // the process has ended already
    parts_.sessions.Add(std::move(socket), pid_fd ? std::move(*pid_fd) : UniqueFd(), *peer,
                        parts_.clock.Now() + std::chrono::milliseconds(parts_.hello_timeout_ms));
  }
}

/// Makes room for one more connection of this user: ends the user's oldest connection without a
/// Hello, if there are too many of them.
void TrainerServer::DropSilent(uid_t uid) {
  size_t silent = 0;
  Session* oldest = nullptr;
  for (const auto& [id, session] : parts_.sessions.all()) {
    if (session->state != Session::State::kHello || session->peer().uid != uid) continue;
    if (oldest == nullptr) oldest = session.get();
    ++silent;
  }
  if (silent < parts_.limits.silent_per_user) return;
  ReadPackets(*oldest);  // many ranks start at once: its Hello may be waiting to be read
  if (oldest->state != Session::State::kHello) return;
  Log(LogLevel::kDebug, "IdleConnectionDropped", {Kv("uid", uid), Kv("pid", oldest->peer().pid)});
  EndSession(*oldest, fmt::format("its user has more than {} connections without a Hello",
                                  parts_.limits.silent_per_user));
  parts_.sessions.Erase(oldest->id());
}

bool TrainerServer::KeepsPace(uid_t uid) {
  if (IsTrusted(uid)) return true;
  if (paces_.size() >= kPacesMax) paces_.clear();
  Pace& pace = paces_[uid];
  const Clock::TimePoint now = parts_.clock.Now();
  if (now - pace.since >= kPaceTime) pace = {now, 0};
  return ++pace.begun <= parts_.limits.new_per_second;
}

bool TrainerServer::Admits(uid_t uid) {
  const bool trusted = IsTrusted(uid);
  if (parts_.sessions.all().size() >= parts_.limits.all - (trusted ? 0 : parts_.limits.reserved))
    return false;
  if (trusted) return true;
  const auto own = std::ranges::count_if(
      parts_.sessions.all(), [uid](const auto& entry) { return entry.second->peer().uid == uid; });
  if (static_cast<size_t>(own) < parts_.limits.per_user) return true;
  Log(LogLevel::kDebug, "ConnectionRefused", {Kv("uid", uid), Kv("connections", own)});
  return false;
}

void TrainerServer::ReadPackets(Session& session) {
  const bool ending = ProcessGone(session.pid_fd());
  for (int i = 0; ending || i < kPacketsPerTurn; ++i) {
    if (session.state == Session::State::kJoining || session.state == Session::State::kClosing) {
      return;
    }
    auto packet = ReceivePacket(session.socket(), kMessageBytesMax);
    if (!packet) {
      if (packet.error().code() == ErrorCode::kDeadlineExceeded) return;
      if (packet.error().code() == ErrorCode::kInvalidArgument) {
        return parts_.joins.Refuse(session, packet.error());
      }
      return EndSession(session, packet.error().message());
    }
    if (packet->bytes.empty()) return EndSession(session, "it closed the connection");
    Handle(session, packet->bytes);
  }
}

void TrainerServer::Handle(Session& session, std::span<const std::byte> packet) {
  auto header = CheckPacket(packet);
  if (!header) return parts_.joins.Refuse(session, header.error());
  // Handlers rely on the identity that the Hello establishes.
  const bool is_hello = header->type == MessageType::kHello;
  if (is_hello != (session.state == Session::State::kHello)) {
    return parts_.joins.Refuse(
        session, InvalidArgumentError(fmt::format(
                     "{} is out of order: the first packet, and no other, must be Hello",
                     NameOf(header->type))));
  }
  Dispatch(session, header->type, packet);
}

void TrainerServer::Dispatch(Session& session, MessageType type,
                             std::span<const std::byte> packet) {
  switch (type) {
    case MessageType::kHello:
      return parts_.joins.Hello(session, Decode<HelloMessage>(packet));
    case MessageType::kBeginSave:
      return parts_.saves.Begin(session, Decode<BeginSaveMessage>(packet));
    case MessageType::kEndSave:
    case MessageType::kAbandonSave:
      return parts_.saves.End(session, Decode<EndSaveMessage>(packet));
    case MessageType::kFindRestore:
    case MessageType::kOpenReader:
    case MessageType::kOpenVersion:
      return parts_.restores.Find(session, Decode<FindRestoreMessage>(packet));
    case MessageType::kEndRestore:
      return parts_.restores.End(session, Decode<EndSaveMessage>(packet));
    case MessageType::kReadRange:
      return parts_.readers.Read(session, Decode<ReadRangeMessage>(packet));
    case MessageType::kReadIndex:
      return parts_.readers.ReadIndex(session, Decode<CloseReaderMessage>(packet));
    case MessageType::kCloseReader:
      return parts_.readers.Close(session, Decode<CloseReaderMessage>(packet).reader);
    case MessageType::kWantTier:
      return HandleWantTier(session, Decode<EndSaveMessage>(packet));
    case MessageType::kGoodbye:
      session.goodbye = true;
      return EndSession(session, "goodbye");
    case MessageType::kWelcome:
    case MessageType::kReply:
    case MessageType::kNotice:
      return parts_.joins.Refuse(
          session, InvalidArgumentError(fmt::format("only the agent sends {}", NameOf(type))));
  }
}

/// Handles a WantTier: a trainer waits for a version at a tier. The coordinator then has the
/// version brought there, even if it would be superseded otherwise.
void TrainerServer::HandleWantTier(Session& session, const EndSaveMessage& message) {
  if (!IsTierNumber(message.slot)) {
    return parts_.joins.Refuse(
        session, InvalidArgumentError(fmt::format("tier {} does not exist", message.slot)));
  }
  parts_.link.Report(TierWanted{
      session.job, {*session.incarnation, Step{message.step}}, static_cast<Tier>(message.slot)});
}

void TrainerServer::OnReady(Session& session) {
  if (const JobState* job = parts_.jobs.Find(session.job)) {
    NotifyCommitted(session, JobState{}, *job);
  }
  parts_.preparer.StartParked(session.job, session.rank, session.pipeline);
}

void TrainerServer::OnJobState(const JobState& before, const JobState& now) {
  for (const auto& [id, session] : parts_.sessions.all()) {
    if (session->state != Session::State::kReady || session->job != now.job) continue;
    if (session->incarnation < now.incarnation && !session->fenced) {
      session->fenced = true;
      session->Notify(NoticeKind::kFenced, {now.incarnation, Step{}}, Tier::kMemory,
                      FencedError(fmt::format("incarnation {} of {} has started",
                                              now.incarnation.value, now.job)));
    }
    NotifyCommitted(*session, before, now);
    session->retry_due = true;
  }
}

void TrainerServer::NotifyCommitted(Session& session, const JobState& before, const JobState& now) {
  for (const TierTraits& traits : kTierTable) {
    const std::optional<VersionId> version = now.committed[traits.tier];
    if (!version || before.committed[traits.tier] == version) continue;
    session.Notify(NoticeKind::kCommitted, *version, traits.tier);
  }
}

void TrainerServer::Retry(Session& session) {
  session.retry_due = false;
  if (session.state != Session::State::kReady) return;
  parts_.restores.Retry(session);
  parts_.readers.Retry(session);
  parts_.saves.Retry(session);
}

void TrainerServer::Tick() {
  const Clock::TimePoint now = parts_.clock.Now();
  for (const auto& [id, session] : parts_.sessions.all()) {
    if (session->state == Session::State::kHello && now >= session->deadline) {
      EndSession(*session, "it sent no Hello in time");
    }
    if (session->state == Session::State::kReady) Retry(*session);
    if (session->state == Session::State::kJoining) parts_.joins.SendProgress(*session);
  }
  SweepClosed();
  ReportRanks();
  parts_.processes.Sweep();
}

void TrainerServer::EndAll(std::string_view why) {
  for (const auto& [id, session] : parts_.sessions.all()) EndSession(*session, why);
}

void TrainerServer::EndSession(Session& session, std::string_view why) {
  session.Close(why);
  if (session.job.empty() || std::exchange(session.left, true)) return;
  const std::string& job = session.job;
  const std::string& reason = session.closed_because();
  Log(LogLevel::kInfo, "TrainerLeft",
      {Kv("job", job), Kv("rank", session.rank.value), Kv("pid", session.peer().pid),
       Kv("why", reason)});
  if (session.goodbye) parts_.processes.OnGoodbye({job, session.rank}, *session.incarnation);
  if (!session.pipeline) return;
  session.pipeline->connected.store(false);
  parts_.watched.Leave(job, session.rank, session.goodbye);
  parts_.restores.UnpinAll(session);
  parts_.readers.CloseAll(session);
  parts_.saves.GiveUpUnended(
      session, fmt::format("the trainer left before its copy was complete: {}", reason));
  session.pipeline = RankLease();
}

void TrainerServer::SweepClosed() {
  std::vector<uint64_t> closed;
  for (const auto& [id, session] : parts_.sessions.all()) {
    if (session->state == Session::State::kClosing) closed.push_back(id);
  }
  for (uint64_t id : closed) {
    Session& session = *parts_.sessions.Find(id);
    EndSession(session, session.closed_because());
    parts_.sessions.Erase(id);
  }
  session_count_.store(static_cast<uint32_t>(parts_.sessions.all().size()),
                       std::memory_order_relaxed);
}

/// Reports the trainers of this node to the coordinator. A rank counts as connected until its saves
/// are sealed, or verified after a restart of the agent: until then its job is not over.
void TrainerServer::ReportRanks() {
  std::map<RankKey, LocalRank> ranks;
  for (const auto& [key, incarnation] : parts_.processes.goodbyes()) {
    ranks[key] = {key.first, incarnation, key.second, /*goodbye=*/true};
  }
  parts_.ranks.ForEach([&](RankPipeline& rank) {
    const SegmentOwner& owner = rank.segment.owner();
    if (IsParity(owner.rank)) return;
    const RankKey key{owner.job, owner.rank};
    const auto busy = rank.slots.view().Unsealed();
    if (busy) {
      ranks[key] = {owner.job, *busy, owner.rank};
    } else if (parts_.processes.IsRunning(key) &&
               parts_.sessions.FindJoined(owner.job, owner.rank) == nullptr) {
      // The process is alive and has not connected to the restarted agent yet.
      const auto newest = rank.slots.view().SealedVersions();
      if (!newest.empty()) ranks[key] = {owner.job, newest.front().first.incarnation, owner.rank};
    }
  });
  for (const auto& [id, session] : parts_.sessions.all()) {
    const bool joins =
        session->state == Session::State::kJoining || session->state == Session::State::kReady;
    if (!joins || !session->incarnation) continue;
    ranks[{session->job, session->rank}] = {session->job, *session->incarnation, session->rank};
  }
  std::vector<LocalRank> all;
  for (auto& [key, rank] : ranks) all.push_back(std::move(rank));
  parts_.link.SetRanks(std::move(all));
}

}  // namespace holdfast::agent
