#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>

#include "base/status.h"

// Declared here, so that this header does not include OpenSSL's.
struct ssl_ctx_st;
struct ssl_st;

namespace holdfast::agent {

/// Files in PEM form; all three or none. Both sides authenticate (mutual TLS).
struct PeerTlsFiles {
  std::string ca;
  std::string cert;
  std::string key;
  bool configured() const { return !ca.empty() || !cert.empty() || !key.empty(); }
};

/// Certificates, loaded once and used by every connection. Thread-safe.
class TlsContext {
 public:
  enum class Role { kServer, kClient };
  /// Loads the files. InvalidArgument: the message names the key of the file that cannot be used.
  static Result<std::unique_ptr<TlsContext>> Load(const PeerTlsFiles& files, Role role);
  ~TlsContext();
  TlsContext(const TlsContext&) = delete;
  TlsContext& operator=(const TlsContext&) = delete;

  Role role() const { return role_; }
  ssl_ctx_st* get() const { return context_; }

 private:
  TlsContext(ssl_ctx_st* context, Role role) : context_(context), role_(role) {}
  ssl_ctx_st* context_;
  Role role_;
};

/// The socket below a TLS session.
struct TlsSocket {
  int socket = -1;
  bool has_received = false;
  bool in_the_clear = false;  // the other side does not use TLS: it began with a frame
};

/// TLS 1.3 over one non-blocking socket, in steps that never block. Thread-compatible.
class TlsSession {
 public:
  /// What the socket must be ready for before the step is repeated; kNothing: the step is done.
  enum class Want { kNothing, kRead, kWrite };
  struct Step {
    Want want = Want::kNothing;
    size_t bytes = 0;  // transferred; 0 from Read(): the other side has ended the session
  };

  /// `socket` and `context` must outlive the session. A client checks that the server's certificate
  /// is for `host`; an empty `host` accepts any (unix sockets).
  static Result<std::unique_ptr<TlsSession>> Make(const TlsContext& context, int socket,
                                                  const std::string& host);
  ~TlsSession();
  TlsSession(const TlsSession&) = delete;
  TlsSession& operator=(const TlsSession&) = delete;

  /// PermissionDenied: a certificate is missing or not accepted. FailedPrecondition: the other side
  /// sends frames in plain text; they have not been received yet.
  Result<Step> Handshake();
  Result<Step> Write(std::span<const std::byte> bytes);
  Result<Step> Read(std::span<std::byte> into);
  /// Returns whether Read() can return bytes without reading from the socket.
  bool has_pending() const;

 private:
  explicit TlsSession(ssl_st* session) : session_(session) {}
  Result<Step> StepOf(int result, size_t bytes, const char* what);
  ssl_st* session_;
  TlsSocket socket_;
};

}  // namespace holdfast::agent
