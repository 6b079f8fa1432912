#pragma once

#include <cstdint>
#include <span>
#include <string>

// Formats numbers for operators.

namespace holdfast::detect {

/// Returns "rank 7", "ranks 0, 3, 4", "ranks 0–4095" for consecutive ranks, or "ranks 3, 9, 12 and
/// 40 more" after eight names.
std::string RanksInWords(std::span<const uint32_t> ranks);
/// Returns a duration in nanoseconds as "5.3 s", or "210 ms" below one second.
std::string InSeconds(uint64_t ns);

}  // namespace holdfast::detect
