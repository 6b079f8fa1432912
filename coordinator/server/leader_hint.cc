#include "coordinator/server/leader_hint.h"

#include <string>

#include "coordinator/api/leader_channel.h"

namespace holdfast::coord {
namespace {
namespace rpc = grpc::experimental;

class LeaderHint : public rpc::Interceptor {
 public:
  explicit LeaderHint(EtcdSession& session) : session_(session) {}

  void Intercept(rpc::InterceptorBatchMethods* methods) override {
    if (methods->QueryInterceptionHookPoint(rpc::InterceptionHookPoints::PRE_SEND_STATUS)) {
      const grpc::Status status = methods->GetSendStatus();
      const std::string why = session_.why();
      // Only the leader knows the owners of jobs: a refusal by a coordinator that stands by means
      // no more than that the leader decides.
      const bool leader_decides = status.error_code() == grpc::StatusCode::UNAVAILABLE ||
                                  status.error_code() == grpc::StatusCode::PERMISSION_DENIED;
      if (leader_decides && !why.empty()) {
        const std::string leader = session_.leader();
        methods->GetSendTrailingMetadata()->insert(
            {kLeaderMetadata, leader.empty() ? kNoLeader : leader});
        methods->ModifySendStatus({grpc::StatusCode::UNAVAILABLE, why, status.error_details()});
      }
    }
    methods->Proceed();
  }

 private:
  EtcdSession& session_;
};

class LeaderHintFactory : public rpc::ServerInterceptorFactoryInterface {
 public:
  explicit LeaderHintFactory(EtcdSession& session) : session_(session) {}
  rpc::Interceptor* CreateServerInterceptor(rpc::ServerRpcInfo* /*call*/) override {
    return std::make_unique<LeaderHint>(session_).release();  // gRPC owns it
  }

 private:
  EtcdSession& session_;
};
}  // namespace

std::unique_ptr<rpc::ServerInterceptorFactoryInterface> MakeLeaderHints(EtcdSession& session) {
  return std::make_unique<LeaderHintFactory>(session);
}

}  // namespace holdfast::coord
