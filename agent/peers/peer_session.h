#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "agent/peers/channel.h"
#include "agent/peers/frame_modes.h"
#include "agent/peers/handshake.h"
#include "agent/peers/pace_gate.h"
#include "agent/peers/peer_name.h"
#include "agent/peers/tls.h"
#include "agent/peers/transport.h"
#include "base/clock.h"
#include "base/mutex.h"

namespace holdfast::agent {

/// Timeouts of a server. Each of them bounds the wait of one connection's thread.
struct PeerServerTimeouts {
  Clock::Duration frame = std::chrono::seconds(5);    // for the handshake; for the rest of a frame
  Clock::Duration idle = std::chrono::seconds(60);    // for the next request
  Clock::Duration source = std::chrono::seconds(60);  // for a unit from the source
  Clock::Duration send = std::chrono::seconds(30);    // for a peer to receive a unit
};

/// Totals of a server since its start.
struct PeerServerCounters {
  std::atomic<uint64_t> connections{0};  // accepted
  std::atomic<uint64_t> refused{0};      // over the limit
  std::atomic<uint64_t> rejected{0};     // failed authentication or violated the protocol
  std::atomic<uint64_t> streams{0};      // requests whose object the source opened
  std::atomic<uint64_t> data_bytes{0};   // data sent, without frames and handshakes
  std::atomic<uint64_t> frame_bytes{0};  // headers of the sent data
  FrameModes modes;                      // of the connections that completed the handshake
};

/// State shared by all sessions of a server; it must outlive them.
struct PeerServerContext {
  PeerIdentity self;
  std::unique_ptr<TlsContexts> tls;           // null: plain text
  const certificates::RevokedNames* revoked;  // null: no name is revoked
  PeerServerTimeouts timeouts;
  PeerSource& source;
  const Clock& clock;
  PaceGate gate;
  PeerServerCounters counters;
};

/// The server side of one connection: a handshake, then requests one after another.
class PeerSession {
 public:
  PeerSession(UniqueFd socket, std::string peer, PeerServerContext& context);

  /// Serves until the connection ends and returns the reason. For one thread.
  Status Run();
  /// Makes Run() return soon. Callable from any thread.
  void Stop();
  /// Cancels the source's reader if the client has disconnected. Callable from any thread.
  void CancelIfDisconnected();

  /// Returns whether the client has no request now. Callable from any thread.
  bool idle() const { return idle_.load(); }
  /// Returns whether the client has proved who it is. Callable from any thread.
  bool authenticated() const { return authenticated_.load(); }
  /// Stops the session if the client's certificate was revoked since. Callable from any thread.
  void StopIfRevoked();
  const std::string& peer() const { return channel_.peer(); }

 private:
  Status ShakeHands();
  Status ServeRequest();
  Status SendObject(const PeerRequest& request, const FrameStamp& stamp, PeerReader& reader);
  Status SendError(const Status& error, uint32_t stamp);
  /// Sets the reader for Stop() and CancelIfDisconnected(); null: none.
  void SetReader(PeerReader* reader);
  Clock::TimePoint In(Clock::Duration time) const;

  PeerServerContext& context_;
  Channel channel_;
  std::atomic<bool> idle_{false};
  std::atomic<bool> authenticated_{false};
  TlsPeer name_;      // of the client; constant once authenticated_ is set
  std::string node_;  // the same
  Mutex mutex_;
  bool stopping_ HOLDFAST_GUARDED_BY(mutex_) = false;
  PeerReader* reader_ HOLDFAST_GUARDED_BY(mutex_) = nullptr;
};

}  // namespace holdfast::agent
