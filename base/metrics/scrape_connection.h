#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "base/clock.h"
#include "base/fd.h"
#include "base/metrics/metrics_options.h"
#include "base/status.h"

// Declared here, so that this header need not include headers of OpenSSL.
struct ssl_ctx_st;
struct ssl_st;

namespace holdfast::coord {

/// The certificate of the metrics server. Thread-safe.
class ScrapeTls {
 public:
  /// InvalidArgument: the message names the key of the file that cannot be used.
  static Result<std::unique_ptr<ScrapeTls>> Load(const MetricsTls& files);
  ~ScrapeTls();
  ScrapeTls(const ScrapeTls&) = delete;
  ScrapeTls& operator=(const ScrapeTls&) = delete;

  ssl_ctx_st* get() const { return context_; }

 private:
  explicit ScrapeTls(ssl_ctx_st* context) : context_(context) {}
  ssl_ctx_st* context_;
};

/// An accepted, non-blocking connection, with or without TLS. Every call ends at the deadline, or
/// when `stop` is readable, with DeadlineExceeded. The process must ignore SIGPIPE.
/// Thread-compatible.
class ScrapeConnection {
 public:
  ScrapeConnection(UniqueFd socket, int stop, Clock::TimePoint deadline);
  ~ScrapeConnection();
  ScrapeConnection(const ScrapeConnection&) = delete;
  ScrapeConnection& operator=(const ScrapeConnection&) = delete;

  /// Performs the TLS handshake. `tls` must outlive the connection.
  Status StartTls(const ScrapeTls& tls);
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
  ssl_st* session_ = nullptr;
};

}  // namespace holdfast::coord
