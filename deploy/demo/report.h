#pragma once

#include <string>
#include <vector>

#include "deploy/local/drills.h"

namespace holdfast::demo {

/// Everything the demo found out.
struct Report {
  struct Row {
    local::DrillReport drill;
    bool bit_identical = false;  // losses of all steps after recovery equal the baseline's
    std::string error;
  };
  std::vector<Row> rows;
  bool bit_identical = false;  // final parameters, byte for byte
  uint64_t steps = 0;
  uint64_t parameter_bytes = 0;
  double seconds = 0;
};

std::string ToTable(const Report& report);
/// {"schema": 1, "bit_identical": …, "drills": [{name, tier, detect_ms, recover_ms, lost_steps,
/// bit_identical}], …}
std::string ToJson(const Report& report);

}  // namespace holdfast::demo
