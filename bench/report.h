#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "bench/bench.h"

// Combines the repetitions of benchmarks, and defines the output format of all benchmarks.

namespace holdfast::bench {

/// Returns one figure per name, in the order of first appearance. Ratio, ours and reference are the
/// medians over the repetitions with that name; least and most are the extremes of the ratio.
std::vector<BenchResult> Combine(const std::vector<std::vector<BenchResult>>& repetitions);

/// Returns {"name", "ratio", "ours", "reference", "unit", "goal", "repetitions", "spread": [least,
/// most], "note"}.
nlohmann::ordered_json ToJson(const BenchResult& result);
/// The inverse of ToJson. InvalidArgument names a key that is missing or has another type.
Result<BenchResult> ResultFromJson(const nlohmann::json& json);

/// Returns {"schema": 2, "machine": …, "results": […]}, the content of every --json file.
nlohmann::ordered_json Document(const std::vector<BenchResult>& results);

/// Return lines for a terminal.
std::string TableHead();
std::string TableRow(const BenchResult& result);

}  // namespace holdfast::bench
