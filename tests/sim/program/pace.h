#pragma once

#include <cstdint>
#include <vector>

#include "tests/sim/program/fault.h"

// How long things take at a moment: GPUs, CPUs and connections differ and change.

namespace holdfast::sim::program {

class Pace {
 public:
  Pace(const Job& job, const Setting& setting, const std::vector<Fault>& faults, Noise& noise);

  /// Of a computation of a rank that begins then, as a multiple of its nominal time.
  double Compute(uint32_t rank, double at_s, uint32_t iteration, Work work);
  /// Of the CPU's work.
  double Host(uint32_t rank);
  /// The rank's share of its experts' tokens: 1 is the average.
  double Tokens(uint32_t rank, uint32_t iteration) const;
  /// Of a transfer on a channel that begins then: the slowest of its connections counts.
  double Transfer(uint32_t channel, detect::Func func, double at_s);
  /// How much longer a byte waits on one connection.
  double Connection(uint32_t from, uint32_t to, detect::Func func, double at_s) const;
  /// Until when the links of the channel rest; `at_s` when they do not.
  double Rested(uint32_t channel, double at_s) const;
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
  bool slow_links_ = false;  // some may be slow now or later
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
