#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>

#include "storage/base/status.h"

// OpenSSL's own types stay out of our headers.
struct ssl_ctx_st;
struct ssl_st;

namespace holdfast::agent {

/// Files in PEM form; all three or none. Both sides prove who they are (mutual TLS).
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
  /// InvalidArgument names the key of the file that cannot be used.
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

/// What TLS runs over.
struct TlsSocket {
  int socket = -1;
  bool has_received = false;
  bool in_the_clear = false;  // the other side begins with a frame
};

/// TLS 1.3 over one non-blocking socket, as steps that never wait. Thread-compatible.
class TlsSession {
 public:
  /// What must happen before the step is tried again; kNothing: it is done.
  enum class Want { kNothing, kRead, kWrite };
  struct Step {
    Want want = Want::kNothing;
    size_t bytes = 0;  // moved; 0 from Read: the other side has ended
  };

  /// `socket` and `context` outlive it. A client makes sure that the server's certificate is for
  /// `host`; empty: for any (unix sockets).
  static Result<std::unique_ptr<TlsSession>> Make(const TlsContext& context, int socket,
                                                  const std::string& host);
  ~TlsSession();
  TlsSession(const TlsSession&) = delete;
  TlsSession& operator=(const TlsSession&) = delete;

  /// PermissionDenied: a certificate is missing or not accepted. FailedPrecondition: the other side
  /// sends frames in the clear; what it sent is still to be received.
  Result<Step> Handshake();
  Result<Step> Write(std::span<const std::byte> bytes);
  Result<Step> Read(std::span<std::byte> into);
  /// Bytes have been received that Read() gives without the socket.
  bool has_pending() const;

 private:
  explicit TlsSession(ssl_st* session) : session_(session) {}
  Result<Step> StepOf(int result, size_t bytes, const char* what);
  ssl_st* session_;
  TlsSocket socket_;
};

}  // namespace holdfast::agent
