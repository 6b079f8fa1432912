#include "agent/peers/tls.h"

#include <fmt/format.h>
#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <string_view>

#include "agent/peers/sockets.h"
#include "base/certificates/certificate.h"
#include "base/log.h"

namespace holdfast::agent {
namespace {

// First byte of a frame.
constexpr char kFrameBegin = 'H';
// Records have at most 16 KiB. A system call for several of them costs little for each, and
// they are still in the cache when they are decrypted.
constexpr size_t kBatchBytes = 128 << 10;
// What both sides must name in the handshake (ALPN), so that frames have tags and no encryption.
constexpr auto kFrameTags = std::to_array<unsigned char>(
    {14, 'h', 'o', 'l', 'd', 'f', 'a', 's', 't', '-', 'm', 'a', 'c', '/', '1'});
constexpr std::string_view kFrameKeysLabel = "EXPORTER-holdfast-peer-frames";

/// Returns OpenSSL's text for the oldest error in this thread's queue and empties the queue.
std::string TakeErrorText() {
  const unsigned long error = ERR_get_error();
  ERR_clear_error();
  if (error == 0) return "no reason given";
  const char* reason = ERR_reason_error_string(error);
  return reason != nullptr ? reason : fmt::format("error {:#x}", error);
}

TlsSocket& SocketOf(BIO* bio) { return *static_cast<TlsSocket*>(BIO_get_data(bio)); }

/// Returns whether the first byte begins a frame and not a TLS record. If so, the other side does
/// not use TLS.
bool BeginsWithFrame(int socket) {
  char begin = 0;
  return ::recv(socket, &begin, 1, MSG_PEEK | MSG_DONTWAIT) == 1 && begin == kFrameBegin;
}

/// Sends the records that wait. Returns false when some still do: errno has the reason.
bool SendRecords(TlsSocket& to) {
  while (to.sent < to.unsent.size()) {
    // OpenSSL's socket BIO uses write(), so a peer that has closed the connection would kill the
    // process with SIGPIPE.
    const ssize_t sent = ::send(to.socket, to.unsent.data() + to.sent, to.unsent.size() - to.sent,
                                MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0) return false;
    to.sent += static_cast<size_t>(sent);
  }
  to.unsent.clear();
  to.sent = 0;
  return true;
}

int BioWrite(BIO* bio, const char* data, size_t bytes, size_t* written) {
  BIO_clear_retry_flags(bio);
  TlsSocket& to = SocketOf(bio);
  if (to.unsent.size() + bytes > kBatchBytes && !SendRecords(to)) {
    if (IsRetry(errno)) BIO_set_retry_write(bio);
    return 0;
  }
  const auto* begin = reinterpret_cast<const std::byte*>(data);
  to.unsent.insert(to.unsent.end(), begin, begin + bytes);
  *written = bytes;
  return 1;
}

/// Receives at most `bytes` bytes. Returns 1, or 0 with the BIO's flags set.
int ReceiveInto(BIO* bio, void* data, size_t bytes, size_t* got) {
  TlsSocket& from = SocketOf(bio);
  const ssize_t received = ::recv(from.socket, data, bytes, MSG_DONTWAIT);
  if (received == 0) BIO_set_flags(bio, BIO_FLAGS_IN_EOF);
  if (received < 0 && IsRetry(errno)) BIO_set_retry_read(bio);
  if (received <= 0) return 0;
  from.has_received = true;
  *got = static_cast<size_t>(received);
  return 1;
}

int BioRead(BIO* bio, char* data, size_t bytes, size_t* got) {
  BIO_clear_retry_flags(bio);
  TlsSocket& from = SocketOf(bio);
  if (!from.has_received && BeginsWithFrame(from.socket)) {
    from.in_the_clear = true;  // the frame stays in the socket for Channel to receive
    return 0;
  }
  if (from.ahead.empty()) return ReceiveInto(bio, data, bytes, got);
  if (from.ahead_begin == from.ahead_end) {
    from.ahead_begin = 0;
    from.ahead_end = 0;
    if (ReceiveInto(bio, from.ahead.data(), from.ahead.size(), &from.ahead_end) != 1) return 0;
  }
  *got = std::min(bytes, from.ahead_end - from.ahead_begin);
  std::memcpy(data, from.ahead.data() + from.ahead_begin, *got);
  from.ahead_begin += *got;
  return 1;
}

long BioControl(BIO* bio, int command, long /*number*/, void* /*pointer*/) {
  if (command == BIO_CTRL_EOF) return BIO_test_flags(bio, BIO_FLAGS_IN_EOF) != 0 ? 1 : 0;
  if (command != BIO_CTRL_FLUSH) return 0;
  BIO_clear_retry_flags(bio);
  if (SendRecords(SocketOf(bio))) return 1;
  if (IsRetry(errno)) BIO_set_retry_write(bio);
  return 0;
}

BIO_METHOD* SocketMethod() {
  // Never freed.
  static BIO_METHOD* const method = [] {
    BIO_METHOD* made = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "holdfast socket");
    if (made == nullptr) return made;
    BIO_meth_set_write_ex(made, BioWrite);
    BIO_meth_set_read_ex(made, BioRead);
    BIO_meth_set_ctrl(made, BioControl);
    return made;
  }();
  return method;
}

/// Provides no password, because no operator is present to enter one for an encrypted key.
int NoPassword(char* /*buffer*/, int /*bytes*/, int /*writing*/, void* /*pointer*/) { return 0; }

/// Accepts the offer of a client, which must be allowed on this side, too.
int SelectFrameTags(SSL* /*session*/, const unsigned char** selected, unsigned char* bytes,
                    const unsigned char* offers, unsigned int offers_bytes, void* /*pointer*/) {
  unsigned char* found = nullptr;
  if (SSL_select_next_proto(&found, bytes, kFrameTags.data(), kFrameTags.size(), offers,
                            offers_bytes) != OPENSSL_NPN_NEGOTIATED) {
    return SSL_TLSEXT_ERR_NOACK;
  }
  *selected = found;
  return SSL_TLSEXT_ERR_OK;
}

Status NotUsable(std::string_view key, const std::string& path) {
  return InvalidArgumentError(fmt::format("tls.{}: '{}': {}", key, path, TakeErrorText()));
}

}  // namespace

