#include "coordinator/state/survival.h"

#include <fmt/format.h>

namespace holdfast::coord {
namespace {
std::string Nodes(uint32_t count) {
  return fmt::format("any {} node{} of each group", count, count == 1 ? "" : "s");
}
}  // namespace

std::string ToString(const Survival& survival) {
  if (!survival.nodes_of_power_cut) {
    return survival.nodes == 0 ? "process loss only" : Nodes(survival.nodes);
  }
  const uint32_t beside = *survival.nodes_of_power_cut;
  const std::string cut = beside == 0 ? "full power cut" : Nodes(beside) + " + full power cut";
  // Whoever survives both at once survives either.
  return survival.nodes > beside ? Nodes(survival.nodes) + "; " + cut : cut;
}

}  // namespace holdfast::coord
