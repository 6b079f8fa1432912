#pragma once

#include <string>
#include <string_view>

#include "storage/base/ids.h"

namespace holdfast {

/// Names one life of a coordinator's store: random, chosen when the store is made, and for
/// each backup of it. Versions and epochs compare within one life only. 0: not known.
using LifeId = StrongNumber<struct LifeTag, uint64_t>;
/// A random one.
LifeId NewLife();
/// 16 lower-case hex digits, "unknown" for 0.
std::string ToString(LifeId life);
/// Parses what ToString gives for a known life.
Result<LifeId> ParseLifeId(std::string_view text);

}  // namespace holdfast
