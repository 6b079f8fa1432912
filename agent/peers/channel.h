#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "agent/peers/frame.h"
#include "agent/peers/tls.h"
#include "storage/base/clock.h"
#include "storage/base/fd.h"
#include "storage/base/status.h"

namespace holdfast::agent {

/// One connection to a peer: frames with deadlines, in the clear or inside TLS. Used by one thread
/// at a time, but for Shut(). After any error it is of no more use, and the errors are:
/// Unavailable: the other side is gone; DeadlineExceeded; Cancelled: Shut(); DataLoss: bytes that
/// are no frame or do not match their checksum; Unsupported: frames of a newer protocol.
class Channel {
 public:
  /// Takes over a connected, non-blocking socket. `peer` names the other side in errors.
  Channel(UniqueFd socket, std::string peer);
  ~Channel();

  /// Puts everything from now on inside TLS. FailedPrecondition: the other side does not, and what
  /// it says, a refusal maybe, can be received as ever.
  Status StartTls(const TlsContext& context, const std::string& host, Clock::TimePoint deadline);

  /// Sends a frame whose checksum starts at `stamp`; `payload` goes out from where it lies.
  Status Send(FrameKind kind, std::span<const std::byte> payload, uint32_t stamp,
              Clock::TimePoint deadline, uint16_t flags = 0);
  Status SendText(FrameKind kind, const std::string& payload, Clock::TimePoint deadline);

  Result<FrameHeader> ReceiveHeader(Clock::TimePoint deadline);
  /// Receives the payload of `header` into the front of `into`, which has room for it, and checks
  /// it as it comes.
  Status ReceivePayload(const FrameHeader& header, uint32_t stamp, std::span<std::byte> into,
                        Clock::TimePoint deadline);
  /// Receives a whole frame that must be of `kind`; an Error of the connection comes back as its
  /// status, any other frame as DataLoss.
  Result<std::vector<std::byte>> ReceiveFrame(FrameKind kind, Clock::TimePoint deadline);
  /// What the other side said before it hung up, if it said why; `otherwise` if not.
  Status RefusalOr(Status otherwise);

  /// Waits until something can be received. Unavailable when the other side hung up instead.
  Status AwaitReadable(Clock::TimePoint deadline);
  /// Connected, and nothing waits to be received.
  bool IsQuiet();
  /// The other side is gone. Any thread.
  bool HasHungUp() const;
  /// Ends what runs and all later calls as Cancelled. Any thread.
  void Shut();

  const std::string& peer() const { return peer_; }

 private:
  Status Poll(short events, Clock::TimePoint deadline) const;
  Status Broken(int error) const;
  Status Ended() const;
  Status SendBytes(FrameKind kind, std::span<const std::byte> payload, uint32_t stamp,
                   Clock::TimePoint deadline, uint16_t flags);
  Status SendPlain(std::span<const std::byte> header, std::span<const std::byte> payload,
                   Clock::TimePoint deadline);
  Status SendTls(std::span<const std::byte> bytes, Clock::TimePoint deadline);
  Status Receive(std::span<std::byte> into, Clock::TimePoint deadline);
  /// The kernel wakes a Poll for receiving once so many bytes are there, or the end is.
  void WakeAt(size_t bytes);
  Result<size_t> ReceiveSome(std::span<std::byte> into, Clock::TimePoint deadline);
  Status WaitFor(TlsSession::Want want, Clock::TimePoint deadline) const;

  const UniqueFd socket_;
  const std::string peer_;
  size_t wake_bytes_ = 1;
  std::atomic<bool> shut_{false};
  std::unique_ptr<TlsSession> tls_;  // after the socket: it ends first
};

}  // namespace holdfast::agent
