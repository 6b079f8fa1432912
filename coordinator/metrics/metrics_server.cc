#include "coordinator/metrics/metrics_server.h"

#include <fmt/format.h>
#include <prometheus/exposer.h>

#include <exception>

#include "storage/base/endpoint.h"

namespace holdfast::coord {
namespace {
// Longest time that a connection without a request occupies a thread.
constexpr const char* kRequestTimeoutMs = "5000";
constexpr const char* kThreads = "2";

class Pages final : public prometheus::Collectable {
 public:
  explicit Pages(MetricsServer::Collect collect) : collect_(std::move(collect)) {}
  std::vector<prometheus::MetricFamily> Collect() const override { return collect_().Take(); }

 private:
  const MetricsServer::Collect collect_;
};

Result<Endpoint> ParseListen(const std::string& listen) {
  auto endpoint = ParseEndpoint(listen);
  if (!endpoint) return Fail(endpoint.error().WithContext("metrics.listen"));
  if (endpoint->kind != Endpoint::Kind::kTcp) {
    return Fail(InvalidArgumentError(
        fmt::format("metrics.listen {}: Prometheus needs a port, such as 127.0.0.1:9464", listen)));
  }
  if (!endpoint->IsLocal()) {
    return Fail(InvalidArgumentError(fmt::format(
        "metrics.listen {} is reachable from other machines, and metrics are served without TLS "
        "or a password: use a loopback address, and a collector or a proxy on this machine",
        listen)));
  }
  if (endpoint->host == "localhost") endpoint->host = "127.0.0.1";
  return endpoint;
}
}  // namespace

Status CheckMetricsListen(const std::string& listen) {
  if (listen.empty()) return Status::Ok();
  auto endpoint = ParseListen(listen);
  return endpoint ? Status::Ok() : endpoint.error();
}

Result<std::unique_ptr<MetricsServer>> MetricsServer::Start(const std::string& listen,
                                                            Collect collect) {
  HOLDFAST_ASSIGN_OR_RETURN(Endpoint endpoint, ParseListen(listen));
  std::unique_ptr<MetricsServer> server(new MetricsServer());
  server->collectable_ = std::make_shared<Pages>(std::move(collect));
  try {
    server->exposer_ = std::make_unique<prometheus::Exposer>(
        std::vector<std::string>{"listening_ports", endpoint.ToString(), "num_threads", kThreads,
                                 "request_timeout_ms", kRequestTimeoutMs});
    server->exposer_->RegisterCollectable(server->collectable_);
    const std::vector<int> ports = server->exposer_->GetListeningPorts();
    if (!ports.empty()) endpoint.port = static_cast<uint16_t>(ports.front());
  } catch (const std::exception& error) {
    return Fail(UnavailableError(
        fmt::format("metrics.listen {}: cannot listen there ({}); check whether the port is in use",
                    listen, error.what())));
  }
  server->address_ = endpoint.ToString();
  return server;
}

MetricsServer::~MetricsServer() = default;

}  // namespace holdfast::coord
