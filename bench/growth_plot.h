#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "storage/base/status.h"

namespace holdfast::bench {

/// Parity of one version in a group of `nodes` with `parity` parities.
struct GrowthPoint {
  int nodes = 0;
  int parity = 0;
  double ms = 0;        // sealed → committed at peer
  double alone_ms = 0;  // the bytes a node sends, at the rate it may send
  double sent_mb = 0;   // by a node
  double cpu_ms = 0;    // of a node's agent
  double least = 0;     // and most: of ms ÷ alone_ms over the repetitions
  double most = 0;
};

/// A Markdown table and an SVG picture of the same numbers.
std::string GrowthTable(const std::vector<GrowthPoint>& points);
std::string GrowthSvg(const std::vector<GrowthPoint>& points, const std::string& title);

/// Puts the table between the lines `<!-- growth -->` and `<!-- end of growth -->` of a Markdown
/// file, and the picture beside the file as growth.svg. NotFound: the lines are not there.
Status WriteGrowth(const std::string& path, const std::vector<GrowthPoint>& points,
                   const std::string& title);

}  // namespace holdfast::bench