Result<std::unique_ptr<TlsContext>> TlsContext::Load(const PeerTlsFiles& files, Role role,
                                                     bool encrypt) {
  if (files.ca.empty() || files.cert.empty() || files.key.empty()) {
    return Fail(InvalidArgumentError("tls needs all three of tls.ca, tls.cert and tls.key"));
  }
  ERR_clear_error();
  SSL_CTX* raw = SSL_CTX_new(role == Role::kServer ? TLS_server_method() : TLS_client_method());
  if (raw == nullptr) return Fail(InternalError("SSL_CTX_new: " + TakeErrorText()));
  std::unique_ptr<TlsContext> context(new TlsContext(raw, role));
  SSL_CTX_set_min_proto_version(raw, TLS1_3_VERSION);
  SSL_CTX_set_mode(raw, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
  // Accept an end without close_notify: frames show whether data is missing.
  SSL_CTX_set_options(raw, SSL_OP_IGNORE_UNEXPECTED_EOF);
  // Unsolicited tickets would make an idle connection look as if an answer were pending.
  SSL_CTX_set_num_tickets(raw, 0);
  SSL_CTX_set_session_cache_mode(raw, SSL_SESS_CACHE_OFF);
  SSL_CTX_set_verify(raw, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, nullptr);
  SSL_CTX_set_default_passwd_cb(raw, NoPassword);
  if (SSL_CTX_load_verify_locations(raw, files.ca.c_str(), nullptr) != 1) {
    return Fail(NotUsable("ca", files.ca));
  }
  if (SSL_CTX_use_certificate_chain_file(raw, files.cert.c_str()) != 1) {
    return Fail(NotUsable("cert", files.cert));
  }
  if (SSL_CTX_use_PrivateKey_file(raw, files.key.c_str(), SSL_FILETYPE_PEM) != 1 ||
      SSL_CTX_check_private_key(raw) != 1) {
    return Fail(NotUsable("key", files.key));
  }
  if (encrypt) return context;
  SSL_CTX_set_alpn_select_cb(raw, SelectFrameTags, nullptr);  // of a server
  if (SSL_CTX_set_alpn_protos(raw, kFrameTags.data(), kFrameTags.size()) != 0) {
    return Fail(InternalError("SSL_CTX_set_alpn_protos: " + TakeErrorText()));
  }
  return context;
}

namespace {
/// Returns a text that changes when a file is replaced or written.
std::string StampOf(const PeerTlsFiles& files) {
  std::string stamp;
  for (const std::string* path : {&files.ca, &files.cert, &files.key}) {
    struct stat info {};
    if (::stat(path->c_str(), &info) != 0) continue;
    stamp += fmt::format("{} {} {} {}.{};", info.st_dev, info.st_ino, info.st_size,
                         info.st_mtim.tv_sec, info.st_mtim.tv_nsec);
  }
  return stamp;
}
}  // namespace

Result<std::unique_ptr<TlsContexts>> TlsContexts::Load(const PeerTlsFiles& files,
                                                       TlsContext::Role role, bool encrypt) {
  // Before the files are read, so that a change in between is seen later.
  std::string stamp = StampOf(files);
  HOLDFAST_ASSIGN_OR_RETURN(auto first, TlsContext::Load(files, role, encrypt));
  return std::unique_ptr<TlsContexts>(
      new TlsContexts(files, role, encrypt, std::move(first), std::move(stamp)));
}

std::shared_ptr<const TlsContext> TlsContexts::Get() {
  MutexLock lock(mutex_);
  std::string stamp = StampOf(files_);
  if (stamp == stamp_) return current_;
  auto next = TlsContext::Load(files_, role_, encrypt_);
  if (next) {
    current_ = *std::move(next);
  } else {
    Log(LogLevel::kError, "CertificatesNotLoaded", {Kv("error", next.error().ToString())});
  }
  stamp_ = std::move(stamp);
  return current_;
}

TlsContext::~TlsContext() { SSL_CTX_free(context_); }

Result<std::unique_ptr<TlsSession>> TlsSession::Make(const TlsContext& context, int socket,
                                                     const std::string& host) {
  ERR_clear_error();
  SSL* raw = SSL_new(context.get());
  if (raw == nullptr) return Fail(InternalError("SSL_new: " + TakeErrorText()));
  std::unique_ptr<TlsSession> session(new TlsSession(raw));
  BIO* bio = SocketMethod() == nullptr ? nullptr : BIO_new(SocketMethod());
  if (bio == nullptr) return Fail(InternalError("BIO_new: " + TakeErrorText()));
  session->socket_.socket = socket;
  BIO_set_data(bio, &session->socket_);
  BIO_set_init(bio, 1);
  SSL_set_bio(raw, bio, bio);
  if (context.role() == TlsContext::Role::kServer) {
    SSL_set_accept_state(raw);
    return session;
  }
  SSL_set_connect_state(raw);
  if (host.empty()) return session;
  X509_VERIFY_PARAM* verify = SSL_get0_param(raw);
  // The certificate must name an IP address as an address, and a host name as a name.
  if (X509_VERIFY_PARAM_set1_ip_asc(verify, host.c_str()) != 1) {
    ERR_clear_error();
    if (SSL_set1_host(raw, host.c_str()) != 1 || SSL_set_tlsext_host_name(raw, host.c_str()) != 1) {
      return Fail(InternalError("SSL_set1_host: " + TakeErrorText()));
    }
  }
  return session;
}

TlsSession::~TlsSession() { SSL_free(session_); }

Result<TlsSession::Step> TlsSession::StepOf(int result, size_t bytes, const char* what) {
  if (result == 1) return Step{Want::kNothing, bytes};
  const int socket_error = errno;
  switch (SSL_get_error(session_, result)) {
    case SSL_ERROR_WANT_READ:
      return Step{Want::kRead, 0};
    case SSL_ERROR_WANT_WRITE:
      return Step{Want::kWrite, 0};
    case SSL_ERROR_ZERO_RETURN:
      return Step{Want::kNothing, 0};
    case SSL_ERROR_SYSCALL:
      return Fail(UnavailableError(
          fmt::format("the connection broke in {} (errno {})", what, socket_error)));
    default:
      break;
  }
  const long verified = SSL_get_verify_result(session_);
  const std::string reason =
      verified != X509_V_OK ? X509_verify_cert_error_string(verified) : TakeErrorText();
  ERR_clear_error();
  return Fail(
      PermissionDeniedError(fmt::format("{}: {}; see tls.ca, tls.cert, tls.key", what, reason)));
}

Result<TlsSession::Step> TlsSession::Handshake() {
  ERR_clear_error();
  auto step = StepOf(SSL_do_handshake(session_), 1, "the TLS handshake");
  if (socket_.in_the_clear) {
    return Fail(FailedPreconditionError(
        "one side uses TLS and the other does not: set tls.ca, tls.cert and tls.key on all nodes"));
  }
  if (step && step->want == Want::kNothing && step->bytes == 0) {
    return Fail(UnavailableError("the other side ended the TLS handshake"));
  }
  // OpenSSL's read-ahead moves the rest of its buffer for each record, so this one replaces it.
  // Frames with tags follow the records, so they must stay in the socket.
  if (step && step->want == Want::kNothing && !uses_frame_tags()) {
    socket_.ahead.resize(kBatchBytes);
  }
  return step;
}

Result<TlsSession::Step> TlsSession::Write(std::span<const std::byte> bytes) {
  ERR_clear_error();
  size_t written = 0;
  const int result = SSL_write_ex(session_, bytes.data(), bytes.size(), &written);
  auto step = StepOf(result, written, "sending over TLS");
  if (step && step->want == Want::kNothing && step->bytes == 0) {
    return Fail(UnavailableError("the other side has closed the connection"));
  }
  return step;
}

Result<TlsSession::Step> TlsSession::Flush() {
  if (SendRecords(socket_)) return Step{Want::kNothing, 0};
  if (IsRetry(errno)) return Step{Want::kWrite, 0};
  return Fail(
      UnavailableError(fmt::format("the connection broke in sending over TLS (errno {})", errno)));
}

Result<TlsSession::Step> TlsSession::Read(std::span<std::byte> into) {
  ERR_clear_error();
  size_t got = 0;
  const int result = SSL_read_ex(session_, into.data(), into.size(), &got);
  return StepOf(result, got, "receiving over TLS");
}

TlsPeer TlsSession::peer() const {
  TlsPeer peer;
  X509* raw = SSL_get1_peer_certificate(session_);
  if (raw == nullptr) return peer;
  const certificates::Certificate certificate((certificates::CertificateHandle(raw)));
  peer.uris = certificate.SpiffeUris();
  peer.not_before = certificate.not_before();
  return peer;
}

Result<std::optional<FrameKeys>> TlsSession::frame_keys() const {
  if (!uses_frame_tags()) return std::optional<FrameKeys>();
  // The client's key, then the server's.
  std::array<FrameKey, 2> keys{};
  if (SSL_export_keying_material(session_, reinterpret_cast<unsigned char*>(keys.data()),
                                 sizeof(keys), kFrameKeysLabel.data(), kFrameKeysLabel.size(),
                                 nullptr, 0, 0) != 1) {
    return Fail(InternalError("SSL_export_keying_material: " + TakeErrorText()));
  }
  const bool server = SSL_is_server(session_) == 1;
  return std::optional(FrameKeys{.sent = keys[server ? 1 : 0], .received = keys[server ? 0 : 1]});
}

bool TlsSession::uses_frame_tags() const {
  const unsigned char* selected = nullptr;
  unsigned int bytes = 0;
  SSL_get0_alpn_selected(session_, &selected, &bytes);
  return bytes > 0;
}

bool TlsSession::has_pending() const {
  return socket_.ahead_begin < socket_.ahead_end || SSL_has_pending(session_) == 1;
}

}  // namespace holdfast::agent
