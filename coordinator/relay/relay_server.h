#pragma once

#include <memory>
#include <string>

#include "base/certificates/revoked_names.h"
#include "base/clock.h"
#include "base/metrics/metrics_server.h"
#include "coordinator/api/access_guard.h"
#include "coordinator/api/certificate_keeper.h"
#include "coordinator/api/channel.h"
#include "coordinator/relay/agent_service.h"
#include "coordinator/relay/upstream.h"

namespace holdfast::coord::relay {

struct RelayOptions {
  std::string cluster;
  std::string listen;
  std::string advertise;  // empty: `listen`
  std::string upstream;   // the coordinators, separated by commas
  TlsFiles tls;
  bool tls_renew = false;
  AccessOptions access;
  MetricsOptions metrics;
  size_t pending_bytes_max = UpstreamOptions().pending_bytes_max;  // less in tests
};

/// Checks the addresses and files. InvalidArgument: there are no coordinators, or the relay is one
/// of them.
Status CheckRelay(const RelayOptions& options);

/// A running relay. Its destructor stops it in order.
class RelayServer {
 public:
  /// Starts the server, which listens when this returns. `clock` outlives the server.
  static Result<std::unique_ptr<RelayServer>> Start(const RelayOptions& options, Clock& clock);
  ~RelayServer();

  /// Returns the listening address, with the port that was bound.
  const Endpoint& endpoint() const { return endpoint_; }
  /// Returns the address for metrics, with the port that was bound; empty if metrics are off.
  std::string metrics_address() const { return metrics_ ? metrics_->address() : ""; }

 private:
  RelayServer() = default;
  Status StartServices(const RelayOptions& options, Clock& clock);

  Endpoint endpoint_;
  certificates::RevokedNames revoked_;
  std::unique_ptr<CertificateKeeper> keeper_;  // null: no TLS
  std::unique_ptr<Upstream> upstream_;
  std::unique_ptr<AgentService> agents_;
  std::unique_ptr<RefusingRelays> relays_;
  std::unique_ptr<coordinator::Certificates::CallbackService> certificates_;
  std::unique_ptr<GuardedService> guarded_agents_;
  std::unique_ptr<GuardedService> guarded_relays_;
  std::unique_ptr<GuardedService> guarded_certificates_;
  std::unique_ptr<ApiServer> server_;
  std::unique_ptr<MetricsServer> metrics_;
};

}  // namespace holdfast::coord::relay
