#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "agent/peers/transport.h"
#include "base/clock.h"
#include "base/mutex.h"
#include "base/thread.h"
#include "storage/parity/group_plan.h"

namespace holdfast::agent {

/// The result of a probe: whether the peer answered, and when.
struct PeerProbe {
  std::string node;
  bool reached = false;
  uint64_t took_ns = 0;  // until the answer or the timeout; 0: refused
};

/// Probes on demand which peers this node reaches. When a transfer between trainers is stuck or
/// slow, the coordinator uses the results of all nodes to distinguish a link from a node. A
/// probe goes to the next few members of the job's parity group and requests a version that does
/// not exist. While probes are requested, the members are probed once a second. Has a thread.
/// Thread-safe.
class PeerReach {
 public:
  /// `transport` and `clock` outlive the object; `node` is this node's name.
  PeerReach(PeerTransport& transport, std::string node, Clock& clock);
  ~PeerReach();

  /// Sets the parity group whose members are probed; nullopt: no peer is probed.
  void SetGroup(const std::string& job, const std::optional<GroupPlan>& group);
  /// Requests probes of the job's peers; they stop one second after the last request. Returns the
  /// results of the latest probes, or nothing when these are older than three seconds.
  std::vector<PeerProbe> RequestProbes(const std::string& job);

 private:
  struct Job {
    std::vector<std::pair<std::string, std::string>> peers;  // node, address
    Clock::TimePoint requested_at = Clock::TimePoint::min();
    std::vector<PeerProbe> results;
    Clock::TimePoint probed_at = Clock::TimePoint::min();
  };

  void Run();
  std::vector<PeerProbe> Probe(const std::string& name, const Job& job);

  PeerTransport& transport_;
  const std::string node_;
  Clock& clock_;
  Mutex mutex_;
  CondVar changed_;
  std::map<std::string, Job> jobs_ HOLDFAST_GUARDED_BY(mutex_);
  bool stopping_ HOLDFAST_GUARDED_BY(mutex_) = false;
  Thread thread_;
};

}  // namespace holdfast::agent
