#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "testing/sim/job.h"

// The faults and conditions of a simulated job, and the ground truth.

namespace holdfast::sim {

enum class FaultKind {
  kNone,
  // Hangs.
  kStopped,         // SIGSTOP
  kKilled,          // SIGKILL
  kNodeLost,        // the node, including its agent
  kInfiniteKernel,  // a kernel never ends; the CPU runs ahead
  kCpuSpin,
  kLoaderSleep,
  kMismatched,  // one rank calls an operation with a different size
  kSkipped,     // one rank skips an operation
  kDroppedEdge,
  kTwoStopped,
  // Slowness.
  kSlowEdge,
  kSlowSend,     // a rank's transmit rate
  kSlowReceive,  // a rank's receive rate
  kLatency,      // added on an edge
  kSlowGpu,
  kIntermittent,  // a slow GPU for a part of the time
  kTwoSlow,
};
std::string_view ToString(FaultKind kind);
bool IsHang(FaultKind kind);

/// How the job and its telemetry behave apart from the fault. All of it is legitimate.
struct Conditions {
  double silicon_sigma = 0.007;        // lasting differences between GPUs
  double compute_sigma = 0.008;        // of each computation
  double tail_chance = 0.003;          // per computation, of a delay with a heavy tail
  double transfer_sigma = 0.02;        // of each transfer
  double congestion_chance = 0.01;     // per transfer, of a delay with a heavy tail
  double pause_every_iterations = 80;  // garbage collection of a rank
  double sequence_sigma = 0.01;        // of a replica's tokens, between iterations
  double expert_sigma = 0.15;          // lasting differences between experts' tokens
  double expert_walk = 0.02;           // drift of these differences per iteration
  double first_stage = 1.05;           // load of a pipeline's first and last stage
  double last_stage = 1.10;
  double checkpoint_every_iterations = 40;
  double checkpoint_s = 0.3;
  bool checkpoint_by_some = false;  // one replica writes while the others wait
  double clock_offset_s = 1;
  double clock_drift_ppm = 100;
  double loss = 0.005;  // of digests
  double late_chance = 0.005;
  double late_s_max = 2;
  double repeat_chance = 0.005;
};

struct Scenario {
  Shape shape = Shape::kData;
  uint32_t world = 8;
  FaultKind fault = FaultKind::kNone;
  double magnitude = 0;  // of a slow GPU: 0.2 means 20 % more time
  double duty = 1;       // of an intermittent fault: share of the time
  Conditions conditions;
};

/// A legitimate behaviour that a detector may mistake for a fault.
struct Negative {
  std::string_view name;
  Conditions conditions;
};
std::vector<Negative> Negatives();

/// The ground truth of a simulated job.
struct Truth {
  FaultKind kind = FaultKind::kNone;
  std::vector<uint32_t> ranks;  // faulty ranks, ascending; the first is an edge's sender
  uint32_t peer = 0;            // an edge's receiver
  double onset_s = 0;           // true time
  uint32_t onset_iteration = 0;
};

}  // namespace holdfast::sim
