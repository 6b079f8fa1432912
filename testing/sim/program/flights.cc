#include "testing/sim/program/flights.h"

#include <algorithm>
#include <map>

namespace holdfast::sim::program {
namespace {

constexpr uint64_t kAgeLeastNs = 700'000'000;

}  // namespace

std::vector<detect::RankFlight> ReportedFlights(std::vector<TableFlight> flights, FlightRule rule) {
  std::erase_if(flights, [](const TableFlight& seen) { return seen.flight.age_ns < kAgeLeastNs; });
  std::sort(flights.begin(), flights.end(),
            [](const TableFlight& a, const TableFlight& b) { return a.slot < b.slot; });
  std::vector<detect::RankFlight> reported;
  if (rule == FlightRule::kTableOrder) {
    for (TableFlight& seen : flights) {
      const bool unknown = !seen.flight.edge || seen.flight.edge->state == EdgeState::kIdle;
      if (IsPairwise(seen.flight.record.kind) && unknown) seen.flight.edge.reset();
      reported.push_back(seen.flight);
    }
    return reported;
  }
  std::map<CommunicatorId, detect::RankFlight> next;  // by communicator
  for (const TableFlight& seen : flights) {
    if (seen.flight.started) {
      reported.push_back(seen.flight);
      continue;
    }
    const auto [known, added] = next.emplace(seen.flight.record.communicator, seen.flight);
    if (!added && seen.flight.age_ns > known->second.age_ns) known->second = seen.flight;
  }
  for (const auto& [comm, flight] : next) reported.push_back(flight);
  return reported;
}

}  // namespace holdfast::sim::program
