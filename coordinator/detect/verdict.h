#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "coordinator/detect/records.h"

namespace holdfast::detect {

/// What is wrong. The numbers are stable (wire and records).
enum class FaultClass : uint8_t {
  kDead = 1,              // the process is gone
  kComputeHang = 2,       // a rank does not come to its operation ("non-communication hang")
  kCommHang = 3,          // all came, none finishes
  kCommSlow = 4,          // transfers are slow
  kComputeSlow = 5,       // a rank comes late ("non-communication slow")
  kSoftwareMismatch = 6,  // ranks call different operations
  kProgramDeadlock = 7,   // ranks wait for each other in a circle
  kFabric = 8,            // too many at once to be their own fault
};
/// "dead", "non-communication hang", …
std::string_view ToString(FaultClass fault);

enum class Action : uint8_t {
  kNone = 0,                // a suspicion
  kAlert = 1,               // a person or a node test decides
  kRestartWithoutRoot = 2,  // the blamed ranks' nodes stay out
  kRestartInPlace = 3,      // the same nodes again
};
std::string_view ToString(Action action);

struct Edge {
  Rank from;
  Rank to;
  bool operator==(const Edge&) const = default;
};

/// What was found, with its evidence, so that an operator can disagree.
struct Verdict {
  FaultClass fault = FaultClass::kDead;
  std::vector<Rank> ranks;         // blamed, ascending; empty when an edge or nobody is
  std::optional<Edge> edge;        // blamed connection
  std::vector<std::string> nodes;  // of the blamed, without repeats
  double confidence = 0;           // 0 … 1
  Action action = Action::kNone;
  std::vector<std::string> evidence;  // sentences with numbers
  uint64_t lasting_ns = 0;            // of a hang: how long nothing has moved
};

}  // namespace holdfast::detect
