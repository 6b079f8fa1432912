#include "coordinator/restart/placement.h"

#include <algorithm>

namespace holdfast::coord {

Placement Place(const PlacementRequest& request) {
  Placement placement;
  if (request.usable.size() < request.nodes) {
    placement.lacking = request.nodes - static_cast<uint32_t>(request.usable.size());
    return placement;
  }
  const auto stays = [&request](const std::string& node) {
    return request.usable.count(node) != 0 && request.avoid.count(node) == 0;
  };
  std::vector<std::string> nodes(request.nodes);
  std::set<std::string> taken;
  for (size_t i = 0; i < nodes.size() && i < request.before.size(); ++i) {
    if (stays(request.before[i]) && taken.insert(request.before[i]).second) {
      nodes[i] = request.before[i];
    }
  }
  std::vector<std::string> others;
  for (const std::string& node : request.usable) {
    if (taken.count(node) == 0) others.push_back(node);
  }
  const auto blamed = [&request](const std::string& node) {
    const auto found = request.blamed.find(node);
    return found == request.blamed.end() ? 0U : found->second;
  };
  std::stable_sort(others.begin(), others.end(), [&](const std::string& a, const std::string& b) {
    return blamed(a) < blamed(b);
  });
  std::stable_partition(others.begin(), others.end(), stays);
  size_t next = 0;
  // If a node to avoid is needed after all, the second loop returns it to its own place.
  for (size_t i = 0; i < nodes.size(); ++i) {
    if (nodes[i].empty()) nodes[i] = others[next++];
  }
  for (size_t i = 0; i < nodes.size() && i < request.before.size(); ++i) {
    const auto own = std::find(nodes.begin(), nodes.end(), request.before[i]);
    if (own != nodes.end()) std::swap(nodes[i], *own);
  }
  for (const std::string& node : nodes) {
    if (std::find(request.before.begin(), request.before.end(), node) == request.before.end()) {
      placement.in.push_back(node);
    }
  }
  for (const std::string& node : request.before) {
    if (std::find(nodes.begin(), nodes.end(), node) == nodes.end()) placement.out.push_back(node);
  }
  placement.nodes = std::move(nodes);
  return placement;
}

}  // namespace holdfast::coord
