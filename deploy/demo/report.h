#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace holdfast::demo {

/// Everything the demo found out.
struct Report {
  /// One drill, as `holdfast drill -o json` reports it: target, detect_ms, recover_ms, lost_steps,
  /// incident_kind, bytes_equal, passed. Times are those of the product's incident, or, where no
  /// rank has to start again, of what `holdfast status` shows.
  struct Row {
    std::string name;
    nlohmann::json drill;  // null: it did not run to its end
    std::string skipped;   // not empty: this machine cannot do it, and why
    std::string error;
    bool ok() const { return error.empty() && (!skipped.empty() || drill.value("passed", false)); }
  };
  std::vector<Row> rows;
  bool bit_identical = false;  // final parameters, byte for byte
  uint64_t steps = 0;
  uint64_t restarts = 0;  // by `holdfast run`
  uint64_t parameter_bytes = 0;
  double seconds = 0;
};

std::string ToTable(const Report& report);
/// {"schema": 2, "bit_identical", "steps", "restarts", "parameter_bytes", "seconds", "drills":
/// [{"name", "skipped" or "error" or what the drill reported}]}
std::string ToJson(const Report& report);

}  // namespace holdfast::demo
