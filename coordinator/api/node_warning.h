#pragma once

#include <array>
#include <string>
#include <string_view>

namespace holdfast::coord {

/// The health codes of conditions that agents report (NodeHealth::warnings).
inline constexpr std::array<std::string_view, 9> kNodeWarningCodes = {
    "DISK_FULL",     "DISK_FAILED",  "QUARANTINED_FILES",  "IO_URING_REFUSED", "KEEPER_LOST",
    "KEEPER_SHARED", "CLOCK_SKEWED", "INVARIANT_VIOLATED", "NODE_WARNING"};

/// Returns the health code of a condition that an agent reports: one of kNodeWarningCodes.
std::string_view NodeWarningCode(const std::string& warning);

}  // namespace holdfast::coord
