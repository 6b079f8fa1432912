#include "tests/sim/program/flights.h"

#include <algorithm>

namespace holdfast::sim::program {
namespace {

using detect::FlightState;

constexpr uint64_t kAgeLeastNs = 700'000'000;

bool IsPairwise(detect::Func func) {
  return func == detect::Func::kSend || func == detect::Func::kRecv;
}

}  // namespace

std::vector<detect::InFlight> ToldFlights(std::vector<SeenFlight> flights, FlightRule rule) {
  std::erase_if(flights, [](const SeenFlight& seen) { return seen.flight.age_ns < kAgeLeastNs; });
  std::vector<detect::InFlight> told;
  if (rule == FlightRule::kTableOrder) {
    std::sort(flights.begin(), flights.end(),
              [](const SeenFlight& a, const SeenFlight& b) { return a.slot < b.slot; });
    for (SeenFlight& seen : flights) {
      const bool unknown =
          !seen.flight.edge || seen.flight.edge->state == detect::EdgeState::kUnknown;
      if (IsPairwise(seen.flight.func) && unknown) seen.flight.edge.reset();
      told.push_back(seen.flight);
    }
    return told;
  }
  std::stable_sort(flights.begin(), flights.end(), [](const SeenFlight& a, const SeenFlight& b) {
    if (a.flight.state != b.flight.state) return a.flight.state == FlightState::kStarted;
    return a.flight.age_ns > b.flight.age_ns;
  });
  for (const SeenFlight& seen : flights) {
    const bool newer =
        seen.flight.state == FlightState::kEnqueued &&
        std::any_of(told.begin(), told.end(), [&](const detect::InFlight& other) {
          return other.state == FlightState::kEnqueued && other.comm == seen.flight.comm;
        });
    if (!newer) told.push_back(seen.flight);
  }
  return told;
}

}  // namespace holdfast::sim::program
