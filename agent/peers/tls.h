#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "agent/peers/frame_mac.h"
#include "base/mutex.h"
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
  /// Loads the files. `encrypt`: always, or else not with a side that does not insist either; such
  /// connections authenticate their frames. InvalidArgument: the message names the key of the file
  /// that cannot be used.
  static Result<std::unique_ptr<TlsContext>> Load(const PeerTlsFiles& files, Role role,
                                                  bool encrypt = true);
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

/// The certificates of this node. Reads them again when a file has changed; existing connections go
/// on. While new files cannot be used, those before stay in use. Thread-safe.
class TlsContexts {
 public:
  /// Loads the files; parameters and errors as for TlsContext::Load().
  static Result<std::unique_ptr<TlsContexts>> Load(const PeerTlsFiles& files, TlsContext::Role role,
                                                   bool encrypt = true);
  /// Returns the newest certificates. A shared_ptr, since handshakes with older ones may run.
  std::shared_ptr<const TlsContext> Get();

 private:
  TlsContexts(PeerTlsFiles files, TlsContext::Role role, bool encrypt,
              std::shared_ptr<const TlsContext> first, std::string stamp)
      : files_(std::move(files)),
        role_(role),
        encrypt_(encrypt),
        current_(std::move(first)),
        stamp_(std::move(stamp)) {}

  const PeerTlsFiles files_;
  const TlsContext::Role role_;
  const bool encrypt_;
  Mutex mutex_;
  std::shared_ptr<const TlsContext> current_ HOLDFAST_GUARDED_BY(mutex_);
  std::string stamp_ HOLDFAST_GUARDED_BY(mutex_);  // changes with the files
};

/// The name in the certificate of the other side.
struct TlsPeer {
  std::vector<std::string> uris;  // the names that begin with spiffe://
  int64_t not_before = 0;         // seconds since 1970
};

/// The socket below a TLS session. One system call transfers several records.
struct TlsSocket {
  int socket = -1;
  bool has_received = false;
  bool in_the_clear = false;  // the other side does not use TLS: it began with a frame
  std::vector<std::byte> unsent;
  size_t sent = 0;               // bytes at the front of `unsent` that the kernel has taken
  std::vector<std::byte> ahead;  // bytes received before the session reads them; empty: none
  size_t ahead_begin = 0;        // of `ahead`, the bytes that the session has not read
  size_t ahead_end = 0;
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
  /// Encrypts bytes. They may wait in the session until Flush() is done.
  Result<Step> Write(std::span<const std::byte> bytes);
  /// Sends what waits in the session.
  Result<Step> Flush();
  Result<Step> Read(std::span<std::byte> into);
  /// Returns the name of the other side, after the handshake.
  TlsPeer peer() const;
  /// Returns the keys for the tags of frames, or none if one side insists on encryption. After the
  /// handshake.
  Result<std::optional<FrameKeys>> frame_keys() const;
  /// Returns whether the session has bytes that it received and Read() has not returned.
  bool has_pending() const;

 private:
  explicit TlsSession(ssl_st* session) : session_(session) {}
  Result<Step> StepOf(int result, size_t bytes, const char* what);
  bool uses_frame_tags() const;
  ssl_st* session_;
  TlsSocket socket_;
};

}  // namespace holdfast::agent
