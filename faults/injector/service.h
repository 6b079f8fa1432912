#pragma once

#include <string>

#include "base/clock.h"
#include "faults/api/faults.grpc.pb.h"
#include "faults/injector/node_faults.h"
#include "faults/injector/order_book.h"

namespace holdfast::faults {

/// The service of faults.proto. It refuses requests for another cluster or node, of another
/// protocol, and those that arrive late.
class InjectorService final : public FaultInjector::Service {
 public:
  struct Identity {
    std::string cluster;
    std::string node;
    bool enabled = false;  // false: every request for a fault is refused
  };
  /// The references must outlive the service.
  InjectorService(Identity identity, NodeFaults& faults, OrderBook& book, Clock& clock)
      : identity_(std::move(identity)), faults_(faults), book_(book), clock_(clock) {}

  grpc::Status Inject(grpc::ServerContext* context, const InjectRequest* request,
                      InjectReply* reply) override;
  grpc::Status End(grpc::ServerContext* context, const EndRequest* request,
                   EndReply* reply) override;

 private:
  Status Check(const InjectRequest& request) const;

  const Identity identity_;
  NodeFaults& faults_;
  OrderBook& book_;
  Clock& clock_;
};

}  // namespace holdfast::faults
