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
  /// All that run, in the order of the table, then of those that are only enqueued the oldest of
  /// each communicator. The peer of a send or receive is told. As agent/server/telemetry_sender.cc.
  kStartedFirst,
  /// All, in the order of the table, and the peer of a send or receive only where its connection
  /// is known: what agents of earlier releases tell.
  kTableOrder,
};
/// In both, only what is older than 0.7 s.
inline constexpr FlightRule kAgentsRule = FlightRule::kStartedFirst;

/// Of one rank's flights, those that are told, in that order.
std::vector<detect::InFlight> ToldFlights(std::vector<SeenFlight> flights, FlightRule rule);

}  // namespace holdfast::sim::program
