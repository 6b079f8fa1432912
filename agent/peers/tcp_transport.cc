#include "agent/peers/tcp_transport.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "agent/peers/channel.h"
#include "agent/peers/handshake.h"
#include "agent/peers/idle_channels.h"
#include "agent/peers/messages.h"
#include "agent/peers/peer_name.h"
#include "agent/peers/secret.h"
#include "agent/peers/sockets.h"
#include "base/ids.h"
#include "base/mutex.h"
#include "base/random.h"

namespace holdfast::agent {
namespace {

/// The answer of a server to a request.
struct Answer {
  FrameHeader header;
  Status error;  // the source's, from an Error frame
};

/// Receives the next frame of a stream, without the payload if it is a Data frame. `position` is
/// how far the stream is. After an error, the connection is unusable.
Result<Answer> ReceiveAnswer(Channel& channel, const FrameStamp& stamp, uint64_t position,
                             Clock::TimePoint deadline) {
  Answer answer;
  HOLDFAST_ASSIGN_OR_RETURN(answer.header, channel.ReceiveHeader(deadline));
  if (answer.header.kind == FrameKind::kData) return answer;
  const bool refusal = answer.header.flags == kFrameOfConnection;
  std::vector<std::byte> payload(answer.header.payload_bytes);
  HOLDFAST_RETURN_IF_ERROR(channel.ReceivePayload(
      answer.header, refusal ? kNoStamp : stamp.At(position), payload, deadline));
  if (answer.header.kind == FrameKind::kError) answer.error = DecodeError(payload);
  if (refusal) return Fail(answer.error.WithContext(channel.peer()));
  return answer;
}

Status OutOfPlace(const Channel& channel, FrameKind kind) {
  return DataLossError(channel.peer() + " sent a frame " + std::string(FrameName(kind)) +
                       " out of place");
}

class TcpPeerStream final : public PeerStream {
 public:
  TcpPeerStream(IdleChannels& idle, std::string address, std::unique_ptr<Channel> channel,
                const FrameStamp& stamp, uint64_t offset, uint64_t bytes,
                std::atomic<uint64_t>* received_bytes)
      : idle_(idle),
        address_(std::move(address)),
        stamp_(stamp),
        position_(offset),
        end_(offset + bytes),
        received_bytes_(received_bytes),
        channel_(std::move(channel)) {
    if (position_ == end_) Finish(Status::Ok());
  }

  Result<size_t> Read(std::span<std::byte> into, Clock::TimePoint deadline) override {
    Channel* channel = nullptr;
    {
      MutexLock lock(mutex_);
      if (cancelled_) return Fail(CancelledError("the stream was cancelled"));
      channel = channel_.get();  // only this thread resets it
    }
    if (into.empty()) return Fail(InvalidArgumentError("the buffer for a peer's bytes is empty"));
    if (!rest_.empty()) return TakeRest(into);
    if (channel == nullptr) {
      HOLDFAST_RETURN_IF_ERROR(outcome_);
      return 0;
    }
    auto got = ReadFrame(*channel, into, deadline);
    if (got) return got;
    Abandon(got.error());
    return got;
  }

  void Cancel() override {
    MutexLock lock(mutex_);
    cancelled_ = true;
    if (channel_ != nullptr) channel_->Shut();
  }

