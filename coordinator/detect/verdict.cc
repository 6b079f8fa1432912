#include "coordinator/detect/verdict.h"

#include <fmt/format.h>

#include <algorithm>

#include "coordinator/detect/evidence.h"

namespace holdfast::detect {
namespace {

constexpr size_t kRanksNamedMax = 8;

}  // namespace

std::string_view ToString(FaultClass fault) {
  switch (fault) {
    case FaultClass::kDead:
      return "dead";
    case FaultClass::kComputeHang:
      return "non-communication hang";
    case FaultClass::kCommHang:
      return "communication hang";
    case FaultClass::kCommSlow:
      return "communication slow";
    case FaultClass::kComputeSlow:
      return "non-communication slow";
    case FaultClass::kSoftwareMismatch:
      return "software mismatch";
    case FaultClass::kProgramDeadlock:
      return "program deadlock";
    case FaultClass::kFabric:
      return "fabric suspected";
  }
  return "unknown";
}

std::string_view ToString(Action action) {
  switch (action) {
    case Action::kNone:
      return "none";
    case Action::kAlert:
      return "alert";
    case Action::kRestartWithoutRoot:
      return "restart without the root";
    case Action::kRestartInPlace:
      return "restart in place";
  }
  return "unknown";
}

std::string RanksInWords(std::span<const uint32_t> ranks) {
  if (ranks.empty()) return "no rank";
  if (ranks.size() == 1) return fmt::format("rank {}", ranks.front());
  const bool run = std::is_sorted(ranks.begin(), ranks.end()) &&
                   ranks.back() - ranks.front() + 1 == ranks.size();
  if (run) return fmt::format("ranks {}–{}", ranks.front(), ranks.back());
  if (ranks.size() <= kRanksNamedMax) return fmt::format("ranks {}", fmt::join(ranks, ", "));
  return fmt::format("ranks {} and {} more", fmt::join(ranks.first(kRanksNamedMax), ", "),
                     ranks.size() - kRanksNamedMax);
}

std::string InSeconds(uint64_t ns) {
  const auto seconds = static_cast<double>(ns) * 1e-9;
  return seconds < 1 ? fmt::format("{:.3g} ms", seconds * 1e3) : fmt::format("{:.1f} s", seconds);
}

}  // namespace holdfast::detect
