#include "coordinator/restart/placement.h"

#include <algorithm>

namespace holdfast::coord {

Placement Place(const PlacementQuestion& question) {
  Placement placement;
  if (question.usable.size() < question.nodes) {
    placement.lacking = question.nodes - static_cast<uint32_t>(question.usable.size());
    return placement;
  }
  const auto stays = [&question](const std::string& node) {
    return question.usable.count(node) != 0 && question.avoid.count(node) == 0;
  };
  std::vector<std::string> nodes(question.nodes);
  std::set<std::string> taken;
  for (size_t i = 0; i < nodes.size() && i < question.before.size(); ++i) {
    if (stays(question.before[i]) && taken.insert(question.before[i]).second) {
      nodes[i] = question.before[i];
    }
  }
  std::vector<std::string> others;
  for (const std::string& node : question.usable) {
    if (taken.count(node) == 0) others.push_back(node);
  }
  std::stable_partition(others.begin(), others.end(), stays);
  size_t next = 0;
  // A node that is to be avoided but has to be taken after all gets its own place back.
  for (size_t i = 0; i < nodes.size(); ++i) {
    if (nodes[i].empty()) nodes[i] = others[next++];
  }
  for (size_t i = 0; i < nodes.size() && i < question.before.size(); ++i) {
    const auto own = std::find(nodes.begin(), nodes.end(), question.before[i]);
    if (own != nodes.end()) std::swap(nodes[i], *own);
  }
  for (const std::string& node : nodes) {
    if (std::find(question.before.begin(), question.before.end(), node) == question.before.end()) {
      placement.in.push_back(node);
    }
  }
  for (const std::string& node : question.before) {
    if (std::find(nodes.begin(), nodes.end(), node) == nodes.end()) placement.out.push_back(node);
  }
  placement.nodes = std::move(nodes);
  return placement;
}

}  // namespace holdfast::coord
