#include "tests/simulation/world.h"

#include <cstdio>

#include "tests/simulation/job.h"
#include "tests/simulation/node_host.h"

namespace holdfast::simulation {

World::World(SimScheduler& scheduler_in, uint64_t seed, std::string dir_in, bool verbose_in)
    : scheduler(scheduler_in),
      random(seed * 31 + 7),
      clock(scheduler_in),
      network(scheduler_in, seed ^ 0xabcdef),
      coordinator(*this),
      dir(std::move(dir_in)),
      verbose(verbose_in),
      started(scheduler_in.Now()) {}

World::~World() = default;

double World::Seconds() const {
  return std::chrono::duration<double>(scheduler.Now() - started).count();
}

void World::Trace(const std::string& what) {
  for (char c : what) scheduler.AddToTrace(static_cast<unsigned char>(c));
  if (verbose) std::printf("%10.6f  %s\n", Seconds(), what.c_str());
}

NodeHost* World::Find(const std::string& node) {
  for (const auto& one : nodes) {
    if (one->name() == node) return one.get();
  }
  return nullptr;
}

}  // namespace holdfast::simulation
