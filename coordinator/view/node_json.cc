#include "coordinator/view/node_json.h"

#include <map>
#include <string>
#include <vector>

namespace holdfast::view {

namespace {
Json MembershipsJson(const coordinator::NodeStatus& node) {
  Json memberships = Json::array();
  for (const auto& membership : node.memberships()) {
    memberships.push_back({{"job", membership.job()},
                           {"group", membership.group()},
                           {"number", membership.number()},
                           {"position", membership.position()},
                           {"members", membership.members()},
                           {"parity", membership.parity()}});
  }
  return memberships;
}
}  // namespace

uint32_t BlamedBy(const coordinator::GetRunsReply& runs, const std::string& node) {
  for (const auto& one : runs.blamed()) {
    if (one.node() == node) return one.jobs();
  }
  return 0;
}

Json NodeJson(const coordinator::NodeStatus& node, uint32_t blamed_by) {
  // Sorted, unlike the map in the message.
  const std::map<std::string, std::string> labels(node.labels().begin(), node.labels().end());
  return {{"node", node.node()},
          {"alive", node.alive()},
          {"address", node.data_address()},
          {"memory_bytes", node.held_memory_bytes()},
          {"disk_bytes", node.held_disk_bytes()},
          {"disk_free_percent", node.disk_free_percent()},
          {"arena_bytes", node.has_arena() ? Json(node.arena().bytes()) : Json(nullptr)},
          {"arena_reserved_bytes",
           node.has_arena() ? Json(node.arena().reserved_bytes()) : Json(nullptr)},
          {"seen_at", TimeJson(node.seen_wall_nanos())},
          {"warnings", std::vector<std::string>(node.warnings().begin(), node.warnings().end())},
          {"peer_address", node.peer_address()},
          {"parity_bytes", node.held_parity_bytes()},
          {"labels", labels},
          {"draining", node.draining()},
          {"drain_why", node.drain_why()},
          {"departing", node.departing()},
          {"blamed_by_jobs", blamed_by},
          {"memberships", MembershipsJson(node)}};
}

Json NodesJson(const coordinator::GetStatusReply& status, const coordinator::GetRunsReply& runs) {
  Json nodes = Json::array();
  for (const auto& node : status.nodes()) {
    nodes.push_back(NodeJson(node, BlamedBy(runs, node.node())));
  }
  return nodes;
}

}  // namespace holdfast::view
