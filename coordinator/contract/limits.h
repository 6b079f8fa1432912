#pragma once

#include <cstddef>
#include <cstdint>

#include "storage/base/ids.h"

// Limits of the values that agents and the coordinator exchange. The conversion from the wire
// enforces them. Those of parity groups are in storage/parity/group_plan.h.

namespace holdfast {

/// Largest incarnation and largest step. Each has a successor, and both fit into a signed number.
inline constexpr uint64_t kVersionNumberMax = (uint64_t{1} << 63) - 2;
/// Longest text in a replica report: why a replica failed, or which chunk is damaged.
inline constexpr size_t kReportTextBytesMax = 4096;

/// Workers on one node, arguments of a command, and bytes of command and environment.
inline constexpr uint32_t kWorkersMax = 1024;
inline constexpr size_t kCommandArgumentsMax = 4096;
inline constexpr size_t kCommandBytesMax = 256 << 10;
/// Largest number of bytes kept of a worker's last output.
inline constexpr size_t kLastLinesBytesMax = 4096;

}  // namespace holdfast
