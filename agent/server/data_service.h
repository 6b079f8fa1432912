#pragma once

#include <atomic>
#include <string>

#include "agent/api/agent.grpc.pb.h"
#include "agent/peers/tcp_server.h"
#include "agent/pipeline/node.h"
#include "agent/server/injector.h"
#include "agent/workers/manager.h"
#include "storage/base/mutex.h"
#include "storage/volume/volume.h"

namespace holdfast::agent {

/// Shards out, for operators and other agents; reads only, but for drills. Names, numbers and tiers
/// of requests are checked; bytes leave only after their chunk's checksum was. At most a few calls
/// at once, each with a few MiB, and a few dozen that wait for them, so that memory and threads
/// stay bounded: whoever comes then is refused at once and tries again.
class DataService final : public Agent::Service {
 public:
  /// The arguments outlive it.
  DataService(Node& node, Volume& volume, Arena& arena, const std::string& node_name);
  /// From now on Dump tells of it, too; it outlives this.
  void ShowPeers(const TcpPeerServer& peers) { peers_.store(&peers); }
  /// From now on faults are injected by it; it outlives this.
  void AllowFaults(Injector& injector) { injector_.store(&injector); }
  /// From now on logs are read there; it outlives this.
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
  int parts_ HOLDFAST_GUARDED_BY(parts_mutex_) = 0;          // being sent
  int parts_waiting_ HOLDFAST_GUARDED_BY(parts_mutex_) = 0;  // to be sent
};

}  // namespace holdfast::agent
