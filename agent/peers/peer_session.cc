#include "agent/peers/peer_session.h"

#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <utility>

#include "agent/peers/messages.h"

namespace holdfast::agent {
namespace {

/// Returns whether to send the reason to the other side. False when the other side has disconnected
/// or this server is stopping.
bool ShouldReport(const Status& why) {
  return why.code() != ErrorCode::kUnavailable && why.code() != ErrorCode::kCancelled;
}

}  // namespace

PeerSession::PeerSession(UniqueFd socket, std::string peer, PeerServerContext& context)
    : context_(context), channel_(std::move(socket), std::move(peer), context.clock) {}

Clock::TimePoint PeerSession::In(Clock::Duration time) const { return context_.clock.Now() + time; }

void PeerSession::Stop() {
  channel_.Shut();
  MutexLock lock(mutex_);
  stopping_ = true;
  if (reader_ != nullptr) reader_->Cancel();
}

void PeerSession::CancelIfDisconnected() {
  MutexLock lock(mutex_);
  if (reader_ != nullptr && channel_.HasHungUp()) reader_->Cancel();
}

void PeerSession::SetReader(PeerReader* reader) {
  MutexLock lock(mutex_);
  reader_ = reader;
  if (reader_ != nullptr && stopping_) reader_->Cancel();
}

Status PeerSession::Run() {
  Status status = ShakeHands();
  if (!status.ok()) {
    ++context_.counters.rejected;
    return status;
  }
  // The first request of a connection gets the longer of the two timeouts.
  Clock::Duration timeout = std::max(context_.timeouts.idle, context_.timeouts.frame);
  for (;; timeout = context_.timeouts.idle) {
    idle_ = true;
    const Status readable = channel_.AwaitReadable(In(timeout));
    idle_ = false;
    HOLDFAST_RETURN_IF_ERROR(readable);
    status = ServeRequest();
    if (status.ok()) continue;
    if (ShouldReport(status)) {
      ++context_.counters.rejected;
      SendRefusal(channel_, status);
    }
    return status;
  }
}

Status PeerSession::ShakeHands() {
  const Clock::TimePoint deadline = In(context_.timeouts.frame);
  if (context_.tls != nullptr) {
    const Status started = channel_.StartTls(*context_.tls->Get(), "", deadline);
    if (started.code() == ErrorCode::kFailedPrecondition) SendRefusal(channel_, started);
    HOLDFAST_RETURN_IF_ERROR(started);
  }
  auto node = ShakeHandsAsServer(channel_, context_.self, deadline);
  Status status = node ? Status::Ok() : node.error();
  if (node) {
    name_ = channel_.tls_peer();
    node_ = *node;
    status = CheckPeerName(name_, context_.self.cluster, node_, context_.revoked);
  }
  if (status.ok()) {
    authenticated_ = true;
    context_.counters.modes.Add(node_, channel_.peer(), channel_.mode());
    return status;
  }
  if (ShouldReport(status)) SendRefusal(channel_, status);
  return status;
}

void PeerSession::StopIfRevoked() {
  if (!authenticated_ || context_.revoked == nullptr) return;
  if (!CheckPeerName(name_, context_.self.cluster, node_, context_.revoked).ok()) Stop();
}

Status PeerSession::ServeRequest() {
  HOLDFAST_ASSIGN_OR_RETURN(
      const auto payload, channel_.ReceiveFrame(FrameKind::kRequest, In(context_.timeouts.frame)));
  const FrameStamp stamp(payload);
  HOLDFAST_ASSIGN_OR_RETURN(const StreamRequest decoded, DecodeRequest(payload));
  const PeerRequest& request = decoded.request;
  auto opened = context_.source.Open(request);
  if (!opened) return SendError(opened.error(), stamp.At(request.offset));
  ++context_.counters.streams;
  HOLDFAST_RETURN_IF_ERROR(channel_.Send(FrameKind::kAccepted, {}, stamp.At(request.offset),
                                         In(context_.timeouts.send)));
  SetReader(opened->get());
  Status status = SendObject(request, stamp, **opened);
  SetReader(nullptr);  // before the reader is destroyed
  return status;
}

Status PeerSession::SendObject(const PeerRequest& request, const FrameStamp& stamp,
                               PeerReader& reader) {
  const uint64_t end = request.offset + request.bytes;
  for (uint64_t position = request.offset; position < end;) {
    const uint64_t want = std::min(kPeerUnitBytes, end - position);
    const uint32_t start = stamp.At(position);
    auto unit = reader.Read(position, want, In(context_.timeouts.source));
    if (!unit) return SendError(unit.error(), start);
    if (unit->size() > want) {
      return SendError(InternalError(fmt::format("a source returned {} bytes for a read of {}",
                                                 unit->size(), want)),
                       start);
    }
    if (unit->empty()) {
      return channel_.Send(FrameKind::kEnd, {}, start, In(context_.timeouts.send));
    }
    if (!context_.gate.Await(unit->size())) return CancelledError("the server is stopping");
    HOLDFAST_RETURN_IF_ERROR(
        channel_.Send(FrameKind::kData, *unit, start, In(context_.timeouts.send)));
    position += unit->size();
    context_.counters.data_bytes += unit->size();
    context_.counters.frame_bytes += kFrameHeaderBytes;
  }
  return Status::Ok();
}

Status PeerSession::SendError(const Status& error, uint32_t stamp) {
  const std::string payload = EncodeError(error);
  return channel_.Send(FrameKind::kError, std::as_bytes(std::span(payload)), stamp,
                       In(context_.timeouts.send));
}

}  // namespace holdfast::agent
