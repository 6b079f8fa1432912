#pragma once

#include <cstdint>
#include <vector>

#include "coordinator/detect/records.h"

// Which operations in flight an agent tells.

namespace holdfast::sim::program {

/// As a rank's table in shared memory holds it.
struct SeenFlight {
  detect::InFlight flight;
  uint32_t slot = 0;  // of the table
};

enum class FlightRule : uint8_t {
  /// All that are older than 0.7 s, in the order of the table, without the peer of a send or
  /// receive.
  kTableOrder,
  /// Started ones first, the oldest first, then the oldest enqueued one of each communicator. The
  /// peer of a send or receive is told.
  kStartedFirst,
};

/// The rule of agent/server/telemetry_sender.cc.
inline constexpr FlightRule kAgentsRule = FlightRule::kTableOrder;

/// Of one rank's flights, those that are told, in that order.
std::vector<detect::InFlight> ToldFlights(std::vector<SeenFlight> flights, FlightRule rule);

}  // namespace holdfast::sim::program
