#pragma once

#include <cstdint>
#include <vector>

#include "testing/sim/program/fault.h"

// How long computations and transfers take: GPUs, CPUs and connections differ and change over time.

namespace holdfast::sim::program {

class Pace {
 public:
  Pace(const Job& job, const Setting& setting, const std::vector<Fault>& faults, Noise& noise);

  /// Returns the duration of a computation that starts at `at_s`, as a multiple of its nominal
  /// time.
  double Compute(uint32_t rank, double at_s, uint32_t iteration, Work work);
  /// Returns the same for work of the rank's CPU.
  double Host(uint32_t rank);
  /// Returns the rank's share of the experts' tokens; 1 is the average.
  double Tokens(uint32_t rank, uint32_t iteration) const;
  /// Returns the duration of a transfer that starts at `at_s`, as a multiple of its nominal time.
  /// The channel's slowest connection counts.
  double Transfer(uint32_t channel, CollectiveKind collective, double at_s);
  /// Returns the factor by which a byte waits longer on one connection.
  double Connection(uint32_t from, uint32_t to, CollectiveKind collective, double at_s) const;
  /// Returns when the channel's links are up again; `at_s` if they are up.
  double LinksUpAt(uint32_t channel, double at_s) const;
  /// The connections of a channel that cross nodes.
  struct Link {
    uint32_t from = 0;
    uint32_t to = 0;
  };
  const std::vector<Link>& links(uint32_t channel) const { return links_[channel]; }

 private:
  struct Interval {
    double from_s = 0;
    double to_s = 0;
    uint32_t node = 0;
    double factor = 1;
    uint64_t seed = 0;
  };
  void DrawIntervals(Noise& noise);
  double SlowCompute(const Fault& fault, uint32_t rank, double at_s);
  double Thermal(uint32_t node, double at_s) const;
  bool InWave(const Interval& wave, uint32_t from, uint32_t to) const;

  const Job& job_;
  const Setting& setting_;
  const std::vector<Fault> faults_;
  bool slow_links_ = false;  // some connection may be slow at some time
  Noise noise_;
  std::vector<double> speed_;  // by rank
  std::vector<double> bias_;   // of experts, by rank
  std::vector<double> phase_;  // of thermal waves, by node
  std::vector<double> period_s_;
  std::vector<Interval> cron_;  // ascending, none overlap
  std::vector<Interval> waves_;
  std::vector<Interval> flaps_;
  std::vector<Interval> bursts_;  // of an intermittent fault
  std::vector<std::vector<Link>> links_;
};

}  // namespace holdfast::sim::program
