#include "coordinator/relay/relay_server.h"

#include <fmt/format.h>
#include <grpc/support/time.h>

#include "base/log.h"
#include "coordinator/relay/metrics.h"

namespace holdfast::coord::relay {
namespace {
constexpr int64_t kStopPatienceMs = 300;
}  // namespace

Status CheckRelay(const RelayOptions& options) {
  if (options.upstream.empty()) {
    return InvalidArgumentError("role \"relay\" needs upstream: the addresses of all coordinators");
  }
  HOLDFAST_ASSIGN_OR_RETURN(const Endpoint listen, ParseEndpoint(options.listen));
  auto upstream = ParseEndpointList(options.upstream);
  if (!upstream) return upstream.error().WithContext("upstream");
  std::string advertised;
  if (!options.advertise.empty()) {
    auto address = ParseEndpoint(options.advertise);
    if (!address) return address.error().WithContext("advertise");
    advertised = address->ToString();
  }
  for (const Endpoint& one : *upstream) {
    if (one.ToString() == listen.ToString() || one.ToString() == advertised) {
      return InvalidArgumentError(fmt::format(
          "upstream names this relay itself ({}); name the coordinators", one.ToString()));
    }
  }
  auto channel = LeaderChannel::Make(options.upstream, options.tls);
  if (!channel) return channel.error().WithContext("upstream");
  HOLDFAST_RETURN_IF_ERROR(CertificateKeeper::Check(options.tls, options.tls_renew));
  return CheckMetrics(options.metrics, {options.tls.cert, options.tls.key});
}

Result<std::unique_ptr<RelayServer>> RelayServer::Start(const RelayOptions& options, Clock& clock) {
  HOLDFAST_RETURN_IF_ERROR(CheckRelay(options));
  std::unique_ptr<RelayServer> server(new RelayServer());
  HOLDFAST_RETURN_IF_ERROR(server->StartServices(options, clock));
  return server;
}

Status RelayServer::StartServices(const RelayOptions& options, Clock& clock) {
  HOLDFAST_ASSIGN_OR_RETURN(endpoint_, ParseEndpoint(options.listen));
  const std::string own = options.advertise.empty() ? options.listen : options.advertise;
  HOLDFAST_ASSIGN_OR_RETURN(auto channel, LeaderChannel::Make(options.upstream, options.tls));
  upstream_ = std::make_unique<Upstream>(
      UpstreamOptions{options.cluster, own, options.pending_bytes_max}, std::move(channel), clock);
  agents_ = std::make_unique<AgentService>(own, *upstream_);
  relays_ = std::make_unique<RefusingRelays>(own);
  certificates_ = std::make_unique<coordinator::Certificates::CallbackService>();
  const auto guard = [&](grpc::Service& service, const char* name) {
    return GuardedService::Make(service, name, options.cluster, options.access, clock);
  };
  HOLDFAST_ASSIGN_OR_RETURN(guarded_agents_,
                            guard(*agents_, coordinator::Coordinator::service_full_name()));
  HOLDFAST_ASSIGN_OR_RETURN(guarded_relays_,
                            guard(*relays_, coordinator::Relays::service_full_name()));
  HOLDFAST_ASSIGN_OR_RETURN(guarded_certificates_,
                            guard(*certificates_, coordinator::Certificates::service_full_name()));
  if (options.tls.configured()) {
    HOLDFAST_ASSIGN_OR_RETURN(auto separate, LeaderChannel::Make(options.upstream, options.tls));
    keeper_ = std::make_unique<CertificateKeeper>(options.tls, options.tls_renew,
                                                  std::move(separate), revoked_, clock);
    for (GuardedService* one :
         {guarded_agents_.get(), guarded_relays_.get(), guarded_certificates_.get()}) {
      one->callers().Refuse(revoked_);
    }
    keeper_->Start();
  }
  InterceptorFactories interceptors;
  interceptors.push_back(MakeRedirects(*upstream_));
  HOLDFAST_ASSIGN_OR_RETURN(
      server_,
      StartServer({guarded_agents_.get(), guarded_relays_.get(), guarded_certificates_.get()},
                  endpoint_, options.tls, "listen", kControlMessageBytesMax, 0,
                  std::move(interceptors)));
  upstream_->Start(*agents_);
  if (!options.metrics.enabled()) return Status::Ok();
  HOLDFAST_ASSIGN_OR_RETURN(metrics_,
                            MetricsServer::Start(
                                options.metrics, {options.tls.cert, options.tls.key},
                                [this] { return CollectMetrics(*agents_, *upstream_); }, clock));
  Log(LogLevel::kInfo, "MetricsListening",
      {Kv("address", metrics_->address()), Kv("https", metrics_->https()),
       Kv("textfile", options.metrics.textfile)});
  return Status::Ok();
}

RelayServer::~RelayServer() {
  metrics_.reset();
  if (keeper_) keeper_->Stop();
  // Before the server: it ends the waiting calls and the streams, so the shutdown is short.
  if (upstream_) upstream_->Stop();
  if (server_ == nullptr) return;
  server_->Shutdown(gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC),
                                 gpr_time_from_millis(kStopPatienceMs, GPR_TIMESPAN)));
  server_->Wait();
}

}  // namespace holdfast::coord::relay
