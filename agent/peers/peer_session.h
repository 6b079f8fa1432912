#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "agent/peers/channel.h"
#include "agent/peers/handshake.h"
#include "agent/peers/pace_gate.h"
#include "agent/peers/tls.h"
#include "agent/peers/transport.h"
#include "storage/base/clock.h"
#include "storage/base/mutex.h"

namespace holdfast::agent {

/// How long a server waits for what. All are bounds on one thread and one connection.
struct PeerServerTimeouts {
  Clock::Duration frame = std::chrono::seconds(5);    // the handshake; the rest of a frame
  Clock::Duration idle = std::chrono::seconds(60);    // the next request
  Clock::Duration source = std::chrono::seconds(60);  // a unit from the source
  Clock::Duration send = std::chrono::seconds(30);    // a peer that does not take a unit
};

/// What a server has done since its start.
struct PeerServerCounters {
  std::atomic<uint64_t> connections{0};  // accepted
  std::atomic<uint64_t> refused{0};      // over the limit
  std::atomic<uint64_t> rejected{0};     // did not prove itself, or broke the protocol
  std::atomic<uint64_t> streams{0};      // requests that the source has opened
  std::atomic<uint64_t> data_bytes{0};   // sent, without frames and handshakes
  std::atomic<uint64_t> frame_bytes{0};  // sent with them: their headers
};

/// What all sessions of a server share; outlives them.
struct PeerServerContext {
  PeerIdentity self;
  std::unique_ptr<TlsContext> tls;  // null: in the clear
  PeerServerTimeouts timeouts;
  PeerSource& source;
  PaceGate gate;
  PeerServerCounters counters;
};

/// The serving side of one connection: handshake, then requests one after another.
class PeerSession {
 public:
  PeerSession(UniqueFd socket, std::string peer, PeerServerContext& context);

  /// Serves until the connection ends; returns why. One thread.
  Status Run();
  /// Ends Run() soon. Any thread.
  void Stop();
  /// Cancels the source's reader when the client has hung up. Any thread.
  void CancelIfGone();

  const std::string& peer() const { return channel_.peer(); }

 private:
  Status ShakeHands();
  Status ServeRequest();
  Status SendObject(const PeerRequest& request, const FrameStamp& stamp, PeerReader& reader);
  Status SendError(const Status& error, uint32_t stamp);
  /// Makes `reader` known to Stop() and CancelIfGone(); null: none.
  void SetReader(PeerReader* reader);
  Clock::TimePoint In(Clock::Duration time) const;

  PeerServerContext& context_;
  Channel channel_;
  Mutex mutex_;
  bool stopping_ HOLDFAST_GUARDED_BY(mutex_) = false;
  PeerReader* reader_ HOLDFAST_GUARDED_BY(mutex_) = nullptr;
};

}  // namespace holdfast::agent
