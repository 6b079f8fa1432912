#pragma once

#include <atomic>
#include <string>

#include "agent/api/agent.grpc.pb.h"
#include "agent/peers/tcp_server.h"
#include "agent/pipeline/node.h"
#include "agent/workers/manager.h"
#include "storage/volume/volume.h"

namespace holdfast::agent {

/// Serves operators: sends and verifies shards of this node. Other agents read through agent/peers.
/// The service only reads. It checks names, numbers and tiers of requests, and sends a chunk only
/// after verifying its checksum. A few reads run concurrently, so that memory and threads stay
/// bounded. Further ones are refused immediately; their clients retry.
class DataService final : public Agent::Service {
 public:
  /// The arguments must outlive the service.
  DataService(Node& node, Volume& volume, Arena& arena, const std::string& node_name);
  /// Includes the peer server in the replies of Dump(). `peers` must outlive the service.
  void ShowPeers(const TcpPeerServer& peers) { peers_.store(&peers); }
  /// Serves the logs of `workers` by ReadWorkerLog(). `workers` must outlive the service.
  void ShowWorkers(const WorkerManager& workers) { workers_.store(&workers); }

  grpc::Status ReadShard(grpc::ServerContext* context, const ReadShardRequest* request,
                         grpc::ServerWriter<ShardPiece>* writer) override;
  grpc::Status VerifyShard(grpc::ServerContext* context, const VerifyShardRequest* request,
                           VerifyShardReply* reply) override;
  grpc::Status ReadWorkerLog(grpc::ServerContext* context, const ReadWorkerLogRequest* request,
                             ReadWorkerLogReply* reply) override;
  grpc::Status Dump(grpc::ServerContext* context, const DumpRequest* request,
                    DumpReply* reply) override;

 private:
  Status Send(const ShardKey& key, Tier tier, const ReadShardRequest& request,
              grpc::ServerWriter<ShardPiece>* writer);

  Node& node_;
  Volume& volume_;
  Arena& arena_;
  std::atomic<const TcpPeerServer*> peers_{nullptr};
  std::atomic<const WorkerManager*> workers_{nullptr};
  const std::string node_name_;
  std::atomic<int> running_{0};
};

}  // namespace holdfast::agent
