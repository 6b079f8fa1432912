// The fault matrix over rank programs: its cells and their runs.

#include "bench/program_matrix.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <ctime>
#include <numeric>
#include <optional>
#include <thread>

#include "base/random.h"

namespace holdfast::bench {
namespace {

using sim::program::Case;
using sim::program::Family;
using sim::program::FaultKind;
using sim::program::FaultSpec;

bool Contains(const std::vector<std::string>& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

Status Check(const ProgramMatrixOptions& options) {
  for (const std::string& name : options.families) {
    const bool known =
        std::any_of(std::begin(sim::program::kFamilies), std::end(sim::program::kFamilies),
                    [&](Family family) { return ToString(family) == name; });
    if (!known) return InvalidArgumentError("unknown family " + name);
  }
  for (const std::string& name : options.faults) {
    if (name != "all" && sim::program::FindFault(name) == nullptr) {
      return InvalidArgumentError("unknown fault " + name);
    }
  }
  for (const std::string& name : options.behaviours) {
    if (name != "all" && name != "base" && name != "random" && !sim::program::IsBehaviour(name)) {
      return InvalidArgumentError("unknown behaviour " + name);
    }
  }
  return Status::Ok();
}

/// Returns the names of the behaviours to add, one for each cell.
std::vector<std::string> BehavioursOf(const ProgramMatrixOptions& options, bool healthy) {
  std::vector<std::string> names;
  const bool all = options.behaviours.empty() ? healthy : Contains(options.behaviours, "all");
  if (all || options.behaviours.empty()) names.emplace_back("base");
  for (const std::string& name : options.behaviours) {
    if (name != "all" && !Contains(names, name)) names.push_back(name);
  }
  if (!all) return names;
  for (const std::string_view name : sim::program::Behaviours()) names.emplace_back(name);
  names.emplace_back("random");
  return names;
}

/// Returns the random stream of a run. Each cell draws its own jobs, independent of other cells.
uint64_t StreamOf(const ProgramCell& cell, uint64_t seed) {
  uint64_t stream = Random(seed).Next();
  const auto mix = [&](uint64_t value) { stream = Random(stream ^ value).Next(); };
  for (const std::string* text : {&cell.family, &cell.behaviour}) {
    for (const char letter : *text) mix(static_cast<unsigned char>(letter));
  }
  for (const char letter : cell.what.fault.name) mix(static_cast<unsigned char>(letter));
  mix(cell.what.world);
  return stream;
}

/// Returns two to five compatible behaviours.
std::vector<std::string> RandomBehaviours(uint64_t stream) {
  sim::Noise noise(stream);
  const auto all = sim::program::Behaviours();
  std::vector<std::string> chosen;
  const uint64_t count = 2 + noise.random().Below(4);
  while (chosen.size() < count) {
    const std::string name(all[noise.random().Below(all.size())]);
    const std::string kind = name.substr(0, name.find(' '));
    const bool taken = std::any_of(chosen.begin(), chosen.end(), [&](const std::string& other) {
      return other.substr(0, other.find(' ')) == kind ||
             (name.find("iterations") != std::string::npos &&
              other.find("iterations") != std::string::npos);
    });
    if (!taken) chosen.push_back(name);
  }
  return chosen;
}

std::vector<ProgramCell> Cells(const ProgramMatrixOptions& options) {
  std::vector<ProgramCell> cells;
  const bool all_faults = options.faults.empty() || Contains(options.faults, "all");
  for (const uint32_t world : options.worlds) {
    for (const Family family : sim::program::kFamilies) {
      const std::string name(ToString(family));
      if (!options.families.empty() && !Contains(options.families, name)) continue;
      if (!sim::program::Fits(family, world)) continue;
      for (const FaultSpec& fault : sim::program::Faults()) {
        const bool healthy = fault.kind == FaultKind::kNone;
        const bool requested = Contains(options.faults, fault.name) ||
                               (all_faults && (!healthy || options.faults.empty()));
        if (!requested || !Fits(fault, family)) continue;
        for (const std::string& behaviour : BehavioursOf(options, healthy)) {
          ProgramCell cell;
          cell.family = name;
          cell.behaviour = behaviour;
          cell.what.family = family;
          cell.what.world = world;
          cell.what.fault = fault;
          cell.what.rule = options.rule;
          cell.what.healthy_s = options.healthy_s;
          if (options.healthy_s == 0 && world >= 64) cell.what.healthy_s = world >= 512 ? 200 : 600;
          if (behaviour != "base" && behaviour != "random") cell.what.behaviours = {behaviour};
          cell.outcomes.resize(options.seeds);
          cells.push_back(std::move(cell));
        }
      }
    }
  }
  return cells;
}

/// Returns the CPU time of this thread. Other programs on the machine do not count.
double CpuMs() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) * 1e3 + static_cast<double>(time.tv_nsec) * 1e-6;
}

BenchResult CostOf(Family family, uint32_t world) {
  constexpr double kOnsetS = 40;
  constexpr double kUntilS = 80;
  Case what;
  what.family = family;
  what.world = world;
  what.fault = *sim::program::FindFault("loader");
  sim::Noise noise(1);
  sim::program::RunSetup made = MakeRunSetup(what, noise);
  made.faults.front().onset_s = kOnsetS;
  sim::program::Engine engine(made.job, made.setting, made.faults, made.seed);
  sim::program::Agents agents(engine, sim::program::kAgentsRule, 1);
  detect::Detector detector(sim::program::Agents::kIncarnation, world);
  std::vector<double> evaluate_ms;
  double observe_ms = 0;
  for (double at_s = 1; at_s <= kUntilS; at_s += 1) {
    engine.RunUntil(at_s);
    agents.SampleUntil(at_s);
    const double begin = CpuMs();
    while (auto delivery = agents.Next(at_s)) {
      detector.Observe(*delivery->digest, sim::program::DetectorTime(delivery->at_s));
    }
    const double observed = CpuMs();
    detector.Evaluate(sim::program::DetectorTime(at_s));
    evaluate_ms.push_back(CpuMs() - observed);
    observe_ms += observed - begin;
  }
  std::sort(evaluate_ms.begin(), evaluate_ms.end());
  const double p99 = evaluate_ms[(evaluate_ms.size() - 1) * 99 / 100];
  return {.name = fmt::format("evaluate_p99_ms/{}", ToString(family)),
          .ratio = p99,
          .ours = p99,
          .reference = observe_ms / kUntilS,
          .unit = "ms",
          .goal = world >= 10'240 ? "<=20" : "",
          .note = fmt::format("{} ranks, running and hung; the reference is the time to observe "
                              "one second's digests",
                              world),
          .repetitions = static_cast<uint32_t>(evaluate_ms.size()),
          .least = evaluate_ms.front(),
          .most = evaluate_ms.back()};
}

}  // namespace

