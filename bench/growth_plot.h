#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"

namespace holdfast::bench {

/// The cost of one version's parity in a group of `nodes` with `parity` parities.
struct GrowthPoint {
  int nodes = 0;
  int parity = 0;
  double ms = 0;        // sealed → committed at peer
  double alone_ms = 0;  // only sending a node's bytes, at the node's rate limit
  double sent_mb = 0;   // per node
  double cpu_ms = 0;    // per node's agent
  double least = 0;     // the smallest ms ÷ alone_ms of the repetitions
  double most = 0;      // the largest ms ÷ alone_ms of the repetitions
};

/// Return a Markdown table and an SVG plot of the same numbers.
std::string GrowthTable(const std::vector<GrowthPoint>& points);
std::string GrowthSvg(const std::vector<GrowthPoint>& points, const std::string& title);

/// Puts the table between the lines `<!-- growth -->` and `<!-- end of growth -->` of a Markdown
/// file, and writes the plot to growth.svg in the same folder. NotFound: the file lacks these
/// lines.
Status WriteGrowth(const std::string& path, const std::vector<GrowthPoint>& points,
                   const std::string& title);

}  // namespace holdfast::bench
