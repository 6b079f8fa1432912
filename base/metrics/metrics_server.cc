#include "base/metrics/metrics_server.h"

#include <prometheus/text_serializer.h>

#include "base/invariant.h"

namespace holdfast::coord {
namespace {
constexpr int kScrapeThreads = 4;
constexpr std::chrono::seconds kScrapeTimeout(5);
constexpr const char* kPageType = "text/plain; version=0.0.4; charset=utf-8";

std::string Render(const MetricsServer::Collect& collect) {
  return prometheus::TextSerializer().Serialize(collect().Take());
}
}  // namespace

class MetricsServer::Handler final : public HttpHandler {
 public:
  explicit Handler(Collect collect) : collect_(std::move(collect)) {}
  HttpAnswer Get(const HttpRequest& request) override {
    if (request.path == "/health") {
      const std::string why = FirstInvariantViolation();
      if (why.empty()) return {200, kPageType, "ok\n"};
      return {503, kPageType, "invariant violated: " + why + "\n"};
    }
    if (request.path != "/metrics") return {404, kPageType, "metrics are at /metrics\n"};
    return {200, kPageType, Render(collect_)};
  }
  bool IsOpen(const std::string& /*path*/) const override { return false; }
  std::chrono::seconds TimeLimit(const std::string& /*path*/) const override {
    return kScrapeTimeout;
  }

 private:
  const Collect collect_;
};

MetricsServer::MetricsServer() = default;
MetricsServer::~MetricsServer() = default;

Result<std::unique_ptr<MetricsServer>> MetricsServer::Start(const MetricsOptions& options,
                                                            const HttpCertificate& tls,
                                                            Collect collect, Clock& clock) {
  HOLDFAST_RETURN_IF_ERROR(CheckMetrics(options, tls));
  std::unique_ptr<MetricsServer> server(new MetricsServer());
  if (!options.listen.empty()) {
    server->handler_ = std::make_unique<Handler>(collect);
    HOLDFAST_ASSIGN_OR_RETURN(server->http_, HttpServer::Start(HttpOf(options), tls, kScrapeThreads,
                                                               *server->handler_, clock));
  }
  if (!options.textfile.empty()) {
    server->textfile_ = std::make_unique<MetricsTextfile>(
        options.textfile, std::chrono::seconds(options.textfile_period_s),
        [collect = std::move(collect)] { return Render(collect); });
  }
  return server;
}

}  // namespace holdfast::coord
