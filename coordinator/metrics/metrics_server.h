#pragma once

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "coordinator/metrics/metrics_options.h"
#include "coordinator/metrics/metrics_page.h"
#include "coordinator/metrics/metrics_textfile.h"
#include "storage/base/endpoint.h"
#include "storage/base/fd.h"
#include "storage/base/status.h"

namespace holdfast::coord {

/// Publishes a program's metrics: answers each GET /metrics with a page from `collect`, and writes
/// pages to the text file. The process must ignore SIGPIPE.
class MetricsServer {
 public:
  /// Several threads call it at once. It must not block for long.
  using Collect = std::function<MetricsPage()>;

  /// Starts what `options` name. Errors as from CheckMetrics; Unavailable if the address is in use
  /// or cannot be bound.
  static Result<std::unique_ptr<MetricsServer>> Start(const MetricsOptions& options,
                                                      const MetricsTls& tls, Collect collect);
  /// Ends open connections at once.
  ~MetricsServer();

  /// Returns the listening address, with the port that was bound; empty: no address.
  const std::string& address() const { return address_; }
  /// Returns whether the address is https.
  bool https() const { return https_; }

 private:
  MetricsServer() = default;
  Status Listen();
  void Serve();
  void Answer(UniqueFd socket);
  /// Returns the complete answer to a request.
  std::string Respond(const std::string& head);

  MetricsOptions options_;
  MetricsTls tls_;
  Collect collect_;
  std::string address_;
  std::string socket_path_;  // of a unix socket, which the destructor removes
  bool https_ = false;
  UniqueFd listener_;
  UniqueFd stop_;  // readable once the server stops
  std::vector<std::thread> threads_;
  std::unique_ptr<MetricsTextfile> textfile_;
};

}  // namespace holdfast::coord
