#pragma once

#include <map>
#include <span>
#include <vector>

#include "coordinator/detect/pace.h"
#include "coordinator/detect/steps.h"
#include "coordinator/detect/watch.h"

// Decides which ranks are stragglers, from the lateness of all members of all communicators.

namespace holdfast::detect {

/// What is known at one evaluation.
struct StragglerInput {
  const DetectorOptions& options;
  const Table& table;
  const Watches& watches;
  const Steps* steps;  // nullptr: none is reported
  std::span<const uint32_t> all_ranks;
  const std::map<CommClass, RoleBaseline>& baselines;
  const Pace& pace;
  /// Whether transfers are slow or were so recently, which changes how computing and operations
  /// overlap.
  bool transfers_unstable = false;
};

/// The class of the steps, as if they were a communicator of all ranks.
inline constexpr CommClass kStepsClass = {CommunicatorRole::kUnknown, true, 0, 0};

/// Returns the present stragglers.
std::vector<Verdict> FindStragglers(const StragglerInput& input);

}  // namespace holdfast::detect
