#include "client/core/agent_link.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <exception>
#include <utility>
#include <vector>

#include "agent/api/socket.h"
#include "storage/format/checksum.h"

namespace holdfast::client {
namespace {
constexpr uint64_t kBackoffMinMs = 100;
constexpr uint64_t kBackoffMaxMs = 2000;

/// Returns whether waiting cannot help. An error about the caller's own input stays. An agent that
/// is missing, or an older process that still runs as this rank, may be only temporary.
bool IsPermanent(const Status& status, bool refused) {
  switch (status.code()) {
    case ErrorCode::kUnavailable:
    case ErrorCode::kNotFound:
    case ErrorCode::kDeadlineExceeded:
    case ErrorCode::kFailedPrecondition:
    case ErrorCode::kAlreadyExists:
    case ErrorCode::kAborted:
    case ErrorCode::kCancelled:
      return false;
    case ErrorCode::kPermissionDenied:
    case ErrorCode::kInvalidArgument:
    case ErrorCode::kUnsupported:
    case ErrorCode::kInternal:
      return true;
    default:
      return refused;
  }
}

template <typename Message>
Message As(std::span<const std::byte> bytes) {
  Message message;
  std::memcpy(&message, bytes.data(), sizeof message);
  return message;
}

/// The error for a peer that does not speak this library's protocol.
Status ProtocolError(const std::string& path, const Status& why) {
  return UnavailableError("what listens on " + path +
                          " is not a Holdfast agent of this version: " + why.message());
}
}  // namespace

AgentLink::AgentLink(std::string socket_path, const agent::HelloMessage& hello,
                     LinkObserver& observer)
    : socket_path_(std::move(socket_path)),
      hello_(hello),
      observer_(observer),
      status_(UnavailableError("not connected to the agent yet")) {}

AgentLink::~AgentLink() { Stop(); }

Status AgentLink::Start() {
  stop_event_ = UniqueFd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!stop_event_.valid()) return ErrnoStatus(errno, "eventfd");
  HOLDFAST_ASSIGN_OR_RETURN(thread_, StartThread("holdfast-link", [this] { Run(); }));
  return Status::Ok();
}

void AgentLink::Interrupt() {
  MutexLock lock(mutex_);
  stopping_ = true;
  epoch_.fetch_add(1, std::memory_order_release);
  for (auto& [ticket, call] : calls_) {
    if (!call.failure) call.failure = CancelledError("the client is being closed");
  }
  changed_.NotifyAll();
}

void AgentLink::Stop() {
  if (!thread_.joinable()) return;
  Interrupt();
  {
    MutexLock lock(mutex_);
    agent::MessageHeader goodbye{.type = agent::MessageType::kGoodbye, .ticket = NextTicket()};
    if (connected_) {
      static_cast<void>(agent::SendPacket(socket_.get(), std::as_bytes(std::span(&goodbye, 1))));
    }
  }
  uint64_t one = 1;
  static_cast<void>(!::write(stop_event_.get(), &one, sizeof one));
  thread_.join();
  if (mapping_.valid()) observer_.OnUnmapping(mapping_.base());
  mapping_ = SegmentMapping();
}

Status AgentLink::status() const {
  MutexLock lock(mutex_);
  return connected_ ? Status::Ok() : status_;
}

Status AgentLink::AwaitConnected(MonotonicTime deadline) {
  const auto patience = deadline - MonotonicNow();
  MutexLock lock(mutex_);
  while (!connected_) {
    if (stopping_) return CancelledError("the client is being closed");
    if (permanent_) return status_;
    if (progress_at_) deadline = std::max(deadline, *progress_at_ + patience);
    auto left = deadline - MonotonicNow();
    if (left <= left.zero()) {
      ErrorCode code = status_.code();
      bool missing = code == ErrorCode::kNotFound || code == ErrorCode::kDeadlineExceeded;
      return Status(missing ? ErrorCode::kUnavailable : code, status_.message());
    }
    HOLDFAST_RETURN_IF_ERROR(AwaitChange(deadline));
  }
  return Status::Ok();
}

