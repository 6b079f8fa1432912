#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>

#include "base/random.h"
#include "testing/world/sim_scheduler.h"

namespace holdfast {

/// The messages that one life of a process receives. One thread of the process handles them, each
/// at its time.
class Mailbox {
 public:
  Mailbox(SimScheduler& scheduler, SimProcess& process);
  /// Handles `message` at `due`, unless the process has ended by then.
  void Post(Clock::TimePoint due, std::function<void()> message);
  /// Drops all messages, and waits until the thread has ended.
  void Close();

 private:
  struct State {
    std::multimap<Clock::TimePoint, std::function<void()>> messages;
    bool closed = false;
    bool ended = false;
  };
  SimScheduler& scheduler_;
  std::shared_ptr<State> state_ = std::make_shared<State>();
};

struct NetworkFaults {
  uint64_t lost_one_in = 0;     // calls, in either direction; 0: none
  uint64_t delayed_one_in = 0;  // messages
  uint64_t late_one_in = 0;     // lost calls that arrive long after their caller gave up
};

/// Delays, losses and partitions. Nodes talk to the coordinator and to each other.
class Network {
 public:
  Network(SimScheduler& scheduler, uint64_t seed) : scheduler_(scheduler), random_(seed) {}

  void SetFaults(const NetworkFaults& faults) { faults_ = faults; }
  Clock::Duration Delay();
  bool Lost() { return faults_.lost_one_in != 0 && random_.OneIn(faults_.lost_one_in); }
  bool Late() { return faults_.late_one_in != 0 && random_.OneIn(faults_.late_one_in); }
  /// Cuts a node off for this time. Messages on open streams arrive afterwards.
  void CutOff(const std::string& node, Clock::Duration time) {
    cut_until_[node] = scheduler_.Now() + time;
  }
  bool IsCutOff(const std::string& node) const;
  /// Returns when a message of a stream between a node and the coordinator arrives.
  Clock::TimePoint StreamArrival(const std::string& node);
  void Heal();

 private:
  SimScheduler& scheduler_;
  Random random_;
  NetworkFaults faults_;
  std::map<std::string, Clock::TimePoint> cut_until_;
};

}  // namespace holdfast
