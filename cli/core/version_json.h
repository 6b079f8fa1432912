#pragma once

#include <string>

#include "base/ids.h"
#include "cli/core/output.h"

// The text and JSON forms of versions, tiers and times, the same in every command.

namespace holdfast::cli {

/// "3-120", or null for 0-0.
Json VersionJson(VersionId version);
/// RFC 3339 in UTC, or null for 0.
Json TimeJson(int64_t wall_nanos);
/// The tier names of a mask of TierBit, cheapest first.
Json TiersJson(uint32_t mask);
/// A tier's name, or null for 0.
Json TierJson(uint32_t tier);

/// "3-120" or "-".
std::string VersionText(VersionId version);
/// "memory,disk" or "-".
std::string TiersText(uint32_t mask);
/// The age of `wall_nanos` at `now`, or "-" for 0.
std::string AgeText(int64_t wall_nanos, int64_t now_wall_nanos);

}  // namespace holdfast::cli