Status AgentLink::AwaitTurn(const Use& use, agent::MessageType type, MonotonicTime deadline) {
  const auto needs_decision = [](agent::MessageType of) {
    return of == agent::MessageType::kFindRestore || of == agent::MessageType::kOpenReader ||
           of == agent::MessageType::kOpenVersion;
  };
  const auto owed = [&](const auto& entry) {
    return entry.second.abandoned && needs_decision(entry.second.type);
  };
  while (needs_decision(type) && use.alive() && std::any_of(calls_.begin(), calls_.end(), owed)) {
    if (MonotonicNow() >= deadline) {
      return DeadlineExceededError("the agent still owes the answer to an earlier restore");
    }
    HOLDFAST_RETURN_IF_ERROR(AwaitChange(deadline));
  }
  return Status::Ok();
}

Status AgentLink::AwaitChange(MonotonicTime deadline) {
  changed_.WaitUntil(mutex_, std::min(deadline, NextStopCheck()));
  mutex_.Unlock();
  const bool stop = StopRequested();
  mutex_.Lock();
  return stop ? CancelledError("the caller cancelled the wait") : Status::Ok();
}

uint64_t AgentLink::silent_ms() const {
  MutexLock lock(mutex_);
  uint64_t longest = 0;
  MonotonicTime now = MonotonicNow();
  for (const auto& [ticket, call] : calls_) {
    if (!call.abandoned) continue;
    auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(now - call.abandoned_at);
    longest = std::max(longest, static_cast<uint64_t>(std::max<int64_t>(ms.count(), 0)) + 1);
  }
  return longest;
}

Result<AgentLink::Use> AgentLink::Enter() {
  MutexLock lock(mutex_);
  if (stopping_) return Fail(CancelledError("the client is being closed"));
  if (!connected_) {
    ErrorCode code = permanent_ ? status_.code() : ErrorCode::kUnavailable;
    return Fail(Status(code, status_.message()));
  }
  ++users_;
  return Use(this, epoch_.load(std::memory_order_relaxed));
}

void AgentLink::Leave() {
  MutexLock lock(mutex_);
  if (--users_ == 0) changed_.NotifyAll();
}

Status AgentLink::SendLocked(uint64_t epoch, std::span<const std::byte> bytes) {
  if (!connected_ || epoch_.load(std::memory_order_relaxed) != epoch) {
    return UnavailableError("the connection to the agent was lost");
  }
  Status sent = agent::SendPacket(socket_.get(), bytes);
  if (sent.code() == ErrorCode::kResourceExhausted) {
    return UnavailableError("the agent does not read its messages");
  }
  return sent;
}

Status AgentLink::SendBytes(const Use& use, std::span<const std::byte> bytes) {
  MutexLock lock(mutex_);
  return SendLocked(use.epoch_, bytes);
}

Result<agent::ReplyMessage> AgentLink::CallBytes(const Use& use, std::span<const std::byte> bytes,
                                                 const agent::MessageHeader& header, uint64_t step,
                                                 MonotonicTime deadline, UniqueFd* memory) {
  MutexLock lock(mutex_);
  HOLDFAST_RETURN_IF_ERROR(AwaitTurn(use, header.type, deadline));
  PendingCall& call = calls_[header.ticket];
  call.type = header.type;
  call.step = step;
  Status sent = SendLocked(use.epoch_, bytes);
  if (!sent.ok()) call.failure = std::move(sent);
  while (!call.reply && !call.failure) {
    Status wait = MonotonicNow() < deadline
                      ? AwaitChange(deadline)
                      : DeadlineExceededError(
                            "the agent did not answer in time; is it overloaded or stopped?");
    if (wait.ok() || call.reply || call.failure) continue;
    // The entry stays, so that a late answer can be undone.
    call.abandoned = true;
    call.abandoned_at = MonotonicNow();
    return Fail(std::move(wait));
  }
  PendingCall finished = std::move(call);
  calls_.erase(header.ticket);
  if (finished.failure) return Fail(*std::move(finished.failure));
  if (memory != nullptr) *memory = std::move(finished.memory);
  return *finished.reply;
}

