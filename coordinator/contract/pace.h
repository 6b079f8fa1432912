#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>

// How often an agent sends, and how often the coordinator applies what it has received. A
// coordinator of many agents asks each of them for fewer messages, since a message costs it more
// time than the contents.

namespace holdfast::coord {

inline constexpr std::chrono::milliseconds kHeartbeatPause(500);

/// Returns the pause between two heartbeats of an agent among this many: half a second for up to
/// 500 agents, then longer, so that all together send 1,000 per second, and at most one second or a
/// third of the lease.
inline std::chrono::milliseconds HeartbeatPause(size_t agents, std::chrono::nanoseconds lease) {
  using std::chrono::milliseconds;
  const auto longest =
      std::min(milliseconds(1'000), std::chrono::duration_cast<milliseconds>(lease / 3));
  const auto wanted = milliseconds(std::min<size_t>(agents, 1'000));
  return std::max(kHeartbeatPause, std::min(wanted, longest));
}

/// Returns the pause between two messages with telemetry: 100 ms for up to 200 agents, then longer,
/// so that all together send 2,000 per second, and at most one second.
inline std::chrono::milliseconds TelemetryPause(size_t agents) {
  return std::chrono::milliseconds(std::clamp<size_t>(agents / 2, 100, 1'000));
}

/// Returns the pause between two batches of events: none for up to 200 agents, then a millisecond
/// for each 400 agents, and at most five. A thread that is woken for each event spends more time on
/// waking than on the event.
inline std::chrono::milliseconds BatchPause(size_t agents) {
  return std::chrono::milliseconds(agents <= 200 ? 0 : std::clamp<size_t>(agents / 400, 1, 5));
}

}  // namespace holdfast::coord
