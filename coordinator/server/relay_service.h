#pragma once

#include <map>
#include <memory>
#include <set>
#include <string>

#include "base/mutex.h"
#include "base/thread.h"
#include "coordinator/api/caller.h"
#include "coordinator/server/relay_session.h"

namespace holdfast::coord {

/// The service for relays, which gives each of them one session. Sends what the sessions collect
/// every few milliseconds. Thread-safe.
class RelayService : public coordinator::Relays::CallbackService {
 public:
  /// All outlive the service.
  RelayService(std::string cluster, Applier& applier, AgentRequests& agents, const Clock& clock);
  ~RelayService() override;

  /// Identifies callers by `callers`, which outlives the service. Before the first call.
  void Identify(const CallerRegistry& callers) { callers_ = &callers; }
  /// Returns OK if the caller may act for the node: as its agent, or as a relay through which the
  /// node is attached.
  Status CheckNode(const grpc::CallbackServerContext& context, const std::string& node);
  /// Ends the thread. The applier has closed all sessions before.
  void Stop();

  grpc::ServerWriteReactor<coordinator::RelayDown>* Open(
      grpc::CallbackServerContext* context, const coordinator::OpenRelayRequest* request) override;
  grpc::ServerUnaryReactor* Forward(grpc::CallbackServerContext* context,
                                    const coordinator::ForwardRequest* request,
                                    coordinator::ForwardReply* reply) override;

 private:
  std::shared_ptr<RelaySession> Find(uint64_t session);
  std::string CallerOf(grpc::CallbackServerContext& context) const;
  void Run();

  const std::string cluster_;
  Applier& applier_;
  AgentRequests& agents_;
  const Clock& clock_;
  const CallerRegistry* callers_ = nullptr;

  Mutex mutex_;
  CondVar wake_;
  std::map<uint64_t, std::shared_ptr<RelaySession>> sessions_ HOLDFAST_GUARDED_BY(mutex_);
  std::set<uint64_t> dirty_ HOLDFAST_GUARDED_BY(mutex_);
  bool stopping_ HOLDFAST_GUARDED_BY(mutex_) = false;
  Thread thread_;
};

}  // namespace holdfast::coord
