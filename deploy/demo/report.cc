#include "deploy/demo/report.h"

#include <fmt/format.h>

namespace holdfast::demo {
namespace {
using nlohmann::json;

std::string Number(const json& drill, const char* key) {
  const auto found = drill.find(key);
  return found == drill.end() || !found->is_number() ? "–"
                                                     : fmt::format("{:.0f}", found->get<double>());
}

std::string Text(const json& drill, const char* key) {
  const auto found = drill.find(key);
  return found == drill.end() || !found->is_string() ? "–" : found->get<std::string>();
}

}  // namespace

std::string ToTable(const Report& report) {
  std::string out = fmt::format("{:<18}{:<16}{:>11}{:>12}{:>7}  {:<28}{}\n", "DRILL", "TARGET",
                                "DETECT ms", "RECOVER ms", "LOST", "INCIDENT", "RESULT");
  for (const Report::Row& row : report.rows) {
    if (!row.skipped.empty()) {
      out += fmt::format("{:<18}skipped: {}\n", row.name, row.skipped);
      continue;
    }
    out +=
        fmt::format("{:<18}{:<16}{:>11}{:>12}{:>7}  {:<28}{}\n", row.name,
                    Text(row.drill, "target"), Number(row.drill, "detect_ms"),
                    Number(row.drill, "recover_ms"), Number(row.drill, "lost_steps"),
                    Text(row.drill, "incident_kind"), row.ok() ? "passed" : "FAILED " + row.error);
  }
  return out;
}

std::string ToJson(const Report& report) {
  nlohmann::ordered_json drills = nlohmann::ordered_json::array();
  for (const Report::Row& row : report.rows) {
    nlohmann::ordered_json entry = {{"name", row.name}};
    if (row.drill.is_object()) {
      for (const auto& [key, value] : row.drill.items()) entry[key] = value;
    }
    if (!row.skipped.empty()) entry["skipped"] = row.skipped;
    if (!row.error.empty()) entry["error"] = row.error;
    drills.push_back(std::move(entry));
  }
  nlohmann::ordered_json document = {{"schema", 2},
                                     {"bit_identical", report.bit_identical},
                                     {"steps", report.steps},
                                     {"restarts", report.restarts},
                                     {"parameter_bytes", report.parameter_bytes},
                                     {"seconds", report.seconds},
                                     {"drills", drills}};
  return document.dump(2) + "\n";
}

}  // namespace holdfast::demo
