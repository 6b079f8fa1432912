#pragma once

#include <functional>
#include <memory>
#include <string>

#include "base/clock.h"
#include "base/http/http_server.h"
#include "base/metrics/metrics_options.h"
#include "base/metrics/metrics_page.h"
#include "base/metrics/metrics_textfile.h"
#include "base/status.h"

namespace holdfast::coord {

/// Publishes a program's metrics: answers each GET /metrics with a page from `collect`, and writes
/// pages to the text file. GET /health is answered with 200, and with 503 and the reason once an
/// invariant is violated. The process must ignore SIGPIPE.
class MetricsServer {
 public:
  /// Returns a page. Several threads call this at the same time. It must not block for long.
  using Collect = std::function<MetricsPage()>;

  /// Starts what `options` name. `clock` outlives the server. Errors as from CheckMetrics;
  /// Unavailable if the address is in use or cannot be bound.
  static Result<std::unique_ptr<MetricsServer>> Start(const MetricsOptions& options,
                                                      const HttpCertificate& tls, Collect collect,
                                                      Clock& clock);
  /// Ends open connections at once.
  ~MetricsServer();

  /// Returns the listening address, with the port that was bound; empty: no address.
  std::string address() const { return http_ ? http_->address() : ""; }
  /// Returns whether the address is served by HTTPS.
  bool https() const { return http_ && http_->https(); }

 private:
  class Handler;
  MetricsServer();

  std::unique_ptr<Handler> handler_;
  std::unique_ptr<HttpServer> http_;
  std::unique_ptr<MetricsTextfile> textfile_;
};

}  // namespace holdfast::coord
