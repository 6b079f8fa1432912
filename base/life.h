#pragma once

#include <string>
#include <string_view>

#include "base/ids.h"

namespace holdfast {

/// Identifies one life of a coordinator's store. The number is random; a new one is chosen when the
/// store is made and for each backup of it. Versions and epochs compare only within one life. 0:
/// not known.
using LifeId = StrongNumber<struct LifeTag, uint64_t>;
/// Returns a random ID that is not 0.
LifeId NewLife();
/// Returns 16 lower-case hex digits, or "unknown" for 0.
std::string ToString(LifeId life);
/// Parses the text that ToString returns for a known life.
Result<LifeId> ParseLifeId(std::string_view text);

}  // namespace holdfast
