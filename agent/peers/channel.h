#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "agent/peers/frame.h"
#include "agent/peers/frame_mac.h"
#include "agent/peers/frame_modes.h"
#include "agent/peers/tls.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/status.h"

namespace holdfast::agent {

/// One connection to a peer: frames with deadlines, in plain text, inside TLS or with tags. Only
/// one thread at a time may use it, except for Shut() and HasHungUp(). Unusable after any error.
/// The errors are Unavailable (the other side has closed the connection), DeadlineExceeded,
/// Cancelled (Shut() was called), DataLoss (the bytes are not a frame or do not match their
/// checksum or tag) and Unsupported (frames of a newer protocol).
class Channel {
 public:
  /// Takes ownership of a connected, non-blocking socket. `peer` names the other side in errors.
  /// `clock` outlives the channel.
  Channel(UniqueFd socket, std::string peer, const Clock& clock);
  ~Channel();

  /// Sends and receives everything from now on inside TLS. FailedPrecondition: the other side does
  /// not use TLS; its frames, such as a refusal, can be received in plain text.
  Status StartTls(const TlsContext& context, const std::string& host, Clock::TimePoint deadline);

  /// Sends and receives every frame from now on with a tag instead of inside TLS, if both sides of
  /// the TLS handshake allow that. Both sides must call this between the same two frames.
  Status BeginTags();

  /// Returns the name in the other side's certificate; none without TLS.
  TlsPeer tls_peer() const { return tls_ == nullptr ? TlsPeer() : tls_->peer(); }

  /// Returns what protects the frames from now on.
  FrameMode mode() const {
    if (tls_ == nullptr) return FrameMode::kPlain;
    return encrypts() ? FrameMode::kTls : FrameMode::kMac;
  }

  /// Sends a frame whose checksum starts at `stamp`; `payload` is not copied.
  Status Send(FrameKind kind, std::span<const std::byte> payload, uint32_t stamp,
              Clock::TimePoint deadline, uint16_t flags = 0);
  Status SendText(FrameKind kind, const std::string& payload, Clock::TimePoint deadline);

  Result<FrameHeader> ReceiveHeader(Clock::TimePoint deadline);
  /// Receives the payload of `header` into the front of `into`, which must be large enough, and
  /// verifies its checksum or tag. Must follow each ReceiveHeader(): until then the header may have
  /// been changed on the way.
  Status ReceivePayload(const FrameHeader& header, uint32_t stamp, std::span<std::byte> into,
                        Clock::TimePoint deadline);
  /// Receives a complete frame of `kind`. If the other side refuses the connection instead (an
  /// Error frame with kFrameOfConnection), returns its status. DataLoss for any other frame.
  Result<std::vector<std::byte>> ReceiveFrame(FrameKind kind, Clock::TimePoint deadline);
  /// Returns the refusal that the other side sent before it closed the connection, or `otherwise`
  /// if it sent none.
  Status RefusalOr(Status otherwise);

  /// Blocks until bytes can be received. Unavailable: the other side has closed the connection.
  Status AwaitReadable(Clock::TimePoint deadline);
  /// Returns whether the channel is connected and has no bytes to receive.
  bool IsQuiet();
  /// Returns whether the other side has closed the connection. Callable from any thread.
  bool HasHungUp() const;
  /// Makes running and later calls return Cancelled. Callable from any thread.
  void Shut();

  const std::string& peer() const { return peer_; }
  const Clock& clock() const { return clock_; }

 private:
  Status Poll(short events, Clock::TimePoint deadline) const;
  Status Broken(int error) const;
  Status Ended() const;
  Status SendBytes(FrameKind kind, std::span<const std::byte> payload, uint32_t stamp,
                   Clock::TimePoint deadline, uint16_t flags);
  Status SendPlain(std::span<const std::byte> header, std::span<const std::byte> payload,
                   std::span<const std::byte> tag, Clock::TimePoint deadline);
  Status SendTagged(FrameHeader header, std::span<const std::byte> payload,
                    Clock::TimePoint deadline);
  Status CheckTag(const FrameHeader& header, Clock::TimePoint deadline);
  Status SendTls(std::span<const std::byte> header, std::span<const std::byte> payload,
                 Clock::TimePoint deadline);
  Status Receive(std::span<std::byte> into, Clock::TimePoint deadline);
  /// Makes the kernel wake a Poll() for receiving only when `bytes` bytes or the end have arrived.
  void WakeAt(size_t bytes);
  Result<size_t> ReceiveSome(std::span<std::byte> into, Clock::TimePoint deadline);
  Status WaitFor(TlsSession::Want want, Clock::TimePoint deadline) const;
  /// Whether bytes pass through the TLS session.
  bool encrypts() const { return tls_ != nullptr && send_mac_ == nullptr; }

  const UniqueFd socket_;
  const std::string peer_;
  const Clock& clock_;
  size_t wake_bytes_ = 1;
  std::atomic<bool> shut_{false};
  std::unique_ptr<TlsSession> tls_;     // declared after the socket, so destroyed before it
  std::unique_ptr<FrameMac> send_mac_;  // both or none
  std::unique_ptr<FrameMac> receive_mac_;
};

}  // namespace holdfast::agent
