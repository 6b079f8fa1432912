#pragma once

#include <nlohmann/json_fwd.hpp>

namespace holdfast::bench {

/// What the figures of a run depend on, apart from the code: processor, cores, memory, kernel,
/// operating system, and how busy the machine was when the run began (load averages of 1, 5 and 15
/// minutes). Unknown parts are left out.
nlohmann::ordered_json DescribeMachine();

}  // namespace holdfast::bench
