#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "coordinator/detect/verdict.h"
#include "testing/sim/noise.h"
#include "testing/sim/program/setting.h"

// The faults of a simulated job, and the ground truth.

namespace holdfast::sim::program {

enum class FaultKind : uint8_t {
  kNone,
  kKilled,
  kNodeLost,
  kStopped,
  kLoader,          // the next batch never arrives
  kNeverJoins,      // a rank stays in its marked initialization
  kInfiniteKernel,  // a kernel never ends; the CPU runs ahead
  kStorageMarked,   // the write of a checkpoint hangs, inside the phase
  kStorageUnmarked,
  kMismatched,  // one rank calls an operation with a different size
  kDroppedLink,
  kHungCollective,
  kSlowGpu,
  kRamp,          // a GPU that becomes slower gradually
  kIntermittent,  // a GPU that is slow at times
  kSlowCpu,       // other processes take the rank's CPU
  kSlowNic,
  kLossyLink,
  kPcie,  // a rank's all-gathers are slow
};

/// When a fault takes effect.
enum class When : uint8_t {
  kRunning,     // a minute or more after the start
  kFirst,       // from the first iteration on
  kEvaluation,  // in the middle of a marked evaluation
  kUnmarkedEvaluation,
  kRestarted,  // a few seconds after an elastic restart
};

struct FaultSpec {
  std::string_view name;  // as on the command line
  FaultKind kind = FaultKind::kNone;
  double magnitude = 0;  // 0.1: 10 % more time; of a link or bus: a factor
  When when = When::kRunning;
  double heals_after_s = 1e18;
  // Another fault at the same time, on another rank.
  FaultKind second = FaultKind::kNone;
  double second_magnitude = 0;
  double second_after_s = 0;
};
/// Returns all faults; the first is "none".
const std::vector<FaultSpec>& Faults();
const FaultSpec* FindFault(std::string_view name);
bool IsHang(FaultKind kind);
/// Returns the classes that are right; the first is the usual one.
std::vector<detect::FaultClass> RightClasses(FaultKind kind);
/// Whether a job of the family can have the fault, or both of two. Links of jobs that report only
/// steps do not show, and neither do their operations.
bool Fits(const FaultSpec& spec, Family family);

/// One fault of a run.
struct Fault {
  FaultKind kind = FaultKind::kNone;
  double magnitude = 0;
  double onset_s = 1e18;  // takes effect at the next opportunity after this
  double heals_s = 1e18;
  uint32_t rank = 0;
  uint32_t peer = 0;     // of a link: rank → peer
  uint32_t channel = 0;  // of a link
};

/// Chooses the affected rank or link. `onset_s`: the earliest time.
Fault PlaceFault(FaultKind kind, double magnitude, const Job& job, double onset_s, Noise& noise);

}  // namespace holdfast::sim::program
