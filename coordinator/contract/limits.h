#pragma once

#include <cstddef>
#include <cstdint>

#include "base/ids.h"

// Limits of the values that agents and the coordinator exchange. The conversion from the wire form
// enforces them. The limits of parity groups are in storage/parity/group_plan.h.

namespace holdfast {

/// Largest incarnation and largest step. Each has a successor, and both fit in an int64_t.
inline constexpr uint64_t kVersionNumberMax = (uint64_t{1} << 63) - 2;
/// Most bytes of a run ID.
inline constexpr size_t kRunIdBytesMax = 128;
/// Most bytes of a text in a report: why a replica failed, which chunk is damaged, or an outcome.
inline constexpr size_t kReportTextBytesMax = 4096;

/// Most commits in a job state, besides the newest one at each tier, and most commits that an agent
/// lists when it attaches.
inline constexpr size_t kCommitsSentMax = 8;
inline constexpr size_t kCommitsListedMax = 4096;

/// Most bytes of the plan of a parity group in a report. The largest plan is smaller.
inline constexpr size_t kReportedPlanBytesMax = 1 << 20;

/// Largest size of an arena in a report, 1 PiB. The sum over 16,383 nodes fits in a uint64_t.
inline constexpr uint64_t kArenaBytesMax = uint64_t{1} << 50;

/// Most workers on one node, most arguments and most environment variables of a command, and most
/// bytes of both together.
inline constexpr uint32_t kWorkersMax = 1024;
inline constexpr size_t kCommandArgumentsMax = 4096;
inline constexpr size_t kCommandBytesMax = 256 << 10;
/// Most bytes of the end of a worker's output that are kept.
inline constexpr size_t kLastLinesBytesMax = 4096;

}  // namespace holdfast
