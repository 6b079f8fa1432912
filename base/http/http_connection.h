#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "base/clock.h"
#include "base/fd.h"
#include "base/http/http_options.h"
#include "base/status.h"

// Declared here, so that this header need not include headers of OpenSSL.
struct ssl_ctx_st;
struct ssl_st;

namespace holdfast {

/// The certificate of a server. Thread-safe.
class HttpTls {
 public:
  /// InvalidArgument: the message names the key of the file that cannot be used.
  static Result<std::unique_ptr<HttpTls>> Load(const HttpCertificate& files);
  ~HttpTls();
  HttpTls(const HttpTls&) = delete;
  HttpTls& operator=(const HttpTls&) = delete;

  ssl_ctx_st* get() const { return context_; }

 private:
  explicit HttpTls(ssl_ctx_st* context) : context_(context) {}
  ssl_ctx_st* context_;
};

/// An accepted, non-blocking connection, with or without TLS. Every call ends at the deadline, or
/// when `stop` is readable, with DeadlineExceeded. The process must ignore SIGPIPE.
/// Thread-compatible.
class HttpConnection {
 public:
  /// `clock` outlives the connection.
  HttpConnection(UniqueFd socket, int stop, Clock::TimePoint deadline, const Clock& clock);
  ~HttpConnection();
  HttpConnection(const HttpConnection&) = delete;
  HttpConnection& operator=(const HttpConnection&) = delete;

  /// Changes the deadline, for an answer that lasts.
  void set_deadline(Clock::TimePoint deadline) { deadline_ = deadline; }
  /// Performs the TLS handshake. `tls` must outlive the connection.
  Status StartTls(const HttpTls& tls);
  /// Waits for bytes and returns their number, at least one. Unavailable: the connection has ended.
  Result<size_t> Read(char* bytes, size_t size);
  Status Write(std::string_view bytes);
  /// Ends TLS in order, so that the client can distinguish a complete answer from a truncated one.
  void Finish();

 private:
  Status Wait(short events);
  /// Waits as the result of an OpenSSL call requires. Unavailable: the connection has ended.
  Status WaitForTls(int result);

  UniqueFd socket_;
  int stop_;
  Clock::TimePoint deadline_;
  const Clock& clock_;
  ssl_st* session_ = nullptr;
};

}  // namespace holdfast
