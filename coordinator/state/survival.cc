#include "coordinator/state/survival.h"

#include <fmt/format.h>

namespace holdfast::coord {
namespace {
std::string Nodes(uint32_t count) {
  return fmt::format("any {} node{} of each group", count, count == 1 ? "" : "s");
}
}  // namespace

std::string ToString(const Survival& survival) {
  if (survival.all_nodes) return "all nodes";
  if (!survival.nodes_after_power_cut) {
    return survival.nodes == 0 ? "process loss only" : Nodes(survival.nodes);
  }
  const uint32_t and_nodes = *survival.nodes_after_power_cut;
  const std::string cut =
      and_nodes == 0 ? "full power cut" : Nodes(and_nodes) + " + full power cut";
  // Surviving both at once includes surviving either one.
  return survival.nodes > and_nodes ? Nodes(survival.nodes) + "; " + cut : cut;
}

}  // namespace holdfast::coord
