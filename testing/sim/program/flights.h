#pragma once

#include <cstdint>
#include <vector>

#include "coordinator/detect/records.h"

// Which operations in flight an agent reports.

namespace holdfast::sim::program {

/// An operation in flight, as a rank's table in shared memory holds it.
struct TableFlight {
  detect::RankFlight flight;
  uint32_t slot = 0;  // of the table
};

enum class FlightRule : uint8_t {
  /// All started operations in the order of the table, then the oldest enqueued operation of each
  /// communicator. Reports the peer of a send or receive. As agent/server/telemetry_sender.cc.
  kStartedFirst,
  /// All operations in the order of the table. Reports the peer of a send or receive only if its
  /// connection is known. As agents of earlier releases.
  kTableOrder,
};
/// Both rules report only operations older than 0.7 s.
inline constexpr FlightRule kAgentsRule = FlightRule::kStartedFirst;

/// Returns the flights of one rank that its agent reports, in the order of the report.
std::vector<detect::RankFlight> ReportedFlights(std::vector<TableFlight> flights, FlightRule rule);

}  // namespace holdfast::sim::program
