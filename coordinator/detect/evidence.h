#pragma once

#include <cstdint>
#include <span>
#include <string>

// Numbers in the words of an operator.

namespace holdfast::detect {

/// "rank 7", "ranks 0, 3, 4", "ranks 0–4095" when they are a run, "ranks 3, 9, 12 and 40 more".
std::string RanksInWords(std::span<const uint32_t> ranks);
/// "5.3 s", "210 ms"
std::string InSeconds(uint64_t ns);

}  // namespace holdfast::detect
