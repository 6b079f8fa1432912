#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "testing/sim/program/recorder.h"

// The digests that the agents of a job send to the coordinator, and when they arrive.

namespace holdfast::sim::program {

class Agents {
 public:
  Agents(Engine& engine, FlightRule rule, uint64_t seed);

  /// Takes all samples up to `until_s`. The engine must have run until then.
  void SampleUntil(double until_s);
  struct Delivery {
    double at_s = 0;
    std::unique_ptr<detect::Digest> digest;
  };
  /// Returns the next digest that arrives by `until_s`, in order of arrival.
  std::optional<Delivery> Next(double until_s);

  /// The incarnation that the detector observes.
  static constexpr Incarnation kIncarnation{7};

 private:
  struct Node {
    double offset_s = 0;
    double rate = 1;
    double next_sample_s = 0;
    double restart_s = kNever;
    double outage_s = kNever;
    double outage_end_s = 0;
    bool outage_loses = false;
    double fast_until_s = 0;
    uint64_t agent_start = 1;
    uint64_t number = 0;
    uint64_t samples = 0;
    std::vector<detect::RankRecord> kept;  // recent records, repeated after an agent restart
    std::vector<uint32_t> dead_reports;    // by rank of the node
  };
  void Sample(uint32_t index, double at_s);
  void ReportRank(uint32_t index, uint32_t rank, double at_s, detect::Digest& digest);
  void DisturbRecords(detect::Digest& digest);
  void ReportProbes(uint32_t index, double at_s, detect::Digest& digest) const;
  void Restart(uint32_t index, double at_s, detect::Digest& digest);
  void Send(Node& node, double at_s, detect::Digest digest);
  void Push(double at_s, detect::Digest digest);
  uint64_t Stamp(const Node& node, double at_s);
  double SinceStep(double since_s);
  static uint64_t LocalNs(const Node& node, double at_s) {
    return static_cast<uint64_t>((at_s + 1000 + node.offset_s) * node.rate * 1e9);
  }
  char StateOf(uint32_t rank, double at_s) const;

  Engine& engine_;
  const Setting& setting_;
  const FlightRule rule_;
  Noise noise_;
  Noise step_noise_;
  std::vector<Node> nodes_;
  std::vector<Recorder> recorders_;  // by rank
  Recorder::Snapshot snapshot_;
  struct Later {
    bool operator()(const Delivery& a, const Delivery& b) const { return a.at_s > b.at_s; }
  };
  std::vector<Delivery> queue_;  // a heap
};

}  // namespace holdfast::sim::program
