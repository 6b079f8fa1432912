#pragma once

#include <optional>
#include <string>

#include "base/ids.h"
#include "cli/core/output.h"

// The texts of versions, tiers and times, the same in every command. base/json has their JSON
// forms.

namespace holdfast::cli {

/// "3-120" or "-".
std::string VersionText(const std::optional<VersionId>& version);
/// "memory,disk" or "-".
std::string TiersText(uint32_t mask);
/// The age of `wall_nanos` at `now`, or "-" for 0.
std::string AgeText(int64_t wall_nanos, int64_t now_wall_nanos);

}  // namespace holdfast::cli
