#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tests/sim/noise.h"
#include "tests/sim/program/job.h"

// What is usual for a job beside its program: its noise, its pauses, and how its agents tell of it.

namespace holdfast::sim::program {

/// Between two steps, ranks do something else. All of it is legitimate.
struct Pause {
  detect::Phase phase = detect::Phase::kEvaluation;
  bool marked = true;  // the rank says that it is in this phase
  static constexpr uint32_t kAll = ~0U;
  uint32_t rank = kAll;
  uint32_t first_step = 0;
  uint32_t every_steps = 0;  // 0: once
  double seconds = 40;
  double spread = 0.05;  // of its logarithm, between ranks
};

struct Setting {
  JobOptions job;
  double step_s = 0.7;
  uint32_t ahead = 0;  // kernels that the CPU enqueues ahead; 0: the rest of the step
  double start_s = 2;  // within which ranks start

  // Computing.
  double compute_sigma = 0.03;
  double silicon_sigma = 0.01;  // lasting differences between GPUs
  double slow_share = 0;        // of the nodes, that have older GPUs,
  double slow_factor = 1.15;    // which take so many times as long
  double replica_sigma = 0;     // lasting differences between replicas of several ranks
  double thermal = 0;           // amplitude by node
  double sequence_sigma = 0.01;
  double expert_sigma = 0.15;   // lasting differences between experts' tokens
  double stall_chance = 0.001;  // of a stall with a heavy tail, a computation
  double stall_s = 0.002;
  // The CPU.
  double host_sigma = 0.2;
  double collect_every_s = 60;  // garbage collection of a rank
  double collect_s = 0.08;
  double cron_s = 0;  // each minute, a node computes so long at half its speed
  // The network.
  double transfer_sigma = 0.03;
  double congestion_chance = 0.002;  // of a transfer with a heavy tail
  double wave_share = 0;             // of the links, slow in a congestion wave
  double flap_every_s = 0;           // a node's links rest for a second or a few
  // Telling.
  bool tells_steps = true;
  bool tells_roles = true;
  bool tells_edges = true;  // connections of operations in flight
  double look_s = 0.1;
  double stamp_jitter_s = 20e-6;
  double loss = 0.003;
  double late_chance = 0.005;
  double late_s = 2;
  double outage_every_s = 0;   // digests of a node are lost or late for 5–30 s
  double restart_every_s = 0;  // of an agent
  bool restarted = false;      // digests of an earlier incarnation still arrive
  double clock_offset_s = 1;
  double clock_drift_ppm = 100;

  std::vector<Pause> pauses;
};

/// The behaviours that can be added to what is usual, by name.
std::vector<std::string_view> Behaviours();
bool IsBehaviour(std::string_view name);
/// Noise of every run, and the named behaviours.
Setting DrawSetting(Family family, uint32_t world, const std::vector<std::string>& behaviours,
                    Noise& noise);

}  // namespace holdfast::sim::program
