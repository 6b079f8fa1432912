#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "cli/core/options.h"
#include "faults/api/faults.pb.h"
#include "faults/drill/plan.h"

namespace holdfast::faults {

/// Where the fault injectors listen. Unless another address is given, that of a node is port 7079
/// of its agent's host, or the socket fault.sock in the folder of its agent's data socket; that of
/// the coordinator likewise, by the address of the coordinator.
class InjectorAddresses {
 public:
  /// Parses "n1=10.0.0.1:7079" and so on, and the address of the coordinator's injector, which may
  /// be empty. InvalidArgument for a bad name or address, and for a node given twice.
  static Result<InjectorAddresses> Parse(const std::vector<std::string>& nodes,
                                         const std::string& coordinator);

  std::string OfNode(const std::string& node, const std::string& data_address) const;
  std::string OfCoordinator(const std::string& endpoint) const;

 private:
  std::map<std::string, std::string> nodes_;
  std::string coordinator_;
};

/// The fault of one drill, by the injectors of all machines that it affects.
class Injection {
 public:
  Injection(const cli::GlobalOptions& options, const InjectorAddresses& addresses, Clock& clock)
      : options_(options), addresses_(addresses), clock_(clock) {}

  /// Returns the injectors' description of what the drill would do. Unavailable names the machines
  /// on which no injector answers, and what to do.
  Result<std::string> Rehearse(const DrillPlan& plan) const;
  /// Rehearses, so that no fault begins where a machine refuses its part, and begins the fault.
  Result<std::string> Begin(const DrillPlan& plan, const std::string& drill) const;
  /// Undoes the fault on all machines. Also works after an interruption. The first error, after all
  /// have been tried.
  Status End(const DrillPlan& plan, const std::string& drill) const;

 private:
  struct Machine {
    std::string what;  // "node n1", "the coordinator's machine"
    std::string node;  // empty: the coordinator
    std::string address;
  };
  std::vector<Machine> MachinesOf(const DrillPlan& plan) const;
  InjectRequest RequestOf(const DrillPlan& plan, const Machine& machine,
                          const std::string& drill) const;
  Result<std::string> Inject(const Machine& machine, const InjectRequest& request) const;
  Status End(const Machine& machine, const std::string& drill) const;
  /// Sends the request to all machines.
  Result<std::string> InjectAll(const DrillPlan& plan, const std::string& drill,
                                bool dry_run) const;

  const cli::GlobalOptions& options_;
  const InjectorAddresses& addresses_;
  Clock& clock_;
};

/// The time from the request to the fault: faults of several machines begin together, and a machine
/// that loses its links has replied by then.
int64_t StartInMs(DrillKind kind);

}  // namespace holdfast::faults
