#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "coordinator/metrics/metrics_page.h"
#include "storage/base/status.h"

namespace prometheus {
class Collectable;
class Exposer;
}  // namespace prometheus

namespace holdfast::coord {

/// Help text of the key `metrics.listen`, for both programs.
inline constexpr const char* kMetricsListenHelp =
    "Serve metrics to Prometheus at http://HOST:PORT/metrics, on a loopback address only: there is "
    "no TLS and no password. Port 0 takes a free one and logs it. Empty: no metrics.";

/// Accepts an empty value, or a loopback address with a port; anything else is InvalidArgument.
Status CheckMetricsListen(const std::string& listen);

/// Answers each GET /metrics with a page from `collect`. The destructor waits for running requests,
/// and up to two seconds for the HTTP library's threads to notice the end.
class MetricsServer {
 public:
  /// The server's threads call it, at most two at once. It must not block for long.
  using Collect = std::function<MetricsPage()>;

  /// Starts the server. InvalidArgument as in CheckMetricsListen; Unavailable if the port is in
  /// use.
  static Result<std::unique_ptr<MetricsServer>> Start(const std::string& listen, Collect collect);
  ~MetricsServer();

  /// Returns the listening address, with the port that was bound.
  const std::string& address() const { return address_; }

 private:
  MetricsServer() = default;

  std::string address_;
  std::shared_ptr<prometheus::Collectable> collectable_;  // the exposer has a weak_ptr
  std::unique_ptr<prometheus::Exposer> exposer_;
};

}  // namespace holdfast::coord
