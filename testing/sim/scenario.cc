#include "testing/sim/scenario.h"

namespace holdfast::sim {

std::string_view ToString(FaultKind kind) {
  switch (kind) {
    case FaultKind::kNone:
      return "none";
    case FaultKind::kStopped:
      return "SIGSTOP";
    case FaultKind::kKilled:
      return "SIGKILL";
    case FaultKind::kNodeLost:
      return "node lost";
    case FaultKind::kInfiniteKernel:
      return "infinite kernel";
    case FaultKind::kCpuSpin:
      return "CPU spin";
    case FaultKind::kLoaderSleep:
      return "data loader sleeps";
    case FaultKind::kMismatched:
      return "mismatched operation";
    case FaultKind::kSkipped:
      return "skipped operation";
    case FaultKind::kDroppedEdge:
      return "dropped edge";
    case FaultKind::kTwoStopped:
      return "two SIGSTOP";
    case FaultKind::kSlowEdge:
      return "rate-limited edge";
    case FaultKind::kSlowSend:
      return "rate-limited Tx";
    case FaultKind::kSlowReceive:
      return "rate-limited Rx";
    case FaultKind::kLatency:
      return "added latency";
    case FaultKind::kSlowGpu:
      return "slow GPU";
    case FaultKind::kIntermittent:
      return "slow GPU, intermittent";
    case FaultKind::kTwoSlow:
      return "two slow GPUs";
  }
  return "?";
}

bool IsHang(FaultKind kind) {
  return kind >= FaultKind::kStopped && kind <= FaultKind::kTwoStopped;
}

std::vector<Negative> Negatives() {
  std::vector<Negative> all;
  all.push_back({"as usual", {}});
  Conditions c;
  c.expert_sigma = 0.4;
  c.expert_walk = 0.05;
  all.push_back({"MoE skew", c});
  c = {};
  c.first_stage = 1.3;
  c.last_stage = 1.5;
  all.push_back({"PP imbalance", c});
  c = {};
  c.sequence_sigma = 0.15;
  all.push_back({"variable sequence length", c});
  c = {};
  c.checkpoint_every_iterations = 15;
  c.checkpoint_s = 8;
  c.checkpoint_by_some = true;
  all.push_back({"checkpoint stalls", c});
  c = {};
  c.clock_offset_s = 5;
  c.clock_drift_ppm = 200;
  all.push_back({"clock offset and drift", c});
  c = {};
  c.loss = 0.2;
  c.late_chance = 0.2;
  c.late_s_max = 8;
  c.repeat_chance = 0.1;
  all.push_back({"lost and late telemetry", c});
  c = {};
  c.tail_chance = 0.02;
  c.compute_sigma = 0.02;
  c.pause_every_iterations = 20;
  c.congestion_chance = 0.05;
  all.push_back({"noisy machines", c});
  return all;
}

}  // namespace holdfast::sim
