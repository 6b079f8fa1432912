#include "base/http/http_connection.h"

#include <fmt/format.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <poll.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>

namespace holdfast {
namespace {
// For TLS 1.2: authenticated encryption and forward secrecy. TLS 1.3 has no other suites.
constexpr const char* kCipherSuites = "ECDHE+AESGCM:ECDHE+CHACHA20";

/// Returns OpenSSL's text for the oldest error in this thread's queue and empties the queue.
std::string TakeTlsError() {
  const unsigned long error = ERR_get_error();
  ERR_clear_error();
  if (error == 0) return "no reason given";
  const char* reason = ERR_reason_error_string(error);
  return reason != nullptr ? reason : fmt::format("error {:#x}", error);
}

/// Provides no password, because no operator is present to enter one for an encrypted key.
int NoKeyPassword(char* /*buffer*/, int /*bytes*/, int /*writing*/, void* /*pointer*/) { return 0; }
}  // namespace

Result<std::unique_ptr<HttpTls>> HttpTls::Load(const HttpCertificate& files) {
  const auto not_usable = [](std::string_view key, const std::string& path) {
    return Fail(InvalidArgumentError(fmt::format("{} '{}': {}", key, path, TakeTlsError())));
  };
  ERR_clear_error();
  SSL_CTX* context = SSL_CTX_new(TLS_server_method());
  if (context == nullptr) return Fail(InternalError("SSL_CTX_new: " + TakeTlsError()));
  std::unique_ptr<HttpTls> tls(new HttpTls(context));
  SSL_CTX_set_min_proto_version(context, TLS1_2_VERSION);
  if (SSL_CTX_set_cipher_list(context, kCipherSuites) != 1) {
    return Fail(InternalError("SSL_CTX_set_cipher_list: " + TakeTlsError()));
  }
  // A client could otherwise make the server compute one handshake after another.
  SSL_CTX_set_options(context, SSL_OP_NO_RENEGOTIATION);
  SSL_CTX_set_mode(context, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
  SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_OFF);
  SSL_CTX_set_default_passwd_cb(context, NoKeyPassword);
  if (SSL_CTX_use_certificate_chain_file(context, files.cert.c_str()) != 1) {
    return not_usable("tls.cert", files.cert);
  }
  if (SSL_CTX_use_PrivateKey_file(context, files.key.c_str(), SSL_FILETYPE_PEM) != 1 ||
      SSL_CTX_check_private_key(context) != 1) {
    return not_usable("tls.key", files.key);
  }
  return tls;
}

HttpTls::~HttpTls() { SSL_CTX_free(context_); }

HttpConnection::HttpConnection(UniqueFd socket, int stop, Clock::TimePoint deadline,
                               const Clock& clock)
    : socket_(std::move(socket)), stop_(stop), deadline_(deadline), clock_(clock) {}

HttpConnection::~HttpConnection() { SSL_free(session_); }

Status HttpConnection::Wait(short events) {
  for (;;) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline_ - clock_.Now());
    if (left.count() <= 0) return DeadlineExceededError("the client is too slow");
    std::array<pollfd, 2> polled{{{socket_.get(), events, 0}, {stop_, POLLIN, 0}}};
    const int ready = ::poll(polled.data(), polled.size(), static_cast<int>(left.count()));
    if (ready < 0 && errno != EINTR) return ErrnoStatus(errno, "poll");
    if (ready <= 0) continue;
    if (polled[1].revents != 0) return DeadlineExceededError("the server stops");
    return Status::Ok();
  }
}

Status HttpConnection::WaitForTls(int result) {
  switch (SSL_get_error(session_, result)) {
    case SSL_ERROR_WANT_READ:
      return Wait(POLLIN);
    case SSL_ERROR_WANT_WRITE:
      return Wait(POLLOUT);
    default:
      return UnavailableError("TLS: " + TakeTlsError());
  }
}

Status HttpConnection::StartTls(const HttpTls& tls) {
  ERR_clear_error();
  session_ = SSL_new(tls.get());
  if (session_ == nullptr || SSL_set_fd(session_, socket_.get()) != 1) {
    return InternalError("SSL_new: " + TakeTlsError());
  }
  for (;;) {
    const int result = SSL_accept(session_);
    if (result == 1) return Status::Ok();
    HOLDFAST_RETURN_IF_ERROR(WaitForTls(result));
  }
}

Result<size_t> HttpConnection::Read(char* bytes, size_t size) {
  if (size == 0) return Fail(OutOfSpaceError("the request is too long"));
  for (;;) {
    if (session_ != nullptr) {
      size_t got = 0;
      const int result = SSL_read_ex(session_, bytes, size, &got);
      if (result == 1) return got;
      HOLDFAST_RETURN_IF_ERROR(WaitForTls(result));
    } else {
      const ssize_t got = ::recv(socket_.get(), bytes, size, 0);
      if (got > 0) return static_cast<size_t>(got);
      if (got == 0) return Fail(UnavailableError("the client has closed the connection"));
      if (errno != EAGAIN && errno != EINTR) return Fail(ErrnoStatus(errno, "recv"));
      HOLDFAST_RETURN_IF_ERROR(Wait(POLLIN));
    }
  }
}

Status HttpConnection::Write(std::string_view bytes) {
  while (!bytes.empty()) {
    size_t sent = 0;
    if (session_ != nullptr) {
      const int result = SSL_write_ex(session_, bytes.data(), bytes.size(), &sent);
      if (result != 1) {
        HOLDFAST_RETURN_IF_ERROR(WaitForTls(result));
        continue;
      }
    } else {
      const ssize_t result = ::send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (result < 0) {
        if (errno != EAGAIN && errno != EINTR) return ErrnoStatus(errno, "send");
        HOLDFAST_RETURN_IF_ERROR(Wait(POLLOUT));
        continue;
      }
      sent = static_cast<size_t>(result);
    }
    bytes.remove_prefix(sent);
  }
  return Status::Ok();
}

void HttpConnection::Finish() {
  if (session_ != nullptr) SSL_shutdown(session_);
  ::shutdown(socket_.get(), SHUT_WR);
}

}  // namespace holdfast
