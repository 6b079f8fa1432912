#pragma once

#include <map>
#include <vector>

#include "coordinator/detect/pace.h"
#include "coordinator/detect/table.h"
#include "coordinator/detect/track.h"
#include "coordinator/detect/verdict.h"

// Finds a straggler among ranks that meet in operations which are not recorded. Their steps then
// all take the same time. But after the last common operation, each rank still has some work, and a
// slow rank ends its step later than the other ranks of its node. They have one clock.

namespace holdfast::detect {

class StepEnds {
 public:
  explicit StepEnds(const DetectorOptions& options) : options_(options) {}

  /// Adds when the ranks of a node ended their last step, if all of them report the same one.
  /// `iteration_ns`: the usual duration of an iteration.
  void Add(const Digest& digest, Index node, const Table& table, double iteration_ns);
  /// Returns the stragglers. `longer`: by how much iterations have become longer.
  std::vector<Verdict> Find(const Pace::Shift& longer, const Table& table) const;

 private:
  struct NodeEnds {
    std::vector<uint32_t> ranks;
    std::vector<Track> tracks;  // ns after the usual rank of the node; same order
    uint64_t step = 0;          // the last one that counted
    uint32_t apart = 0;         // consecutive steps that the ranks did not end together
  };

  double UsualShift() const;

  const DetectorOptions options_;
  std::map<Index, NodeEnds> nodes_;
};

}  // namespace holdfast::detect
