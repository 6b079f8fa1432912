#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "coordinator/detect/robust.h"

// Locates slow transfers of a job whose connections are not measured: agents probe each other over
// the network of the job, and probes over a slow link take longer than all others.

namespace holdfast::detect {

/// How long nodes took to answer probes, by pair of nodes. Thread-compatible.
class ProbeTimes {
 public:
  /// Adds a probe. A result that repeats the last one of its direction is the same probe.
  void Add(const std::string& from, const std::string& to, uint64_t took_ns);
  void Clear();

  struct Slow {
    std::vector<std::string> nodes;  // one, or the two ends of one slow link
    double took_ns = 0;              // mean of the slow pairs' medians
    double usual_ns = 0;             // median of the others
    size_t pairs = 0;                // slow ones
    size_t of = 0;                   // pairs that were measured
  };
  /// Returns the node whose probes are all slow, or else the one slow pair. Returns nullopt if
  /// there are too few probes, or none stands out.
  std::optional<Slow> Find() const;

 private:
  using Pair = std::pair<std::string, std::string>;  // ascending: a probe takes both directions
  struct Times {
    uint64_t last[2] = {};  // of each direction
    Recent<double, 32> took_ns;
  };
  std::map<Pair, Times> pairs_;
};

}  // namespace holdfast::detect
