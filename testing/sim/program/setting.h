#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "testing/sim/noise.h"
#include "testing/sim/program/job.h"

// The usual environment of a job: its noise, its pauses, and the telemetry of its agents.

namespace holdfast::sim::program {

/// A legitimate pause of ranks between two steps.
struct Pause {
  detect::Phase phase = detect::Phase::kEvaluation;
  bool marked = true;  // the rank marks the phase
  static constexpr uint32_t kAll = ~0U;
  uint32_t rank = kAll;
  uint32_t first_step = 0;
  uint32_t every_steps = 0;  // 0: once
  double seconds = 40;
  double spread = 0.05;           // of the logarithm of `seconds`, between ranks
  std::string_view states = "R";  // of the process, one per second, repeated
};

struct Setting {
  JobOptions job;
  double step_s = 0.7;
  uint32_t ahead = 0;  // kernels that the CPU enqueues ahead; 0: the rest of the step
  double start_s = 2;  // all ranks start within this time

  // Computing.
  double compute_sigma = 0.03;
  double silicon_sigma = 0.01;  // lasting differences between GPUs
  double slow_share = 0;        // of the nodes, which have older GPUs
  double slow_factor = 1.15;    // on the time of a computation on older GPUs
  double replica_sigma = 0;     // lasting differences between replicas of several ranks
  double thermal = 0;           // amplitude of thermal waves, by node
  double sequence_sigma = 0.01;
  double expert_sigma = 0.15;   // lasting differences between experts' tokens
  double stall_chance = 0.001;  // per computation, of a stall with a heavy tail
  double stall_s = 0.002;
  // The CPU.
  double host_sigma = 0.2;
  double collect_every_s = 60;  // garbage collection of a rank
  double collect_s = 0.08;
  double cron_s = 0;  // each minute, one node computes at half speed for this time
  // The network.
  double transfer_sigma = 0.03;
  double congestion_chance = 0.002;  // per transfer, of a delay with a heavy tail
  double wave_share = 0;             // of the links, which a congestion wave slows down
  double flap_every_s = 0;           // a node's links are down for up to a few seconds
  // Telemetry.
  bool reports_steps = true;
  bool reports_roles = true;
  bool reports_edges = true;  // connections of operations in flight
  double sample_period_s = 0.1;
  double stamp_jitter_s = 20e-6;
  double loss = 0.003;
  double late_chance = 0.005;
  double late_s = 2;
  double record_loss =
      0.0005;  // of a record that finds no room, or is overwritten before it is read
  double record_repeat = 0.0002;
  double record_swap = 0.005;  // of two records that threads write in the opposite order
  double outage_every_s = 0;   // a node's digests are lost or late for 5–30 s
  double restart_every_s = 0;  // of an agent
  bool restarted = false;      // digests of an earlier incarnation still arrive
  double clock_offset_s = 1;
  double clock_drift_ppm = 100;

  std::vector<Pause> pauses;
};

/// Returns the names of the behaviours that can be added to the usual environment.
std::vector<std::string_view> Behaviours();
bool IsBehaviour(std::string_view name);
/// Draws the noise of a run and adds the named behaviours.
Setting DrawSetting(Family family, uint32_t world, const std::vector<std::string>& behaviours,
                    Noise& noise);

}  // namespace holdfast::sim::program
