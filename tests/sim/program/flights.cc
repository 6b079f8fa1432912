#include "tests/sim/program/flights.h"

#include <algorithm>
#include <map>

namespace holdfast::sim::program {
namespace {

using detect::FlightState;

constexpr uint64_t kAgeLeastNs = 700'000'000;

bool IsPairwise(detect::Func func) {
  return func == detect::Func::kSend || func == detect::Func::kRecv;
}

}  // namespace

std::vector<detect::InFlight> ReportedFlights(std::vector<TableFlight> flights, FlightRule rule) {
  std::erase_if(flights, [](const TableFlight& seen) { return seen.flight.age_ns < kAgeLeastNs; });
  std::sort(flights.begin(), flights.end(),
            [](const TableFlight& a, const TableFlight& b) { return a.slot < b.slot; });
  std::vector<detect::InFlight> reported;
  if (rule == FlightRule::kTableOrder) {
    for (TableFlight& seen : flights) {
      const bool unknown =
          !seen.flight.edge || seen.flight.edge->state == detect::EdgeState::kUnknown;
      if (IsPairwise(seen.flight.func) && unknown) seen.flight.edge.reset();
      reported.push_back(seen.flight);
    }
    return reported;
  }
  std::map<uint64_t, detect::InFlight> next;  // by communicator
  for (const TableFlight& seen : flights) {
    if (seen.flight.state == FlightState::kStarted) {
      reported.push_back(seen.flight);
      continue;
    }
    const auto [known, added] = next.emplace(seen.flight.comm.value, seen.flight);
    if (!added && seen.flight.age_ns > known->second.age_ns) known->second = seen.flight;
  }
  for (const auto& [comm, flight] : next) reported.push_back(flight);
  return reported;
}

}  // namespace holdfast::sim::program
