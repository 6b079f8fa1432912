#include "coordinator/detect/cut.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>

namespace holdfast::detect {
namespace {
/// Results of the probes between two nodes, in both directions.
struct LinkProbes {
  uint32_t answered = 0;
  uint32_t failed = 0;
};
using Links = std::map<std::pair<Index, Index>, LinkProbes>;

Links CollectLinks(const Table& table, Clock::TimePoint now, Clock::Duration max_age) {
  Links links;
  for (Index from = 0; from < table.nodes().size(); ++from) {
    const NodeInfo& node = table.node(from);
    if (now - node.as_of > max_age) continue;
    for (const auto& [to, reached] : node.reach) {
      LinkProbes& probes = links[{std::min(from, to), std::max(from, to)}];
      ++(reached ? probes.answered : probes.failed);
    }
  }
  return links;
}

bool HasFailed(const LinkProbes& probes) { return probes.failed > 0 && probes.answered == 0; }
}  // namespace

std::pair<uint32_t, uint32_t> ProbeResultsOf(const Table& table, Index node, Clock::TimePoint now,
                                             Clock::Duration max_age) {
  std::pair<uint32_t, uint32_t> answers;
  for (const NodeInfo& from : table.nodes()) {
    if (now - from.as_of > max_age) continue;
    for (const auto& [to, reached] : from.reach) {
      if (to == node) ++(reached ? answers.first : answers.second);
    }
  }
  return answers;
}

bool AnyProbeFailed(const Table& table, Clock::TimePoint now, Clock::Duration max_age) {
  const Links links = CollectLinks(table, now, max_age);
  return std::any_of(links.begin(), links.end(),
                     [](const auto& link) { return link.second.failed > 0; });
}

std::optional<Cut> FindCut(const Table& table, const std::set<Index>& suspects,
                           Clock::TimePoint now, Clock::Duration max_age) {
  const Links links = CollectLinks(table, now, max_age);
  std::map<Index, std::pair<uint32_t, uint32_t>> counts;  // failed and working links of each node
  std::vector<std::pair<Index, Index>> failed_ends;
  for (const auto& [ends, probes] : links) {
    if (HasFailed(probes)) failed_ends.push_back(ends);
    for (const Index end : {ends.first, ends.second}) {
      auto& [failed_links, working_links] = counts[end];
      ++(HasFailed(probes) ? failed_links : working_links);
    }
  }
  Cut cut;
  for (const auto& [node, count] : counts) {
    const auto& [failed_links, working_links] = count;
    if (working_links > 0 || suspects.count(node) == 0) continue;
    // Counts the other ends of the node's failed links that reach some third node.
    const auto connected =
        std::count_if(failed_ends.begin(), failed_ends.end(), [&, me = node](const auto& ends) {
          if (ends.first != me && ends.second != me) return false;
          return counts[ends.first == me ? ends.second : ends.first].second > 0;
        });
    if (connected >= 2) cut.nodes.push_back(node);
  }
  if (!cut.nodes.empty()) {
    std::vector<std::string> names;
    for (const Index node : cut.nodes) names.push_back(table.node(node).name);
    cut.evidence = fmt::format(
        "{} and the nodes that exchange probes with it do not reach each other over the network, "
        "but those nodes reach others",
        fmt::join(names, ", "));
    return cut;
  }
  if (failed_ends.size() != 1) return std::nullopt;
  const auto [a, b] = failed_ends.front();
  if (suspects.count(a) == 0 || suspects.count(b) == 0) return std::nullopt;
  if (table.nodes().size() == 2 && links.begin()->second.failed >= 2) {
    cut.link = failed_ends.front();
    cut.certain = false;
    cut.evidence = fmt::format(
        "{} and {} do not reach each other over the network, and both agents report; the job has "
        "no third node that would show which end is cut off",
        table.node(a).name, table.node(b).name);
    return cut;
  }
  if (counts[a].second == 0 || counts[b].second == 0) return std::nullopt;
  cut.link = failed_ends.front();
  cut.evidence = fmt::format(
      "{} and {} do not reach each other over the network, but both reach "
      "other nodes",
      table.node(a).name, table.node(b).name);
  return cut;
}

}  // namespace holdfast::detect
