#include "deploy/demo/report.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

namespace holdfast::demo {

std::string ToTable(const Report& report) {
  std::string out = fmt::format("{:<32}{:<8}{:>11}{:>12}{:>12}  {}\n", "DRILL", "TIER", "DETECT ms",
                                "RECOVER ms", "LOST STEPS", "IDENTICAL");
  for (const Report::Row& row : report.rows) {
    const local::DrillReport& drill = row.drill;
    if (drill.skipped) {
      out += fmt::format("{:<32}skipped: {}\n", drill.name, drill.note);
      continue;
    }
    out += fmt::format("{:<32}{:<8}{:>11.0f}{:>12.0f}{:>12}  {}\n", drill.name, drill.tier,
                       drill.detect_ms, drill.recover_ms, drill.lost_steps,
                       !row.error.empty()  ? "FAILED: " + row.error
                       : row.bit_identical ? "yes"
                                           : "NO");
  }
  return out;
}

std::string ToJson(const Report& report) {
  nlohmann::ordered_json drills = nlohmann::ordered_json::array();
  for (const Report::Row& row : report.rows) {
    nlohmann::ordered_json entry = {{"name", row.drill.name},
                                    {"tier", row.drill.tier},
                                    {"detect_ms", row.drill.detect_ms},
                                    {"recover_ms", row.drill.recover_ms},
                                    {"lost_steps", row.drill.lost_steps},
                                    {"bit_identical", row.bit_identical}};
    if (row.drill.skipped) entry["skipped"] = row.drill.note;
    if (!row.error.empty()) entry["error"] = row.error;
    drills.push_back(std::move(entry));
  }
  nlohmann::ordered_json document = {{"schema", 1},
                                     {"bit_identical", report.bit_identical},
                                     {"drills", drills},
                                     {"steps", report.steps},
                                     {"parameter_bytes", report.parameter_bytes},
                                     {"seconds", report.seconds}};
  return document.dump(2) + "\n";
}

}  // namespace holdfast::demo