std::vector<BenchResult> MeasureProgramEvaluations(const std::vector<std::string>& families,
                                                   uint32_t world) {
  std::vector<BenchResult> rows;
  for (const Family family : sim::program::kFamilies) {
    if (!families.empty() && !Contains(families, ToString(family))) continue;
    if (Fits(family, world)) rows.push_back(CostOf(family, world));
  }
  return rows;
}

Result<std::vector<ProgramCell>> RunProgramMatrix(const ProgramMatrixOptions& options) {
  if (Status status = Check(options); !status.ok()) return Fail(std::move(status));
  std::vector<ProgramCell> cells = Cells(options);
  // Run seed by seed and in random order: when time is up, all families have about equally many
  // runs.
  std::vector<size_t> order(cells.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(),
            [](size_t a, size_t b) { return Random(a).Next() < Random(b).Next(); });
  const size_t runs = cells.size() * options.seeds;
  const auto started = std::chrono::steady_clock::now();
  std::atomic<size_t> next{0};
  std::vector<std::vector<char>> finished(cells.size(), std::vector<char>(options.seeds));
  const auto work = [&] {
    for (size_t i = next++; i < runs; i = next++) {
      const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - started;
      if (options.minutes > 0 && passed.count() > options.minutes * 60) return;
      const size_t at = order[i % cells.size()];
      ProgramCell& cell = cells[at];
      const size_t seed = i / cells.size();
      const uint64_t stream = StreamOf(cell, options.first_seed + seed);
      Case what = cell.what;
      if (cell.behaviour == "random") what.behaviours = RandomBehaviours(stream);
      cell.outcomes[seed] = sim::program::RunCase(what, stream);
      finished[at][seed] = 1;
    }
  };
  std::vector<std::thread> threads;
  for (uint32_t i = 1; i < options.jobs; ++i) threads.emplace_back(work);
  work();
  for (std::thread& thread : threads) thread.join();
  for (size_t i = 0; i < cells.size(); ++i) {
    std::vector<sim::program::Outcome> kept;
    for (size_t seed = 0; seed < options.seeds; ++seed) {
      if (finished[i][seed] != 0) kept.push_back(std::move(cells[i].outcomes[seed]));
    }
    cells[i].outcomes = std::move(kept);
  }
  return cells;
}

}  // namespace holdfast::bench
