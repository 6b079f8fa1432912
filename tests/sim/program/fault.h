#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "coordinator/detect/verdict.h"
#include "tests/sim/noise.h"
#include "tests/sim/program/setting.h"

// What breaks in a simulated job, and what is true of it.

namespace holdfast::sim::program {

enum class FaultKind : uint8_t {
  kNone,
  kKilled,
  kNodeGone,
  kStopped,
  kLoader,          // the next batch never comes
  kNeverJoins,      // a rank stays in its initialization, which is marked
  kInfiniteKernel,  // the GPU works for ever; the CPU runs ahead
  kStorageMarked,   // the write of a checkpoint hangs, inside the phase
  kStorageUnmarked,
  kMismatched,  // one rank calls an operation with another size
  kDroppedLink,
  kHungCollective,
  kSlowGpu,
  kRamp,          // a GPU that gets slower
  kIntermittent,  // a GPU that is slow now and then
  kSlowCpu,       // other processes take the rank's CPU
  kSlowNic,
  kLossyLink,
  kPcie,  // a rank's all-gathers are slow
};

/// When it strikes.
enum class When : uint8_t {
  kRunning,     // a minute or more after the start
  kFirst,       // from the first iteration on
  kEvaluation,  // in the middle of a marked evaluation
  kUnmarkedEvaluation,
  kRestarted,  // a few seconds after an elastic restart
};

struct FaultSpec {
  std::string_view name;  // as on a command line
  FaultKind kind = FaultKind::kNone;
  double magnitude = 0;  // 0.1: 10 % more time; of a link: times as long
  When when = When::kRunning;
  double heals_after_s = 1e18;
  // Another fault at the same time, on another rank.
  FaultKind second = FaultKind::kNone;
  double second_magnitude = 0;
  double second_after_s = 0;
};
/// All of them; the first is "none".
const std::vector<FaultSpec>& Faults();
const FaultSpec* FindFault(std::string_view name);
bool IsHang(FaultKind kind);
/// The classes that are right; the first is the usual one.
std::vector<detect::FaultClass> RightClasses(FaultKind kind);
/// Whether a job of the family can have it.
bool Fits(FaultKind kind, Family family);

/// One of a run.
struct Fault {
  FaultKind kind = FaultKind::kNone;
  double magnitude = 0;
  double onset_s = 1e18;  // it takes effect at the next opportunity
  double heals_s = 1e18;
  uint32_t rank = 0;
  uint32_t peer = 0;     // of a link: rank → peer
  uint32_t channel = 0;  // of a link
};

/// Chooses who suffers. `onset_s`: the earliest moment.
Fault PlaceFault(FaultKind kind, double magnitude, const Job& job, double onset_s, Noise& noise);

}  // namespace holdfast::sim::program
