#pragma once

#include <map>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "agent/peers/transport.h"
#include "storage/base/clock.h"
#include "storage/base/mutex.h"
#include "storage/parity/group_plan.h"

namespace holdfast::agent {

/// Whether a peer answered when it was asked lately.
struct PeerAnswer {
  std::string node;
  bool reached = false;
  bool operator==(const PeerAnswer&) const = default;
};

/// Finds out which peers this node reaches, while somebody wonders: when a transfer between
/// trainers does not move, the ends of a dead link and the node that is cut off are told apart by
/// who still reaches whom. Asks the next few members of the job's parity group for something that
/// they do not have, once a second; otherwise idle. Its own thread. Thread-safe.
class PeerReach {
 public:
  /// `transport` and `clock` outlive it; `node` is this one.
  PeerReach(PeerTransport& transport, std::string node, Clock& clock);
  ~PeerReach();

  /// Whom there is to ask.
  void SetGroup(const std::string& job, const std::optional<GroupPlan>& group);
  /// Peers of the job are asked from now on, until a moment after the last such call. Returns what
  /// those who were asked lately had to say.
  std::vector<PeerAnswer> Wonder(const std::string& job);

 private:
  struct Job {
    std::vector<std::pair<std::string, std::string>> peers;  // node, address
    Clock::TimePoint wondered = Clock::TimePoint::min();
    std::vector<PeerAnswer> answers;
    Clock::TimePoint answered = Clock::TimePoint::min();
  };

  void Run();
  std::vector<PeerAnswer> Ask(const std::string& job, const Job& whom);

  PeerTransport& transport_;
  const std::string node_;
  Clock& clock_;
  Mutex mutex_;
  CondVar changed_;
  std::map<std::string, Job> jobs_ HOLDFAST_GUARDED_BY(mutex_);
  bool stopping_ HOLDFAST_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace holdfast::agent
