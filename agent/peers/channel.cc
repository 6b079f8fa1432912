#include "agent/peers/channel.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>

#include "agent/peers/messages.h"
#include "agent/peers/sockets.h"
#include "storage/format/checksum.h"

namespace holdfast::agent {
namespace {

// Bytes are received and checksummed in pieces of this size: large enough to make wake-ups cheap,
// and small enough to still be in the cache for the checksum.
constexpr size_t kPieceBytes = 512 << 10;
// How long to wait for the refusal of a peer that is slow to close the connection.
constexpr auto kRefusalWait = std::chrono::seconds(1);

}  // namespace

Channel::Channel(UniqueFd socket, std::string peer, const Clock& clock)
    : socket_(std::move(socket)), peer_(std::move(peer)), clock_(clock) {}

Channel::~Channel() = default;

void Channel::Shut() {
  shut_ = true;
  ::shutdown(socket_.get(), SHUT_RDWR);
}

Status Channel::Ended() const {
  if (shut_) return CancelledError("this node has shut the connection down");
  return UnavailableError(peer_ + " has closed the connection");
}

Status Channel::Broken(int error) const {
  if (shut_) return CancelledError("this node has shut the connection down");
  return UnavailableError(
      fmt::format("the connection to {} broke: {}", peer_, std::strerror(error)));
}

Status Channel::Poll(short events, Clock::TimePoint deadline) const {
  for (;;) {
    pollfd waiting{.fd = socket_.get(), .events = events, .revents = 0};
    const int ready = ::poll(&waiting, 1, PollMsUntil(deadline, clock_));
    if (shut_) return Ended();
    if (ready > 0) return Status::Ok();
    if (ready == 0) {
      return DeadlineExceededError(
          fmt::format("{} did not {} in time", peer_,
                      (events & POLLIN) != 0 ? "answer" : "receive the data sent to it"));
    }
    if (errno != EINTR) return Broken(errno);
  }
}

Status Channel::WaitFor(TlsSession::Want want, Clock::TimePoint deadline) const {
  if (want == TlsSession::Want::kNothing) return Status::Ok();
  return Poll(want == TlsSession::Want::kRead ? POLLIN : POLLOUT, deadline);
}

Status Channel::StartTls(const TlsContext& context, const std::string& host,
                         Clock::TimePoint deadline) {
  HOLDFAST_ASSIGN_OR_RETURN(auto session, TlsSession::Make(context, socket_.get(), host));
  for (;;) {
    auto step = session->Handshake();
    if (!step) return shut_ ? Ended() : step.error().WithContext(peer_);
    if (step->want == TlsSession::Want::kNothing) break;
    HOLDFAST_RETURN_IF_ERROR(WaitFor(step->want, deadline));
  }
  tls_ = std::move(session);
  return Status::Ok();
}

Status Channel::BeginTags() {
  if (tls_ == nullptr) return Status::Ok();
  HOLDFAST_ASSIGN_OR_RETURN(const auto keys, tls_->frame_keys());
  if (!keys) return Status::Ok();
  HOLDFAST_ASSIGN_OR_RETURN(auto sends, FrameMac::Make(keys->sent));
  HOLDFAST_ASSIGN_OR_RETURN(receive_mac_, FrameMac::Make(keys->received));
  send_mac_ = std::move(sends);
  return Status::Ok();
}

Status Channel::Send(FrameKind kind, std::span<const std::byte> payload, uint32_t stamp,
                     Clock::TimePoint deadline, uint16_t flags) {
  Status status = SendBytes(kind, payload, stamp, deadline, flags);
  if (status.code() == ErrorCode::kDeadlineExceeded) {
    // The kernel need not keep data that the other side does not receive after the close.
    const linger at_once{.l_onoff = 1, .l_linger = 0};
    ::setsockopt(socket_.get(), SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once));
  }
  return status;
}

Status Channel::SendBytes(FrameKind kind, std::span<const std::byte> payload, uint32_t stamp,
                          Clock::TimePoint deadline, uint16_t flags) {
  FrameHeader header{kind, flags, static_cast<uint32_t>(payload.size()), stamp};
  if (send_mac_ != nullptr) return SendTagged(header, payload, deadline);
  header.payload_crc = ExtendCrc32c(stamp, payload);
  const auto bytes = EncodeFrameHeader(header);
  return encrypts() ? SendTls(bytes, payload, deadline) : SendPlain(bytes, payload, {}, deadline);
}

