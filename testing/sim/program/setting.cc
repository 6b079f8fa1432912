#include "testing/sim/program/setting.h"

#include <algorithm>
#include <cmath>

namespace holdfast::sim::program {
namespace {

using detect::Phase;

uint32_t StepsIn(const Setting& setting, double seconds) {
  return std::max(2U, static_cast<uint32_t>(seconds / setting.step_s));
}

/// A compiler runs. An evaluation also waits for its data. A checkpoint writes and sleeps.
std::string_view StatesIn(Phase phase) {
  return phase == Phase::kCheckpoint ? "DS" : phase == Phase::kEvaluation ? "RS" : "R";
}

void AddPause(Setting& setting, Noise& noise, Phase phase, bool marked, uint32_t rank,
              double seconds, double every_s) {
  Pause pause{.phase = phase, .marked = marked, .rank = rank, .states = StatesIn(phase)};
  pause.seconds = seconds;
  pause.first_step = StepsIn(setting, noise.Uniform(30, std::min(every_s, 200.0)));
  pause.every_steps = StepsIn(setting, every_s);
  setting.pauses.push_back(pause);
}

void FirstStep(Setting& setting, Noise& noise, uint32_t world, bool marked) {
  setting.pauses.push_back(
      {.phase = Phase::kCompile, .marked = marked, .first_step = 0, .seconds = 120, .spread = 0.1});
  setting.pauses.push_back({.phase = Phase::kInit,
                            .marked = marked,
                            .rank = static_cast<uint32_t>(noise.random().Below(world)),
                            .first_step = 0,
                            .seconds = noise.Uniform(20, 60)});
}

void SomeWaves(Setting& setting, Noise& noise) { setting.wave_share = noise.Uniform(0.1, 0.3); }

struct Behaviour {
  std::string_view name;
  void (*add)(Setting&, Noise&, uint32_t world);
};

constexpr Behaviour kBehaviours[] = {
    {"20 ms iterations", [](Setting& s, Noise&, uint32_t) { s.step_s = 0.02; }},
    {"90 s iterations", [](Setting& s, Noise&, uint32_t) { s.step_s = 90; }},
    {"evaluation marked",
     [](Setting& s, Noise& n, uint32_t) {
       AddPause(s, n, Phase::kEvaluation, true, Pause::kAll, 40, 400);
     }},
    {"evaluation unmarked",
     [](Setting& s, Noise& n, uint32_t) {
       AddPause(s, n, Phase::kEvaluation, false, Pause::kAll, 40, 400);
     }},
    {"rank-0 checkpoint marked",
     [](Setting& s, Noise& n, uint32_t) { AddPause(s, n, Phase::kCheckpoint, true, 0, 40, 400); }},
    {"rank-0 checkpoint unmarked",
     [](Setting& s, Noise& n, uint32_t) { AddPause(s, n, Phase::kCheckpoint, false, 0, 40, 400); }},
    {"jit marked",
     [](Setting& s, Noise& n, uint32_t world) {
       for (int i = 0; i < 3; ++i) {
         AddPause(s, n, Phase::kCompile, true, static_cast<uint32_t>(n.random().Below(world)),
                  n.Uniform(10, 60), 500);
       }
     }},
    {"jit unmarked",
     [](Setting& s, Noise& n, uint32_t world) {
       for (int i = 0; i < 3; ++i) {
         AddPause(s, n, Phase::kCompile, false, static_cast<uint32_t>(n.random().Below(world)),
                  n.Uniform(10, 60), 500);
       }
     }},
    {"first step 2 min marked",
     [](Setting& s, Noise& n, uint32_t world) { FirstStep(s, n, world, true); }},
    {"first step 2 min unmarked",
     [](Setting& s, Noise& n, uint32_t world) { FirstStep(s, n, world, false); }},
    {"mixed gpus quarter", [](Setting& s, Noise&, uint32_t) { s.slow_share = 0.25; }},
    {"mixed gpus half", [](Setting& s, Noise&, uint32_t) { s.slow_share = 0.5; }},
    {"silicon 4%", [](Setting& s, Noise&, uint32_t) { s.silicon_sigma = 0.04; }},
    {"uneven groups", [](Setting& s, Noise&, uint32_t) { s.replica_sigma = 0.08; }},
    {"thermal waves", [](Setting& s, Noise&, uint32_t) { s.thermal = 0.04; }},
    {"cron", [](Setting& s, Noise& n, uint32_t) { s.cron_s = n.Uniform(0.3, 1.5); }},
    {"sequence lengths", [](Setting& s, Noise&, uint32_t) { s.sequence_sigma = 0.15; }},
    {"hot experts", [](Setting& s, Noise&, uint32_t) { s.expert_sigma = 0.5; }},
    {"stalls",
     [](Setting& s, Noise&, uint32_t) {
       s.stall_chance = 0.01;
       s.stall_s = 0.005;
     }},
    {"garbage collection",
     [](Setting& s, Noise&, uint32_t) {
       s.collect_every_s = 8;
       s.collect_s = 0.25;
     }},
    {"host jitter", [](Setting& s, Noise&, uint32_t) { s.host_sigma = 1.2; }},
    {"congestion waves", [](Setting& s, Noise& n, uint32_t) { SomeWaves(s, n); }},
    {"nic flaps", [](Setting& s, Noise&, uint32_t) { s.flap_every_s = 120; }},
    {"stamp jitter", [](Setting& s, Noise&, uint32_t) { s.stamp_jitter_s = 1e-3; }},
    {"agent restarts", [](Setting& s, Noise&, uint32_t) { s.restart_every_s = 90; }},
    {"late digests", [](Setting& s, Noise&, uint32_t) { s.outage_every_s = 120; }},
    {"records lost",
     [](Setting& s, Noise&, uint32_t) {
       s.record_loss = 0.03;
       s.record_repeat = 0.01;
       s.record_swap = 0.05;
     }},
    {"elastic restart", [](Setting& s, Noise&, uint32_t) { s.restarted = true; }},
    {"data stalls",
     [](Setting& s, Noise& n, uint32_t world) {
       for (int i = 0; i < 3; ++i) {
         AddPause(s, n, Phase::kEvaluation, false, static_cast<uint32_t>(n.random().Below(world)),
                  n.Uniform(5, 45), 500);
         s.pauses.back().states = "S";
       }
     }},
};

}  // namespace

std::vector<std::string_view> Behaviours() {
  std::vector<std::string_view> names;
  for (const Behaviour& behaviour : kBehaviours) names.push_back(behaviour.name);
  return names;
}

bool IsBehaviour(std::string_view name) {
  return std::any_of(std::begin(kBehaviours), std::end(kBehaviours),
                     [&](const Behaviour& behaviour) { return behaviour.name == name; });
}

Setting DrawSetting(Family family, uint32_t world, const std::vector<std::string>& behaviours,
                    Noise& noise) {
  Setting s;
  s.step_s = noise.Uniform(0.4, 1.5);
  if (family == Family::kAccumulation) s.step_s *= noise.Uniform(4, 12);
  s.ahead = noise.Chance(0.5) ? 3 : 0;
  s.job.ranks_per_node = world <= 4 ? 1 : world <= 8 ? 1U << noise.random().Below(3) : 8;
  s.job.first_stage = noise.Uniform(0.95, 1.2);
  s.job.last_stage = noise.Uniform(1.05, 1.5);
  s.job.sends_wait = noise.Chance(0.5);
  s.job.over_stages = noise.Chance(0.7);
  s.job.sync_each_step = noise.Chance(0.7);
  s.job.hidden_barrier = noise.Chance(0.7);
  s.compute_sigma = noise.Uniform(0.01, 0.06);
  s.silicon_sigma = noise.Uniform(0.004, 0.015);
  s.stamp_jitter_s = std::exp(noise.Uniform(std::log(5e-6), std::log(100e-6)));
  s.sequence_sigma = family == Family::kExperts ? 0 : 0.01;
  s.reports_edges = noise.Chance(0.5);
  s.reports_roles = noise.Chance(0.5);
  s.reports_steps = family == Family::kStepsOnly || noise.Chance(0.85);
  s.sample_period_s = world > 8 || noise.Chance(0.3) ? 1 : noise.Chance(0.4) ? 0.1 : 0.25;
  s.congestion_chance = noise.Chance(0.3) ? 0.01 : 0.001;
  // Set the length of an iteration first, since pauses are counted in steps.
  std::vector<std::string> ordered = behaviours;
  std::stable_partition(ordered.begin(), ordered.end(), [](const std::string& name) {
    return name.find("iterations") != std::string::npos;
  });
  for (const std::string& name : ordered) {
    for (const Behaviour& behaviour : kBehaviours) {
      if (behaviour.name == name) behaviour.add(s, noise, world);
    }
  }
  // In the first step, libraries are loaded and kernels are selected.
  s.pauses.push_back({.phase = Phase::kCompile,
                      .marked = noise.Chance(0.5),
                      .first_step = 0,
                      .seconds = noise.Uniform(2, 12),
                      .spread = 0.1});
  if (noise.Chance(0.6)) {
    AddPause(s, noise, Phase::kCheckpoint, true, Pause::kAll, noise.Uniform(0.3, 3), 300);
  }
  return s;
}

}  // namespace holdfast::sim::program