 private:
  Result<size_t> ReadFrame(Channel& channel, std::span<std::byte> into, Clock::TimePoint deadline) {
    HOLDFAST_ASSIGN_OR_RETURN(const Answer answer,
                              ReceiveAnswer(channel, stamp_, position_, deadline));
    const FrameHeader& header = answer.header;
    if (header.kind == FrameKind::kEnd) {
      Finish(Status::Ok());
      return 0;
    }
    if (header.kind == FrameKind::kError) {
      Finish(answer.error);
      return Fail(answer.error);
    }
    if (header.kind != FrameKind::kData) return Fail(OutOfPlace(channel, header.kind));
    const uint64_t bytes = header.payload_bytes;
    if (bytes == 0 || bytes > end_ - position_) {
      return Fail(DataLossError(channel.peer() + " sent an empty unit or more than was requested"));
    }
    // The reader gets a unit only after all of it was verified. If the unit does not fit into the
    // reader's buffer, it is received into unit_.
    const bool fits = bytes <= into.size();
    if (!fits) unit_.resize(kPeerUnitBytes);
    HOLDFAST_RETURN_IF_ERROR(channel.ReceivePayload(header, stamp_.At(position_),
                                                    fits ? into : std::span(unit_), deadline));
    position_ += bytes;
    if (received_bytes_ != nullptr) received_bytes_->fetch_add(bytes, std::memory_order_relaxed);
    if (position_ == end_) Finish(Status::Ok());
    if (fits) return bytes;
    rest_ = std::span<const std::byte>(unit_).first(bytes);
    return TakeRest(into);
  }

  Result<size_t> TakeRest(std::span<std::byte> into) {
    const size_t bytes = std::min(rest_.size(), into.size());
    if (bytes > 0) std::memcpy(into.data(), rest_.data(), bytes);
    rest_ = rest_.subspan(bytes);
    return bytes;
  }

  /// Ends the stream in order and returns the connection for another stream.
  void Finish(Status outcome) {
    outcome_ = std::move(outcome);
    std::unique_ptr<Channel> channel;
    {
      MutexLock lock(mutex_);
      if (!cancelled_) channel = std::move(channel_);
      channel_.reset();
    }
    if (channel != nullptr) idle_.Put(address_, std::move(channel));
  }

  void Abandon(const Status& why) {
    MutexLock lock(mutex_);
    if (channel_ == nullptr) return;  // finished with the source's error
    outcome_ = why;
    channel_.reset();
  }

  IdleChannels& idle_;
  const std::string address_;
  const FrameStamp stamp_;
  uint64_t position_;
  const uint64_t end_;
  std::atomic<uint64_t>* const received_bytes_;
  Status outcome_;                   // valid once channel_ is null
  std::vector<std::byte> unit_;      // for readers with a buffer smaller than a unit
  std::span<const std::byte> rest_;  // of unit_
  Mutex mutex_;
  std::unique_ptr<Channel> channel_ HOLDFAST_GUARDED_BY(mutex_);
  bool cancelled_ HOLDFAST_GUARDED_BY(mutex_) = false;
};

class TcpTransport final : public PeerTransport {
 public:
  TcpTransport(PeerIdentity self, std::unique_ptr<TlsContexts> tls,
               const TcpTransportOptions& options, const Clock& clock)
      : self_(std::move(self)),
        tls_(std::move(tls)),
        revoked_(options.revoked),
        received_bytes_(options.received_bytes),
        clock_(clock),
        idle_(options.idle_max, options.idle_timeout, clock) {}

  Result<std::unique_ptr<PeerStream>> Open(const std::string& address, const PeerRequest& request,
                                           Clock::TimePoint deadline) override {
    HOLDFAST_RETURN_IF_ERROR(ValidateRequest(request));
    HOLDFAST_ASSIGN_OR_RETURN(const Endpoint where, ParseEndpoint(address));
    HOLDFAST_RETURN_IF_ERROR(RequireTls(where, tls_ != nullptr, "a peer's address"));
    // An idle connection may have died unnoticed, or may have frames of an older stream pending.
    // Repeating the request is harmless.
    const std::string key = address + " " + request.node;
    while (auto channel = idle_.Take(key)) {
      // The node may have been revoked meanwhile.
      if (!request.node.empty() &&
          !CheckPeerName(channel->tls_peer(), self_.cluster, request.node, revoked_).ok()) {
        continue;
      }
      auto stream = SendRequest(key, channel, request, deadline);
      const bool answered = stream || channel == nullptr;
      if (answered || stream.error().code() == ErrorCode::kDeadlineExceeded) return stream;
    }
    HOLDFAST_ASSIGN_OR_RETURN(auto channel, Dial(where, request.node, deadline));
    return SendRequest(key, channel, request, deadline);
  }