Status Channel::SendTagged(FrameHeader header, std::span<const std::byte> payload,
                           Clock::TimePoint deadline) {
  const auto bytes = EncodeFrameHeader(header);
  send_mac_->Begin(bytes);
  send_mac_->Add(payload);
  HOLDFAST_ASSIGN_OR_RETURN(const FrameTag tag, send_mac_->End());
  return SendPlain(bytes, payload, tag, deadline);
}

Status Channel::SendText(FrameKind kind, const std::string& payload, Clock::TimePoint deadline) {
  return Send(kind, std::as_bytes(std::span(payload)), kNoStamp, deadline);
}

Status Channel::SendPlain(std::span<const std::byte> header, std::span<const std::byte> payload,
                          std::span<const std::byte> tag, Clock::TimePoint deadline) {
  // sendmsg() only reads the bytes, but iovec is not const.
  iovec pieces[3] = {{const_cast<std::byte*>(header.data()), header.size()},
                     {const_cast<std::byte*>(payload.data()), payload.size()},
                     {const_cast<std::byte*>(tag.data()), tag.size()}};
  msghdr message{};
  message.msg_iov = pieces;
  message.msg_iovlen = 3;
  while (message.msg_iovlen > 0) {
    ssize_t sent = ::sendmsg(socket_.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0) {
      if (!IsRetry(errno)) return Broken(errno);
      HOLDFAST_RETURN_IF_ERROR(Poll(POLLOUT, deadline));
      continue;
    }
    for (auto left = static_cast<size_t>(sent); message.msg_iovlen > 0;) {
      iovec& piece = *message.msg_iov;
      const size_t taken = std::min(left, piece.iov_len);
      piece.iov_base = static_cast<std::byte*>(piece.iov_base) + taken;
      piece.iov_len -= taken;
      left -= taken;
      if (piece.iov_len > 0) break;
      ++message.msg_iov;
      --message.msg_iovlen;
    }
  }
  return Status::Ok();
}

Status Channel::SendTls(std::span<const std::byte> header, std::span<const std::byte> payload,
                        Clock::TimePoint deadline) {
  for (std::span<const std::byte> bytes : {header, payload}) {
    while (!bytes.empty()) {
      auto step = tls_->Write(bytes);
      if (!step) return shut_ ? Ended() : step.error().WithContext(peer_);
      bytes = bytes.subspan(step->bytes);
      HOLDFAST_RETURN_IF_ERROR(WaitFor(step->want, deadline));
    }
  }
  for (;;) {
    auto step = tls_->Flush();
    if (!step) return shut_ ? Ended() : step.error().WithContext(peer_);
    if (step->want == TlsSession::Want::kNothing) return Status::Ok();
    HOLDFAST_RETURN_IF_ERROR(WaitFor(step->want, deadline));
  }
}

Result<size_t> Channel::ReceiveSome(std::span<std::byte> into, Clock::TimePoint deadline) {
  for (;;) {
    if (encrypts()) {
      auto step = tls_->Read(into);
      if (!step) return Fail(shut_ ? Ended() : step.error().WithContext(peer_));
      if (step->bytes > 0) return step->bytes;
      if (step->want == TlsSession::Want::kNothing) return Fail(Ended());
      HOLDFAST_RETURN_IF_ERROR(WaitFor(step->want, deadline));
      continue;
    }
    const ssize_t got = ::recv(socket_.get(), into.data(), into.size(), MSG_DONTWAIT);
    if (got > 0) return static_cast<size_t>(got);
    if (got == 0) return Fail(Ended());
    if (!IsRetry(errno)) return Fail(Broken(errno));
    WakeAt(into.size());
    HOLDFAST_RETURN_IF_ERROR(Poll(POLLIN, deadline));
  }
}

void Channel::WakeAt(size_t bytes) {
  if (wake_bytes_ == bytes) return;
  wake_bytes_ = bytes;
  const int value = static_cast<int>(bytes);
  // An optimization: if the kernel refuses, there are only more wake-ups.
  ::setsockopt(socket_.get(), SOL_SOCKET, SO_RCVLOWAT, &value, sizeof(value));
}

Status Channel::Receive(std::span<std::byte> into, Clock::TimePoint deadline) {
  while (!into.empty()) {
    HOLDFAST_ASSIGN_OR_RETURN(const size_t got, ReceiveSome(into, deadline));
    into = into.subspan(got);
  }
  return Status::Ok();
}