// ---- the link's thread -------------------------------------------------------------------------

void AgentLink::Run() {
  uint64_t backoff_ms = kBackoffMinMs;
  for (;;) {
    bool refused = false;
    uint64_t epoch_before = epoch_.load(std::memory_order_relaxed);
    Status ended;
    try {
      ended = RunConnection(&refused);
    } catch (const std::exception& error) {
      ended = ResourceExhaustedError(std::string("no memory for the agent's messages: ") +
                                     error.what());
    }
    bool was_connected = epoch_.load(std::memory_order_relaxed) != epoch_before;
    Disconnect(ended);
    bool final = false;
    RecordFailure(ended, refused, &final);
    if (was_connected) backoff_ms = kBackoffMinMs;
    if (AwaitStop(final ? ~uint64_t{0} : backoff_ms)) return;
    backoff_ms = std::min(backoff_ms * 2, kBackoffMaxMs);
  }
}

void AgentLink::RecordFailure(const Status& reason, bool refused, bool* final) {
  bool log = false;
  {
    MutexLock lock(mutex_);
    *final = reason.code() == ErrorCode::kFenced;
    bool permanent = IsPermanent(reason, refused);
    log = !stopping_ && reason != logged_;
    if (log) logged_ = reason;
    status_ = reason;
    // A client that was connected before keeps trying: the agent has accepted its input once.
    permanent_ = *final || (permanent && !ever_connected_);
    changed_.NotifyAll();
  }
  if (log) {
    observer_.OnLog(HOLDFAST_LOG_WARN, "not connected to the agent: " + reason.ToString() +
                                           (*final ? "" : "; trying again in the background"));
  }
}

bool AgentLink::AwaitStop(uint64_t timeout_ms) {
  MonotonicTime deadline = After(timeout_ms);
  for (;;) {
    auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - MonotonicNow()).count();
    if (left <= 0) return false;
    pollfd waiting{.fd = stop_event_.get(), .events = POLLIN, .revents = 0};
    int ready = ::poll(&waiting, 1, static_cast<int>(std::min<int64_t>(left, 1 << 30)));
    if (ready > 0) return true;
  }
}

bool AgentLink::AwaitReadable(int socket) {
  for (;;) {
    pollfd waiting[2] = {{.fd = stop_event_.get(), .events = POLLIN, .revents = 0},
                         {.fd = socket, .events = POLLIN, .revents = 0}};
    if (::poll(waiting, 2, -1) < 0) continue;
    if (waiting[0].revents != 0) return false;
    if (waiting[1].revents != 0) return true;
  }
}

Status AgentLink::RunConnection(bool* refused) {
  auto connected = agent::ConnectUnix(socket_path_);
  if (!connected) {
    const Status& why = connected.error();
    if (why.code() != ErrorCode::kNotFound) return why;
    return Status(
        ErrorCode::kNotFound,
        why.message() + " Set HOLDFAST_SOCKET or the option socket_path to its agent.sock");
  }
  UniqueFd fd = *std::move(connected);
  int flags = ::fcntl(fd.get(), F_GETFL);
  if (flags < 0 || ::fcntl(fd.get(), F_SETFL, flags | O_NONBLOCK) != 0) {
    return ErrnoStatus(errno, "fcntl(O_NONBLOCK)");
  }
  agent::HelloMessage hello = hello_;
  hello.SetJoinedBefore(incarnation_.load(std::memory_order_relaxed));
  HOLDFAST_RETURN_IF_ERROR(agent::SendPacket(fd.get(), std::as_bytes(std::span(&hello, 1))));
  agent::WelcomeMessage welcome;
  UniqueFd memory;
  HOLDFAST_RETURN_IF_ERROR(AwaitWelcome(fd.get(), &welcome, &memory, refused));
  HOLDFAST_RETURN_IF_ERROR(TakeSegment(welcome, memory));
  memory.Reset();

  // The epoch changes together with `connected_`, so that a Use of an older connection is never
  // alive again.
  int socket = fd.get();
  bool first = false;
  {
    MutexLock lock(mutex_);
    if (stopping_) return CancelledError("the client is being closed");
    socket_ = std::move(fd);
    connected_ = true;
    first = !std::exchange(ever_connected_, true);
    incarnation_.store(welcome.incarnation, std::memory_order_relaxed);
    node_turn_.store(Crc32c(std::as_bytes(std::span(welcome.node))), std::memory_order_relaxed);
    opens_versions_.store((welcome.features & agent::kOpensVersions) != 0,
                          std::memory_order_relaxed);
    logged_ = Status::Ok();
    epoch_.fetch_add(1, std::memory_order_release);
    changed_.NotifyAll();
  }
  observer_.OnConnected(welcome.incarnation, first);
  for (;;) {
    if (!AwaitReadable(socket)) return CancelledError("the client is being closed");
    HOLDFAST_RETURN_IF_ERROR(Dispatch(socket));
  }
}