 private:
  /// `wanted`: the node that must answer; empty: any.
  Result<std::unique_ptr<Channel>> Dial(const Endpoint& where, const std::string& wanted,
                                        Clock::TimePoint deadline) {
    HOLDFAST_ASSIGN_OR_RETURN(UniqueFd socket, ConnectTo(where, deadline, clock_));
    auto channel = std::make_unique<Channel>(std::move(socket), where.ToString(), clock_);
    if (tls_ != nullptr) {
      const Status started = channel->StartTls(*tls_->Get(), where.host, deadline);
      // A server at its connection limit sends the refusal before TLS and closes the connection.
      if (started.code() == ErrorCode::kFailedPrecondition ||
          started.code() == ErrorCode::kUnavailable) {
        return Fail(channel->RefusalOr(started));
      }
      HOLDFAST_RETURN_IF_ERROR(started);
    }
    HOLDFAST_ASSIGN_OR_RETURN(const std::string node,
                              ShakeHandsAsClient(*channel, self_, deadline));
    HOLDFAST_RETURN_IF_ERROR(CheckPeerName(channel->tls_peer(), self_.cluster, node, revoked_));
    if (!wanted.empty() && node != wanted) {
      return Fail(PermissionDeniedError("node '" + node + "' answers at " + where.ToString() +
                                        ", where the plan has node '" + wanted + "'"));
    }
    return channel;
  }

  /// Sends the request and waits for the source's answer. Takes ownership of the channel once any
  /// answer has arrived.
  Result<std::unique_ptr<PeerStream>> SendRequest(const std::string& key,
                                                  std::unique_ptr<Channel>& channel,
                                                  const PeerRequest& request,
                                                  Clock::TimePoint deadline) {
    const std::string payload = EncodeRequest({RandomSeed(), request});
    const FrameStamp stamp(std::as_bytes(std::span(payload)));
    const Status sent = channel->SendText(FrameKind::kRequest, payload, deadline);
    if (!sent.ok()) return Fail(channel->RefusalOr(sent));
    HOLDFAST_ASSIGN_OR_RETURN(const Answer answer,
                              ReceiveAnswer(*channel, stamp, request.offset, deadline));
    if (answer.header.kind == FrameKind::kError) {
      idle_.Put(key, std::move(channel));
      return Fail(answer.error);
    }
    if (answer.header.kind != FrameKind::kAccepted) {
      return Fail(OutOfPlace(*channel, answer.header.kind));
    }
    return std::make_unique<TcpPeerStream>(idle_, key, std::move(channel), stamp, request.offset,
                                           request.bytes, received_bytes_);
  }

  const PeerIdentity self_;
  const std::unique_ptr<TlsContexts> tls_;
  const certificates::RevokedNames* const revoked_;
  std::atomic<uint64_t>* const received_bytes_;
  const Clock& clock_;
  IdleChannels idle_;
};

}  // namespace

Result<std::unique_ptr<PeerTransport>> MakeTcpTransport(const TcpTransportOptions& options,
                                                        const Clock& clock) {
  HOLDFAST_RETURN_IF_ERROR(ValidateName("cluster", options.cluster));
  HOLDFAST_RETURN_IF_ERROR(ValidateName("node", options.node));
  PeerIdentity self{options.cluster, options.node, ""};
  if (!options.secret_file.empty()) {
    HOLDFAST_ASSIGN_OR_RETURN(self.secret, ReadPeerSecret(options.secret_file));
  }
  std::unique_ptr<TlsContexts> tls;
  if (options.tls.configured()) {
    HOLDFAST_ASSIGN_OR_RETURN(
        tls, TlsContexts::Load(options.tls, TlsContext::Role::kClient, options.encrypt));
  }
  return std::make_unique<TcpTransport>(std::move(self), std::move(tls), options, clock);
}

}  // namespace holdfast::agent
