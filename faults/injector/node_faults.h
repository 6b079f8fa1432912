#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "base/status.h"
#include "faults/api/faults.pb.h"
#include "faults/injector/order_book.h"

namespace holdfast::faults {

/// What an injector knows of its machine, from its configuration.
struct MachineOptions {
  std::string agent_run_dir;  // of the node's agent
  std::vector<std::string> data_dirs;
  std::string coordinator;      // address; a partition cuts the node off from the coordinator, too
  bool restart_servers = true;  // false: the servers' service manager starts them again
  mode_t umask = 022;           // of servers that are started again
};

/// Turns the requests of drills into orders for the servers, trainers, disks and links of this
/// machine. It reads what the agent leaves in its folders, and has no part in the agent.
/// Thread-safe.
class NodeFaults {
 public:
  /// `book` must outlive this object.
  NodeFaults(MachineOptions options, OrderBook& book) : options_(std::move(options)), book_(book) {}

  /// Begins the fault. With `dry_run`, only checks whether the fault is possible. Returns a
  /// sentence that describes the fault. FailedPrecondition: the fault would affect more than this
  /// machine, another drill is in force, or a privilege is missing.
  Result<std::string> Inject(const InjectRequest& request);

 private:
  Result<std::string> Kill(const InjectRequest& request);
  Result<std::string> Stop(const InjectRequest& request, Order order);
  Result<std::string> RestartAgent(const InjectRequest& request, Order order);
  Result<std::string> RestartCoordinator(const InjectRequest& request, Order order);
  Result<std::string> Fill(const InjectRequest& request, Order order);
  Result<std::string> Cut(const InjectRequest& request, Order order);
  Result<std::string> Corrupt(const InjectRequest& request);
  Result<ProcessName> TrainerOf(const InjectRequest& request);
  /// Begins the order, or with `dry_run` only checks that no other drill is in force.
  Status Begin(const InjectRequest& request, const Order& order);
  /// Fills in the server at order.endpoint, which runs `program`.
  Status ChooseServer(const std::string& program, Order* order) const;
  /// Returns e.g. "the agent is killed and restarts after 2.0 s".
  std::string Sentence(const std::string& what, const InjectRequest& request) const;

  const MachineOptions options_;
  OrderBook& book_;
};

}  // namespace holdfast::faults