Status AgentLink::AwaitWelcome(int socket, agent::WelcomeMessage* welcome, UniqueFd* memory,
                               bool* refused) {
  {
    MutexLock lock(mutex_);
    if (!ever_connected_) {
      status_ =
          DeadlineExceededError("the agent at " + socket_path_ +
                                " accepted the connection but has not answered yet; it may be "
                                "reserving memory, overloaded or stopped");
    }
  }
  Result<agent::ReceivedPacket> received = Fail(InternalError("nothing received"));
  Result<agent::MessageHeader> header = Fail(InternalError("nothing received"));
  do {
    // No time-out: otherwise a stopped agent would collect one dead connection per attempt.
    if (!AwaitReadable(socket)) return CancelledError("the client is being closed");
    received = agent::ReceivePacket(socket, agent::kMessageBytesMax);
    if (!received) return ProtocolError(socket_path_, received.error());
    if (received->bytes.empty()) {
      return UnavailableError("the agent at " + socket_path_ + " closed the connection at once");
    }
    header = agent::CheckPacket(received->bytes);
    if (!header) return ProtocolError(socket_path_, header.error());
  } while (IsProgress(*header, received->bytes));
  if (header->type == agent::MessageType::kReply) {
    *refused = true;
    Status status = StatusOf(As<agent::ReplyMessage>(received->bytes));
    return status.ok() ? InternalError("the agent refused without a reason") : status;
  }
  if (header->type != agent::MessageType::kWelcome) {
    return ProtocolError(socket_path_, InternalError("its first message is a " +
                                                     std::string(agent::NameOf(header->type))));
  }
  *welcome = As<agent::WelcomeMessage>(received->bytes);
  if (welcome->protocol != agent::kProtocolVersion) {
    return UnsupportedError("the agent at " + socket_path_ + " uses protocol " +
                            std::to_string(welcome->protocol) + ", this library " +
                            std::to_string(agent::kProtocolVersion) +
                            ": install the same release of both");
  }
  if (received->fds.size() != 1) {
    return ProtocolError(
        socket_path_, InternalError("its Welcome brings " + std::to_string(received->fds.size()) +
                                    " descriptors, expected 1"));
  }
  *memory = std::move(received->fds.front());
  return Status::Ok();
}

/// Returns whether the message is a Notice that the agent is still reserving memory, which extends
/// the wait for the connection.
bool AgentLink::IsProgress(const agent::MessageHeader& header, std::span<const std::byte> packet) {
  if (header.type != agent::MessageType::kNotice) return false;
  const auto notice = As<agent::NoticeMessage>(packet);
  if (notice.kind != agent::NoticeKind::kReserving) return false;
  const std::string text = agent::GetText(notice.text);
  bool first = false;
  {
    MutexLock lock(mutex_);
    first = !progress_at_.has_value();
    progress_at_ = MonotonicNow();
    if (!ever_connected_) status_ = DeadlineExceededError(text);
    changed_.NotifyAll();
  }
  observer_.OnLog(first ? HOLDFAST_LOG_INFO : HOLDFAST_LOG_DEBUG, text);
  return true;
}

