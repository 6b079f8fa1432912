#pragma once

#include <grpcpp/grpcpp.h>

#include <functional>
#include <memory>

#include "base/metrics/metrics_server.h"
#include "coordinator/etcd/session.h"
#include "coordinator/server/applier.h"
#include "coordinator/server/certificate_service.h"
#include "coordinator/server/config.h"
#include "coordinator/server/page_source.h"
#include "coordinator/server/restart_command.h"
#include "coordinator/server/service.h"
#include "coordinator/ui/ui_server.h"

namespace holdfast::coord {

/// A running coordinator: store, applier and gRPC server. Its destructor stops it in order.
class CoordinatorServer {
 public:
  /// Starts the server, which listens when this returns. `opener` opens the metadata store, and
  /// opens it again after a failed write. `clock` outlives the server.
  static Result<std::unique_ptr<CoordinatorServer>> Start(const CoordinatorConfig& config,
                                                          Applier::StoreOpener opener,
                                                          Clock& clock);
  /// The same, with the store of the configuration: the RocksDB in data_dir, or an etcd. With etcd,
  /// the server may stand by.
  static Result<std::unique_ptr<CoordinatorServer>> Start(const CoordinatorConfig& config,
                                                          Clock& clock);
  ~CoordinatorServer();

  /// Returns the listening address, with the port that was bound.
  const Endpoint& endpoint() const { return endpoint_; }
  /// Returns the address for metrics, with the port that was bound; empty if metrics are off.
  std::string metrics_address() const { return metrics_ ? metrics_->address() : ""; }
  /// Returns the URL of the page, with the port that was bound; empty: no page.
  std::string page_url() const { return page_ ? page_->url() : ""; }
  Epoch epoch() const { return applier_->epoch(); }
  /// Calls `then` once, on the applier's thread, after it has stored the effects of its next batch.
  void AfterNextBatch(std::function<void()> then);
  Watcher::Counts watched() const { return watcher_->counts(); }

 private:
  CoordinatorServer() = default;
  /// Starts what decides: the applier, the restart command and the watcher.
  Status StartApplier(const CoordinatorConfig& config, Applier::StoreOpener opener, Clock& clock);
  /// Starts the services of agents and operators.
  Status StartServices(const CoordinatorConfig& config, Backups::Reader reader, Clock& clock);
  Status StartPage(const CoordinatorConfig& config, Clock& clock);
  Status StartCertificates(const CoordinatorConfig& config, Clock& clock);
  Status StartRelays(const CoordinatorConfig& config, Clock& clock);
  Status StartJoin(const CoordinatorConfig& config, Clock& clock);
  Status StartMetrics(const CoordinatorConfig& config, Clock& clock);

  static Result<std::unique_ptr<CoordinatorServer>> Start(const CoordinatorConfig& config,
                                                          Applier::StoreOpener opener,
                                                          std::unique_ptr<EtcdSession> session,
                                                          Backups::Reader reader, Clock& clock);

  Endpoint endpoint_;
  std::unique_ptr<EtcdSession> session_;  // null: the embedded store
  std::unique_ptr<RestartCommand> restart_command_;
  std::unique_ptr<Applier> applier_;
  std::unique_ptr<Watcher> watcher_;
  std::unique_ptr<Backups> backups_;
  std::unique_ptr<CoordinatorService> service_;
  std::unique_ptr<Issuer> issuer_;
  std::unique_ptr<TrustFeed> feed_;
  std::unique_ptr<CertificateService> certificates_;
  std::unique_ptr<GuardedService> guarded_certificates_;
  std::unique_ptr<EnrollmentService> enrollment_;
  std::unique_ptr<RelayService> relays_;
  std::unique_ptr<GuardedService> guarded_relays_;
  std::unique_ptr<GuardedService> guarded_;
  std::unique_ptr<AuditLog> audit_log_;
  std::unique_ptr<Auditor> auditor_;
  std::unique_ptr<ApiServer> server_;
  std::unique_ptr<grpc::Server> join_server_;  // null: nowhere
  std::unique_ptr<MetricsServer> metrics_;
  std::unique_ptr<PageSource> page_source_;
  std::unique_ptr<ui::UiServer> page_;
};

}  // namespace holdfast::coord
