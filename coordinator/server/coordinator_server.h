#pragma once

#include <grpcpp/grpcpp.h>

#include <functional>
#include <memory>

#include "base/metrics/metrics_server.h"
#include "coordinator/server/applier.h"
#include "coordinator/server/config.h"
#include "coordinator/server/restart_command.h"
#include "coordinator/server/service.h"

namespace holdfast::coord {

/// A running coordinator: store, applier and gRPC server. Its destructor stops it in order.
class CoordinatorServer {
 public:
  /// Starts the server, which listens when this returns. `opener` opens the metadata store, and
  /// opens it again after a failed write. `clock` outlives the server.
  static Result<std::unique_ptr<CoordinatorServer>> Start(const CoordinatorConfig& config,
                                                          Applier::StoreOpener opener,
                                                          Clock& clock);
  /// The same, with the RocksDB store in the configuration's data_dir.
  static Result<std::unique_ptr<CoordinatorServer>> Start(const CoordinatorConfig& config,
                                                          Clock& clock);
  ~CoordinatorServer();

  /// Returns the listening address, with the port that was bound.
  const Endpoint& endpoint() const { return endpoint_; }
  /// Returns the address for metrics, with the port that was bound; empty if metrics are off.
  std::string metrics_address() const { return metrics_ ? metrics_->address() : ""; }
  Epoch epoch() const { return applier_->epoch(); }
  /// Calls `then` once, on the applier's thread, after it has stored the effects of its next batch.
  void AfterNextBatch(std::function<void()> then);
  Watcher::Counts watched() const { return watcher_->counts(); }

 private:
  CoordinatorServer() = default;

  Endpoint endpoint_;
  std::unique_ptr<RestartCommand> restart_command_;
  std::unique_ptr<Applier> applier_;
  std::unique_ptr<Watcher> watcher_;
  std::unique_ptr<CoordinatorService> service_;
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<MetricsServer> metrics_;
};

}  // namespace holdfast::coord
