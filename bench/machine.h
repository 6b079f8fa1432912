#pragma once

#include <nlohmann/json_fwd.hpp>

namespace holdfast::bench {

/// Describes the machine of a run: processor, cores, memory, kernel, operating system, and the load
/// averages of 1, 5 and 15 minutes at the start of the run. Unknown values are omitted.
nlohmann::ordered_json DescribeMachine();

}  // namespace holdfast::bench
