#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "bench/bench.h"

// Repetitions of benchmarks, put together, and the one form in which all of them are written down.

namespace holdfast::bench {

/// One figure a name, in the order of their first appearance: ratio, ours and reference are the
/// medians over the repetitions that have the name, least and most the extremes of the ratio.
std::vector<BenchResult> Combine(const std::vector<std::vector<BenchResult>>& repetitions);

/// {"name", "ratio", "ours", "reference", "unit", "goal", "repetitions", "spread": [least, most],
/// "note"}
nlohmann::ordered_json ToJson(const BenchResult& result);
/// The reverse; InvalidArgument names what is missing or of another type.
Result<BenchResult> ResultFromJson(const nlohmann::json& json);

/// {"schema": 2, "machine": …, "results": […]}, as every benchmark's --json writes it.
nlohmann::ordered_json Document(const std::vector<BenchResult>& results);

/// Lines for a terminal.
std::string TableHead();
std::string TableRow(const BenchResult& result);

}  // namespace holdfast::bench
