#pragma once

#include <atomic>
#include <string>

#include "agent/api/agent.grpc.pb.h"
#include "agent/peers/tcp_server.h"
#include "agent/pipeline/node.h"
#include "agent/server/injector.h"
#include "agent/workers/manager.h"
#include "base/mutex.h"
#include "storage/volume/volume.h"

namespace holdfast::agent {

/// Sends shards to operators and other agents. The service only reads, except for drills. It checks
/// names, numbers and tiers of requests, and sends a chunk only after verifying its checksum. A few
/// calls run concurrently, each with a few MiB, and a few dozen wait, so that memory and threads
/// stay bounded. Further calls are refused immediately; their clients retry.
class DataService final : public Agent::Service {
 public:
  /// The arguments must outlive the service.
  DataService(Node& node, Volume& volume, Arena& arena, const std::string& node_name);
  /// Includes the peer server in the replies of Dump(). `peers` must outlive the service.
  void ShowPeers(const TcpPeerServer& peers) { peers_.store(&peers); }
  /// Passes requests for faults to `injector`, which must outlive the service.
  void AllowFaults(Injector& injector) { injector_.store(&injector); }
  /// Serves the logs of `workers` by ReadWorkerLog(). `workers` must outlive the service.
  void ShowWorkers(const WorkerManager& workers) { workers_.store(&workers); }

  grpc::Status ReadShard(grpc::ServerContext* context, const ReadShardRequest* request,
                         grpc::ServerWriter<ShardPiece>* writer) override;
  grpc::Status VerifyShard(grpc::ServerContext* context, const VerifyShardRequest* request,
                           VerifyShardReply* reply) override;
  grpc::Status ReadWorkerLog(grpc::ServerContext* context, const ReadWorkerLogRequest* request,
                             ReadWorkerLogReply* reply) override;
  grpc::Status InjectFault(grpc::ServerContext* context, const InjectFaultRequest* request,
                           InjectFaultReply* reply) override;
  grpc::Status EndFault(grpc::ServerContext* context, const EndFaultRequest* request,
                        EndFaultReply* reply) override;
  grpc::Status Dump(grpc::ServerContext* context, const DumpRequest* request,
                    DumpReply* reply) override;

 private:
  Status SendFromMemory(const ShardKey& key, grpc::ServerWriter<ShardPiece>* writer);
  Status SendFromDisk(const ShardKey& key, grpc::ServerWriter<ShardPiece>* writer);
  Status SendPart(const ShardKey& key, Tier tier, const ReadShardRequest& request,
                  grpc::ServerWriter<ShardPiece>* writer);

  Node& node_;
  Volume& volume_;
  Arena& arena_;
  std::atomic<const TcpPeerServer*> peers_{nullptr};
  std::atomic<const WorkerManager*> workers_{nullptr};
  std::atomic<Injector*> injector_{nullptr};
  const std::string node_name_;
  std::atomic<int> running_{0};
  Mutex parts_mutex_;
  CondVar part_ended_;
  int parts_ HOLDFAST_GUARDED_BY(parts_mutex_) = 0;          // being sent now
  int parts_waiting_ HOLDFAST_GUARDED_BY(parts_mutex_) = 0;  // waiting for their turn
};

}  // namespace holdfast::agent
