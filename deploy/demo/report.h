#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace holdfast::demo {

/// The results of the demo.
struct Report {
  /// One drill, as `holdfast drill -o json` reports it: target, detect_ms, recover_ms, lost_steps,
  /// incident_kind, bytes_equal, passed. The times come from the incident or, when no rank is
  /// restarted, from `holdfast status`.
  struct Row {
    std::string name;
    nlohmann::json drill;  // null: the drill did not finish
    std::string skipped;   // why this machine cannot run the drill; empty: it ran
    std::string error;
    bool ok() const { return error.empty() && (!skipped.empty() || drill.value("passed", false)); }
  };
  std::vector<Row> rows;
  bool bit_identical = false;  // the final parameters equal the baseline's byte for byte
  uint64_t steps = 0;
  uint64_t restarts = 0;  // by `holdfast run`
  uint64_t parameter_bytes = 0;
  double seconds = 0;
};

std::string ToTable(const Report& report);
/// Returns {"schema": 2, "bit_identical", "steps", "restarts", "parameter_bytes", "seconds",
/// "drills": [{"name", "skipped" or "error" or the drill's report}]}.
std::string ToJson(const Report& report);

}  // namespace holdfast::demo
