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

/// What the key `metrics.listen` means, for both programs.
inline constexpr const char* kMetricsListenHelp =
    "Serve metrics to Prometheus at http://HOST:PORT/metrics, on a loopback address only: there is "
    "no TLS and no password. Port 0 takes a free one and logs it. Empty: no metrics.";

/// OK: empty, or a loopback address with a port.
Status CheckMetricsListen(const std::string& listen);

/// Answers GET /metrics with what `collect` finds then. Destroying it waits for answers under way,
/// and up to two seconds for the HTTP library's threads to look up.
class MetricsServer {
 public:
  /// Called by the server's threads, two at once at most; must not block for long.
  using Collect = std::function<MetricsPage()>;

  /// InvalidArgument as CheckMetricsListen says; Unavailable when the port is taken.
  static Result<std::unique_ptr<MetricsServer>> Start(const std::string& listen, Collect collect);
  ~MetricsServer();

  /// With the port that was bound.
  const std::string& address() const { return address_; }

 private:
  MetricsServer() = default;

  std::string address_;
  std::shared_ptr<prometheus::Collectable> collectable_;  // the exposer takes weak ones
  std::unique_ptr<prometheus::Exposer> exposer_;
};

}  // namespace holdfast::coord