Status AgentLink::TakeSegment(const agent::WelcomeMessage& welcome, const UniqueFd& memory) {
  if (mapping_.IsSame(memory.get()) && mapping_.bytes() == welcome.segment_bytes &&
      mapping_.slots() == welcome.slots) {
    return Status::Ok();
  }
  HOLDFAST_ASSIGN_OR_RETURN(SegmentMapping mapping,
                            SegmentMapping::Map(memory.get(), welcome, hello_.slot_bytes));
  if (mapping_.valid()) observer_.OnUnmapping(mapping_.base());
  mapping_ = std::move(mapping);
  observer_.OnMapped(mapping_.base(), mapping_.bytes());
  return Status::Ok();
}

Status AgentLink::Dispatch(int socket) {
  auto received = agent::ReceivePacket(socket, agent::kMessageBytesMax);
  if (!received) {
    if (received.error().code() == ErrorCode::kDeadlineExceeded) return Status::Ok();
    return received.error();
  }
  if (received->bytes.empty()) return UnavailableError("the agent closed the connection");
  auto header = agent::CheckPacket(received->bytes);
  if (!header) return ProtocolError(socket_path_, header.error());
  switch (header->type) {
    case agent::MessageType::kReply:
      OnReply(As<agent::ReplyMessage>(received->bytes),
              received->fds.empty() ? UniqueFd() : std::move(received->fds.front()));
      return Status::Ok();
    case agent::MessageType::kNotice:
      observer_.OnNotice(As<agent::NoticeMessage>(received->bytes));
      return Status::Ok();
    default:
      return ProtocolError(socket_path_,
                           InternalError("unexpected " + std::string(agent::NameOf(header->type))));
  }
}

void AgentLink::OnReply(const agent::ReplyMessage& reply, UniqueFd memory) {
  MutexLock lock(mutex_);
  auto found = calls_.find(reply.header.ticket);
  if (found == calls_.end()) return;
  PendingCall& call = found->second;
  if (!call.abandoned) {
    call.reply = reply;
    call.memory = std::move(memory);
    changed_.NotifyAll();
    return;
  }
  if (reply.code == 0) UndoLocked(call, reply);
  calls_.erase(found);
  changed_.NotifyAll();
}

/// Gives back the slot or reader that was granted to a call that has timed out.
void AgentLink::UndoLocked(const PendingCall& call, const agent::ReplyMessage& reply) {
  const uint64_t epoch = epoch_.load(std::memory_order_relaxed);
  const auto send = [&](const auto& message) HOLDFAST_REQUIRES(mutex_) {
    static_cast<void>(SendLocked(epoch, std::as_bytes(std::span(&message, 1))));
  };
  if (call.type == agent::MessageType::kReadRange || call.type == agent::MessageType::kReadIndex) {
    return;
  }
  if (call.type == agent::MessageType::kOpenReader ||
      call.type == agent::MessageType::kOpenVersion) {
    agent::CloseReaderMessage close;
    close.reader = reply.slot;
    return send(close);
  }
  const bool save = call.type == agent::MessageType::kBeginSave;
  agent::EndSaveMessage undo;
  undo.header.type = save ? agent::MessageType::kAbandonSave : agent::MessageType::kEndRestore;
  undo.slot = reply.slot;
  undo.step = save ? call.step : reply.step;
  send(undo);
}

void AgentLink::Disconnect(const Status& reason) {
  bool was_connected = false;
  {
    MutexLock lock(mutex_);
    was_connected = std::exchange(connected_, false);
    if (was_connected) epoch_.fetch_add(1, std::memory_order_release);
    status_ = reason;
    socket_.Reset();
    for (auto call = calls_.begin(); call != calls_.end();) {
      if (call->second.abandoned) {
        call = calls_.erase(call);
        continue;
      }
      if (!call->second.failure && !call->second.reply) {
        call->second.failure =
            UnavailableError("the connection to the agent was lost: " + reason.message());
      }
      ++call;
    }
    changed_.NotifyAll();
  }
  if (was_connected) observer_.OnDisconnected(reason);
  // Copies end within a chunk after the disconnect. None may still write a slot when the next
  // connection begins.
  MutexLock lock(mutex_);
  while (users_ > 0) changed_.Wait(mutex_);
}

}  // namespace holdfast::client
