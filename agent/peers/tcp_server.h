#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <string>
#include <thread>

#include "agent/peers/pacer.h"
#include "agent/peers/peer_session.h"
#include "agent/peers/sockets.h"
#include "agent/peers/tls.h"
#include "agent/peers/transport.h"
#include "base/certificates/revoked_names.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/mutex.h"
#include "base/status.h"

namespace holdfast::agent {

/// Connections at once that have not completed the handshake.
inline constexpr size_t kStrangersMax = 16;

struct TcpPeerServerOptions {
  std::string cluster;
  std::string node;
  std::string listen = "127.0.0.1:0";  // host:port (0: any) or unix:/path
  std::string secret_file;             // empty: none
  PeerTlsFiles tls;                    // required where other machines reach `listen`
  bool encrypt = true;                 // false: not for clients that allow frames with tags
  const certificates::RevokedNames* revoked = nullptr;  // outlives the server; null: none
  PacerOptions pace;
  /// Returns whether collectives of the trainers run now, see PaceGate; null: never.
  std::function<bool()> is_busy;
  size_t connections_max = 64;
  PeerServerTimeouts timeouts;
};

/// Serves a source to the peers of this node over TCP or a unix socket. One thread accepts, and one
/// serves each connection. A connection beyond connections_max is refused with ResourceExhausted,
/// and an idle one is ended for the next attempt. Connections that have not proved who they are
/// have a limit of their own, kStrangersMax. A session holds one frame of a request (at most 1 MiB
/// + 64 KiB) and no data, which is sent from the reader's memory.
class TcpPeerServer {
 public:
  /// Starts a server; `source` and `clock` must outlive it. InvalidArgument: invalid options, or
  /// other machines reach `listen` and there is no TLS. AlreadyExists: another process listens
  /// there.
  static Result<std::unique_ptr<TcpPeerServer>> Start(const TcpPeerServerOptions& options,
                                                      PeerSource& source, const Clock& clock);
  ~TcpPeerServer();

  /// Returns the address of the listener, with the bound port.
  const std::string& address() const { return address_text_; }
  /// Returns the time that data has waited for collectives of the trainers. Callable from any
  /// thread.
  Clock::Duration yielded() const { return context_.gate.yielded(); }
  const PeerServerCounters& counters() const { return context_.counters; }

  /// Ends all connections and waits for their threads, which takes as long as the slowest Cancel()
  /// or Open() of the source.
  void Stop();

 private:
  struct Connection;

  TcpPeerServer(const TcpPeerServerOptions& options, PeerIdentity self,
                std::unique_ptr<TlsContexts> tls, Endpoint address, UniqueFd listener,
                UniqueFd wake, PeerSource& source, const Clock& clock);
  void AcceptLoop();
  void AcceptAll();
  void Serve(UniqueFd socket, std::string peer);
  void Reap();
  /// Ends the oldest connections that have not proved who they are, until fewer than the limit are
  /// left. A peer proves it in milliseconds, so it is rarely the oldest.
  void EndStrangers();
  /// Ends one idle connection, to make room for a client that was refused and comes again.
  void EndIdle();
  void Wake();
  void LogRejected(const std::string& peer, const Status& why);

  PeerServerContext context_;
  const size_t connections_max_;
  const Endpoint address_;
  const std::string address_text_;
  UniqueFd listener_;
  const UniqueFd wake_;  // eventfd: a connection has ended, or the server is stopping
  std::atomic<bool> stopping_{false};
  bool accept_failed_ = false;         // for the accept thread only
  std::list<Connection> connections_;  // for the accept thread, and for Stop() after its end
  std::thread accept_thread_;

  Mutex log_mutex_;
  Clock::TimePoint logged_ HOLDFAST_GUARDED_BY(log_mutex_);
  uint64_t not_logged_ HOLDFAST_GUARDED_BY(log_mutex_) = 0;
};

}  // namespace holdfast::agent
