#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "base/ids.h"

// The forms of versions, tiers, times and counts, the same in every command and on the page.

namespace holdfast {

/// Keys stay in the order in which they are written.
using Json = nlohmann::ordered_json;

/// The number of the form of all JSON documents of commands and of the page. Raise it when a field
/// is renamed or removed.
inline constexpr int kJsonSchema = 2;

/// "3-120", or null.
Json VersionJson(const std::optional<VersionId>& version);
/// RFC 3339 in UTC, or null for 0.
Json TimeJson(int64_t wall_nanos);
/// The tier names of a mask of TierBit, cheapest first.
Json TiersJson(uint32_t mask);
/// A tier's name, or null for 0.
Json TierJson(uint32_t tier);
Json NumberOrNull(std::optional<int64_t> value);

/// "now", "12s", "3m05s", "2h10m", "4d03h". Negative ages (another machine's clock) are "now".
std::string FormatAge(int64_t nanos);
/// "1 shard", "2 shards"
std::string Count(uint64_t count, std::string_view noun);

}  // namespace holdfast
