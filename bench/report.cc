#include "bench/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "bench/machine.h"

namespace holdfast::bench {
namespace {

BenchResult CombineOne(const std::vector<BenchResult>& found) {
  BenchResult result = found.front();
  if (found.size() == 1) return result;
  std::vector<double> ratios;
  std::vector<double> ours;
  std::vector<double> references;
  for (const BenchResult& one : found) {
    ratios.push_back(one.ratio);
    ours.push_back(one.ours);
    references.push_back(one.reference);
    result.least = std::min(result.least, one.least);
    result.most = std::max(result.most, one.most);
  }
  result.ratio = Median(ratios);
  result.ours = Median(ours);
  result.reference = Median(references);
  result.repetitions = 0;
  for (const BenchResult& one : found) result.repetitions += one.repetitions;
  return result;
}

}  // namespace

std::vector<BenchResult> Combine(const std::vector<std::vector<BenchResult>>& repetitions) {
  std::vector<std::vector<BenchResult>> by_name;
  for (const std::vector<BenchResult>& repetition : repetitions) {
    for (const BenchResult& result : repetition) {
      auto same = std::find_if(by_name.begin(), by_name.end(), [&](const auto& found) {
        return found.front().name == result.name;
      });
      if (same == by_name.end()) same = by_name.insert(by_name.end(), std::vector<BenchResult>());
      same->push_back(result);
      BenchResult& added = same->back();
      if (added.repetitions == 1) added.least = added.most = added.ratio;
    }
  }
  std::vector<BenchResult> combined;
  for (const std::vector<BenchResult>& found : by_name) combined.push_back(CombineOne(found));
  return combined;
}

nlohmann::ordered_json ToJson(const BenchResult& result) {
  return {{"name", result.name},
          {"ratio", result.ratio},
          {"ours", result.ours},
          {"reference", result.reference},
          {"unit", result.unit},
          {"goal", result.goal},
          {"repetitions", result.repetitions},
          {"spread", {result.least, result.most}},
          {"note", result.note}};
}

Result<BenchResult> ResultFromJson(const nlohmann::json& json) {
  try {
    BenchResult result;
    result.name = json.at("name").get<std::string>();
    result.ratio = json.at("ratio").get<double>();
    result.ours = json.at("ours").get<double>();
    result.reference = json.at("reference").get<double>();
    result.unit = json.at("unit").get<std::string>();
    result.goal = json.at("goal").get<std::string>();
    result.repetitions = json.at("repetitions").get<uint32_t>();
    result.least = json.at("spread").at(0).get<double>();
    result.most = json.at("spread").at(1).get<double>();
    result.note = json.value("note", "");
    if (result.name.empty() || result.repetitions == 0) {
      return Fail(InvalidArgumentError("a result needs a name and at least one repetition"));
    }
    return result;
  } catch (const nlohmann::json::exception& error) {
    return Fail(InvalidArgumentError(fmt::format("not a result: {}", error.what())));
  }
}

nlohmann::ordered_json Document(const std::vector<BenchResult>& results) {
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  for (const BenchResult& result : results) rows.push_back(ToJson(result));
  return {{"schema", 2}, {"machine", DescribeMachine()}, {"results", rows}};
}

std::string TableHead() {
  return fmt::format("{:<28} {:>8} {:>17} {:>4} {:>10} {:>10} {:<10} {}", "NAME", "RATIO", "SPREAD",
                     "REPS", "OURS", "REFERENCE", "UNIT", "GOAL");
}

std::string TableRow(const BenchResult& result) {
  return fmt::format("{:<28} {:>8.3f} {:>8.3f}–{:<8.3f} {:>4} {:>10.4g} {:>10.4g} {:<10} {}",
                     result.name, result.ratio, result.least, result.most, result.repetitions,
                     result.ours, result.reference, result.unit, result.goal);
}

}  // namespace holdfast::bench