Result<FrameHeader> Channel::ReceiveHeader(Clock::TimePoint deadline) {
  std::array<std::byte, kFrameHeaderBytes> bytes;
  HOLDFAST_RETURN_IF_ERROR(Receive(bytes, deadline));
  if (receive_mac_ != nullptr) receive_mac_->Begin(bytes);
  auto header = DecodeFrameHeader(bytes);
  if (!header) return Fail(header.error().WithContext(peer_));
  return header;
}

Status Channel::ReceivePayload(const FrameHeader& header, uint32_t stamp, std::span<std::byte> into,
                               Clock::TimePoint deadline) {
  into = into.first(header.payload_bytes);
  uint32_t crc = stamp;
  while (!into.empty()) {
    HOLDFAST_ASSIGN_OR_RETURN(
        const size_t got, ReceiveSome(into.first(std::min(into.size(), kPieceBytes)), deadline));
    if (receive_mac_ != nullptr) {
      receive_mac_->Add(into.first(got));
    } else {
      crc = ExtendCrc32c(crc, into.first(got));
    }
    into = into.subspan(got);
  }
  if (receive_mac_ != nullptr) HOLDFAST_RETURN_IF_ERROR(CheckTag(header, deadline));
  if (crc == header.payload_crc) return Status::Ok();
  return DataLossError(
      fmt::format("a frame {} of {} does not match its checksum", FrameName(header.kind), peer_));
}

Status Channel::CheckTag(const FrameHeader& header, Clock::TimePoint deadline) {
  FrameTag tag{};
  HOLDFAST_RETURN_IF_ERROR(Receive(tag, deadline));
  HOLDFAST_ASSIGN_OR_RETURN(const FrameTag expected, receive_mac_->End());
  if (SameTag(tag, expected)) return Status::Ok();
  return DataLossError(
      fmt::format("a frame {} of {} does not match its tag: it was changed, "
                  "repeated, omitted or moved on the way",
                  FrameName(header.kind), peer_));
}

Result<std::vector<std::byte>> Channel::ReceiveFrame(FrameKind kind, Clock::TimePoint deadline) {
  HOLDFAST_ASSIGN_OR_RETURN(const FrameHeader header, ReceiveHeader(deadline));
  const bool refusal = header.kind == FrameKind::kError && header.flags == kFrameOfConnection;
  if (header.kind != kind && !refusal) {
    return Fail(DataLossError(fmt::format("{} sent a frame {} where {} is expected", peer_,
                                          FrameName(header.kind), FrameName(kind))));
  }
  std::vector<std::byte> payload(header.payload_bytes);
  HOLDFAST_RETURN_IF_ERROR(ReceivePayload(header, kNoStamp, payload, deadline));
  if (refusal) return Fail(DecodeError(payload).WithContext(peer_));
  return payload;
}

Status Channel::RefusalOr(Status otherwise) {
  if (shut_) return otherwise;
  const auto deadline = clock_.Now() + kRefusalWait;
  auto header = ReceiveHeader(deadline);
  // A TLS alert is a refusal, too.
  if (!header && header.error().code() == ErrorCode::kPermissionDenied) return header.error();
  if (!header || header->kind != FrameKind::kError || header->flags != kFrameOfConnection) {
    return otherwise;
  }
  std::vector<std::byte> payload(header->payload_bytes);
  if (!ReceivePayload(*header, kNoStamp, payload, deadline).ok()) return otherwise;
  return DecodeError(payload).WithContext(peer_);
}

Status Channel::AwaitReadable(Clock::TimePoint deadline) {
  if (encrypts() && tls_->has_pending()) return Status::Ok();
  WakeAt(1);
  HOLDFAST_RETURN_IF_ERROR(Poll(POLLIN, deadline));
  return HasHungUp() ? Ended() : Status::Ok();
}

bool Channel::IsQuiet() {
  if (shut_ || (encrypts() && tls_->has_pending())) return false;
  WakeAt(1);
  pollfd now{.fd = socket_.get(), .events = POLLIN | POLLRDHUP, .revents = 0};
  return ::poll(&now, 1, 0) == 0;
}

bool Channel::HasHungUp() const {
  pollfd now{.fd = socket_.get(), .events = POLLRDHUP, .revents = 0};
  return ::poll(&now, 1, 0) > 0;
}

}  // namespace holdfast::agent
