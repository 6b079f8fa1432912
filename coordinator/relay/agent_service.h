#pragma once

#include <grpcpp/grpcpp.h>
#include <grpcpp/support/server_interceptor.h>

#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>

#include "base/mutex.h"
#include "coordinator/api/coordinator.grpc.pb.h"
#include "coordinator/api/directive_stream.h"
#include "coordinator/relay/upstream.h"

namespace holdfast::coord::relay {

/// The service of coordinator.proto that a relay has for its agents. Reports, telemetry and streams
/// of directives go through the session; joins and restores are passed on one by one. The
/// methods that are not here are redirected, see MakeRedirects(). Thread-safe.
class AgentService : public coordinator::Coordinator::CallbackService, public DownReceiver {
 public:
  /// `own_address`: how agents reach this relay. `upstream` outlives the service.
  AgentService(std::string own_address, Upstream& upstream)
      : own_address_(std::move(own_address)), upstream_(upstream) {}

  /// Returns how many agents are attached.
  size_t agents();

  void OnDirective(const coordinator::RelayDirective& directive) override;
  void OnEnd(const coordinator::RelayEnd& end) override;
  void OnLost(const Status& why) override;

  grpc::ServerWriteReactor<coordinator::Directive>* Attach(
      grpc::CallbackServerContext* context, const coordinator::AttachRequest* request) override;
  grpc::ServerUnaryReactor* Report(grpc::CallbackServerContext* context,
                                   const coordinator::ReportRequest* request,
                                   coordinator::ReportReply* reply) override;
  grpc::ServerUnaryReactor* Observe(grpc::CallbackServerContext* context,
                                    const coordinator::ObserveRequest* request,
                                    coordinator::ObserveReply* reply) override;
  grpc::ServerUnaryReactor* Join(grpc::CallbackServerContext* context,
                                 const coordinator::JoinRequest* request,
                                 coordinator::JoinReply* reply) override;
  grpc::ServerUnaryReactor* DecideRestore(grpc::CallbackServerContext* context,
                                          const coordinator::DecideRestoreRequest* request,
                                          coordinator::DecideRestoreReply* reply) override;
  grpc::ServerUnaryReactor* PlanRestore(grpc::CallbackServerContext* context,
                                        const coordinator::PlanRestoreRequest* request,
                                        coordinator::PlanRestoreReply* reply) override;
  grpc::ServerUnaryReactor* GetStatus(grpc::CallbackServerContext* context,
                                      const coordinator::GetStatusRequest* request,
                                      coordinator::GetStatusReply* reply) override;

 private:
  struct Link {
    std::shared_ptr<DirectiveStream> stream;
    std::string node;
    uint64_t agent_start = 0;
    std::map<std::string, coordinator::GroupPlan> groups;  // by job; the one sent last
  };
  using Agent = std::pair<std::string, uint64_t>;  // node and start of the agent

  /// Returns the link of an agent; 0: it has none.
  uint32_t LinkOf(const std::string& node, uint64_t agent_start);
  /// Sets the link of the agent that sent the request. Fenced: it has none.
  template <typename Request>
  Status SetLink(const grpc::CallbackServerContext& context, const Request& request,
                 coordinator::RelayItem& item);
  /// Removes a link. Returns its stream, or null if it was removed before.
  std::shared_ptr<DirectiveStream> Remove(uint32_t link);
  void OnStreamEnd(uint32_t link);
  template <typename Request, typename Reply, typename Method>
  grpc::ServerUnaryReactor* PassOn(grpc::CallbackServerContext* context, const Request* request,
                                   Reply* reply, Method method);

  const std::string own_address_;
  Upstream& upstream_;

  Mutex mutex_;
  uint32_t last_link_ HOLDFAST_GUARDED_BY(mutex_) = 0;
  std::unordered_map<uint32_t, Link> links_ HOLDFAST_GUARDED_BY(mutex_);
  std::map<Agent, uint32_t> agents_ HOLDFAST_GUARDED_BY(mutex_);
};

/// Refuses relays: a relay's upstream is a coordinator. Thread-safe.
class RefusingRelays : public coordinator::Relays::CallbackService {
 public:
  explicit RefusingRelays(std::string own_address) : own_address_(std::move(own_address)) {}
  grpc::ServerWriteReactor<coordinator::RelayDown>* Open(
      grpc::CallbackServerContext* context, const coordinator::OpenRelayRequest* request) override;

 private:
  const std::string own_address_;
};

/// Returns a factory of interceptors that redirect the calls that a relay does not serve to the
/// leader: Unavailable, with kLeaderMetadata. `upstream` outlives the server.
std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface> MakeRedirects(
    Upstream& upstream);

}  // namespace holdfast::coord::relay
