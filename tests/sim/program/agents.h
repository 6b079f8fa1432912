#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "tests/sim/program/recorder.h"

// What the agents of a job send to the coordinator, and when it arrives.

namespace holdfast::sim::program {

class Agents {
 public:
  Agents(Engine& engine, FlightRule rule, uint64_t seed);

  /// All looks at the ranks until then, which the engine knows.
  void LookUntil(double until_s);
  struct Delivery {
    double at_s = 0;
    std::unique_ptr<detect::Digest> digest;
  };
  /// The next digest that arrives by `until_s`, in order of arrival.
  std::optional<Delivery> Next(double until_s);

  /// Of the job whose digests count.
  static constexpr Incarnation kIncarnation{7};

 private:
  struct Node {
    double offset_s = 0;
    double rate = 1;
    double next_look_s = 0;
    double restart_s = kNever;
    double outage_s = kNever;
    double outage_end_s = 0;
    bool outage_loses = false;
    double fast_until_s = 0;
    uint64_t agent_start = 1;
    uint64_t number = 0;
    uint64_t looks = 0;
    std::vector<detect::Collective> kept;  // of lately: told again by an agent that starts
    std::vector<uint32_t> dead_told;       // by rank of the node
  };
  void Look(uint32_t index, double at_s);
  void TellRank(uint32_t index, uint32_t rank, double at_s, detect::Digest& digest);
  void TellReach(uint32_t index, double at_s, detect::Digest& digest) const;
  void Restart(uint32_t index, double at_s, detect::Digest& digest);
  void Send(Node& node, double at_s, detect::Digest digest);
  void Push(double at_s, detect::Digest digest);
  uint64_t Stamp(const Node& node, double at_s);
  static uint64_t LocalNs(const Node& node, double at_s) {
    return static_cast<uint64_t>((at_s + 1000 + node.offset_s) * node.rate * 1e9);
  }
  char StateOf(uint32_t rank, double at_s) const;

  Engine& engine_;
  const Setting& setting_;
  const FlightRule rule_;
  Noise noise_;
  std::vector<Node> nodes_;
  std::vector<Recorder> recorders_;  // by rank
  Recorder::Look look_;
  struct Later {
    bool operator()(const Delivery& a, const Delivery& b) const { return a.at_s > b.at_s; }
  };
  std::vector<Delivery> queue_;  // a heap
};

}  // namespace holdfast::sim::program
