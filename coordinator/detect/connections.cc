#include "coordinator/detect/connections.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

namespace holdfast::detect {
namespace {

using Edges = std::map<uint32_t, const PeerEdge*>;  // by the rank that reports it

void NameNodes(const Table& table, const Edge& edge, Verdict& verdict) {
  verdict.nodes = {table.NodeNameOf(edge.from.value), table.NodeNameOf(edge.to.value)};
  if (verdict.nodes[0] == verdict.nodes[1]) verdict.nodes.pop_back();
}

bool WaitsForPeer(const PeerEdge& edge) {
  return edge.state == EdgeState::kSendPeerWait || edge.state == EdgeState::kReceiveWait;
}

class ConnectionFinder {
 public:
  ConnectionFinder(const Table& table, const Operation& operation)
      : table_(table), operation_(operation) {
    for (const Operation::Starter& starter : operation.starters) {
      if (starter.flight->edge && starter.flight->edge->state != EdgeState::kIdle) {
        edges_.emplace(starter.rank, &*starter.flight->edge);
      }
    }
    counted_ = std::all_of(edges_.begin(), edges_.end(),
                           [](const auto& entry) { return entry.second->completed.has_value(); });
  }

  void Blame(Verdict& verdict) const {
    if (edges_.empty()) return BlamePair(verdict);
    const auto first = First();
    auto at = first;
    std::set<uint32_t> seen;
    while (WaitsForPeer(*at->second) && seen.insert(at->first).second) {
      const auto next = edges_.find(at->second->peer.value);
      if (next == edges_.end()) break;
      at = next;
    }
    const bool cycle = WaitsForPeer(*at->second) && edges_.contains(at->second->peer.value);
    if (!cycle) return BlameEdge(at->first, *at->second, verdict);
    if (IsFurthestBehind(first)) return BlameEdge(first->first, *first->second, verdict);
    verdict.evidence.push_back(
        fmt::format("the {} connections that ranks reported wait for each other, and their counts "
                    "of transfers do not show which is behind",
                    edges_.size()));
  }

 private:
  /// A transfer on the wire ends every chain of waits. Without one, the search starts at the least
  /// advanced connection, if all ranks that reported one also counted its transfers.
  Edges::const_iterator First() const {
    const auto order = [&](const auto& entry) {
      return std::pair(entry.second->state != EdgeState::kSendWait,
                       counted_ ? *entry.second->completed : 0);
    };
    return std::min_element(edges_.begin(), edges_.end(),
                            [&](const auto& a, const auto& b) { return order(a) < order(b); });
  }

  /// Whether all other reported connections have completed more transfers.
  bool IsFurthestBehind(Edges::const_iterator least) const {
    return counted_ && std::all_of(edges_.begin(), edges_.end(), [&](const auto& other) {
             return other.first == least->first ||
                    *other.second->completed > *least->second->completed;
           });
  }

  /// A transfer between two ranks uses one connection, which the program names.
  void BlamePair(Verdict& verdict) const {
    const Operation::Starter& starter = operation_.starters.front();
    const std::vector<uint32_t>& members = table_.comm(operation_.comm).members;
    if (!IsPairwise(operation_.kind) && members.size() == 2 &&
        table_.rank(members[0]).node != table_.rank(members[1]).node) {
      verdict.edge = Edge{Rank{members[0]}, Rank{members[1]}};
      NameNodes(table_, *verdict.edge, verdict);
      verdict.confidence = 0.85;
      verdict.evidence.emplace_back("only these two ranks take part, on two nodes");
      return;
    }
    if (!IsPairwise(operation_.kind) || !starter.flight->edge) {
      verdict.evidence.emplace_back("no rank reported which of its connections is blocked");
      return;
    }
    const bool sends = starter.flight->record.kind == CollectiveKind::kSend;
    const Rank peer = starter.flight->edge->peer;
    verdict.edge = sends ? Edge{Rank{starter.rank}, peer} : Edge{peer, Rank{starter.rank}};
    NameNodes(table_, *verdict.edge, verdict);
    verdict.action = Action::kRestartWithoutRoot;
    verdict.confidence = 0.85;
    verdict.evidence.emplace_back("a transfer uses a single connection");
  }

  void BlameEdge(uint32_t rank, const PeerEdge& edge, Verdict& verdict) const {
    verdict.action = Action::kRestartWithoutRoot;
    const uint32_t peer = edge.peer.value;
    const std::string which =
        edge.completed ? fmt::format("transfer {}", *edge.completed) : "a transfer";
    switch (edge.state) {
      case EdgeState::kSendWait:
        verdict.edge = Edge{Rank{rank}, Rank{peer}};
        verdict.confidence = 0.95;
        verdict.evidence.push_back(fmt::format(
            "{} of rank {} to rank {} is on the wire and not acknowledged", which, rank, peer));
        break;
      case EdgeState::kReceiveWait:
        verdict.edge = Edge{Rank{peer}, Rank{rank}};
        verdict.confidence = 0.8;
        verdict.evidence.push_back(fmt::format(
            "rank {} waits for {} from rank {}, which {}", rank, which, peer,
            edges_.contains(peer) ? "is further on" : "does not report what it waits for"));
        break;
      case EdgeState::kSendPeerWait:
        verdict.ranks = {Rank{peer}};
        verdict.nodes = {table_.NodeNameOf(peer)};
        verdict.confidence = 0.85;
        verdict.evidence.push_back(
            fmt::format("rank {} cannot send: rank {} does not consume data", rank, peer));
        break;
      case EdgeState::kSendGpuWait:
      case EdgeState::kReceiveFlushWait:
      case EdgeState::kReceiveGpuWait:
      case EdgeState::kIdle:
        return BlameGpu(rank, peer, verdict);
    }
    if (!verdict.edge) return;
    NameNodes(table_, *verdict.edge, verdict);
    if (IsFurthestBehind(edges_.find(rank))) {
      verdict.evidence.push_back(
          fmt::format("the other {} reported connections are further on", edges_.size() - 1));
    }
  }

  /// A GPU that moves no data may wait for another GPU of its node: connections within a node are
  /// not reported.
  void BlameGpu(uint32_t rank, uint32_t peer, Verdict& verdict) const {
    const Index node = table_.rank(rank).node;
    const auto on_node = std::count_if(
        operation_.starters.begin(), operation_.starters.end(),
        [&](const Operation::Starter& starter) { return table_.rank(starter.rank).node == node; });
    if (on_node == 1) verdict.ranks = {Rank{rank}};
    verdict.nodes = {table_.NodeNameOf(rank)};
    verdict.confidence = 0.8;
    verdict.evidence.push_back(
        fmt::format("the GPU of rank {} does not move data for rank {}{}", rank, peer,
                    on_node == 1 ? "" : "; it may wait for another GPU of its node"));
  }

  const Table& table_;
  const Operation& operation_;
  Edges edges_;
  bool counted_ = false;  // all of them
};

}  // namespace

void BlameConnection(const Table& table, const Operation& operation, Verdict& verdict) {
  ConnectionFinder(table, operation).Blame(verdict);
}

}  // namespace holdfast::detect
