#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "coordinator/detect/records.h"

namespace holdfast::detect {

/// The kind of fault. The numbers are stable (wire and records).
enum class FaultClass : uint8_t {
  kDead = 1,              // the process has ended, or its node is lost
  kComputeHang = 2,       // a rank does not join its operation ("non-communication hang")
  kCommHang = 3,          // all ranks joined, and none completes
  kCommSlow = 4,          // transfers are slow
  kComputeSlow = 5,       // a straggler: a rank joins late ("non-communication slow")
  kSoftwareMismatch = 6,  // ranks call different operations
  kProgramDeadlock = 7,   // ranks wait for each other in a cycle
  kFabric = 8,            // the fabric is suspected: too many nodes look faulty at once
};
/// "dead", "non-communication hang", …
std::string_view ToString(FaultClass fault);

enum class Action : uint8_t {
  kNone = 0,                // a suspicion: nothing is done
  kAlert = 1,               // a person or a node test decides what to do
  kRestartWithoutRoot = 2,  // restart without the nodes of the blamed ranks
  kRestartInPlace = 3,      // restart on the same nodes
};
std::string_view ToString(Action action);

struct Edge {
  Rank from;
  Rank to;
  bool operator==(const Edge&) const = default;
};

/// One fault, with the evidence that lets an operator check it.
struct Verdict {
  FaultClass fault = FaultClass::kDead;
  std::vector<Rank> ranks;         // blamed, ascending; empty if an edge or nothing is blamed
  std::optional<Edge> edge;        // blamed connection
  std::vector<std::string> nodes;  // of the blamed ranks or edge, without duplicates
  double confidence = 0;           // 0 … 1
  Action action = Action::kNone;
  std::vector<std::string> evidence;  // sentences with numbers
  uint64_t lasting_ns = 0;            // of a hang: how long there has been no progress
};

}  // namespace holdfast::detect
