#include "coordinator/detect/cut.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>

namespace holdfast::detect {
namespace {
/// What became of the questions between two nodes, in both directions.
struct Between {
  uint32_t answered = 0;
  uint32_t in_vain = 0;
};
using Links = std::map<std::pair<Index, Index>, Between>;

Links LinksTold(const Table& table, Clock::TimePoint now, Clock::Duration fresh) {
  Links links;
  for (Index from = 0; from < table.nodes().size(); ++from) {
    const NodeInfo& node = table.node(from);
    if (now - node.as_of > fresh) continue;
    for (const auto& [to, reached] : node.reach) {
      Between& between = links[{std::min(from, to), std::max(from, to)}];
      ++(reached ? between.answered : between.in_vain);
    }
  }
  return links;
}

bool IsDead(const Between& between) { return between.in_vain > 0 && between.answered == 0; }
}  // namespace

std::pair<uint32_t, uint32_t> AnswersOf(const Table& table, Index node, Clock::TimePoint now,
                                        Clock::Duration fresh) {
  std::pair<uint32_t, uint32_t> answers;
  for (const NodeInfo& from : table.nodes()) {
    if (now - from.as_of > fresh) continue;
    for (const auto& [to, reached] : from.reach) {
      if (to == node) ++(reached ? answers.first : answers.second);
    }
  }
  return answers;
}

bool AnyInVain(const Table& table, Clock::TimePoint now, Clock::Duration fresh) {
  const Links links = LinksTold(table, now, fresh);
  return std::any_of(links.begin(), links.end(),
                     [](const auto& link) { return link.second.in_vain > 0; });
}

std::optional<Cut> FindCut(const Table& table, const std::set<Index>& suspects,
                           Clock::TimePoint now, Clock::Duration fresh) {
  const Links links = LinksTold(table, now, fresh);
  std::map<Index, std::pair<uint32_t, uint32_t>> counts;  // dead and living links of each node
  std::vector<std::pair<Index, Index>> dead;
  for (const auto& [ends, between] : links) {
    if (IsDead(between)) dead.push_back(ends);
    for (const Index end : {ends.first, ends.second}) {
      auto& [dead_links, living] = counts[end];
      ++(IsDead(between) ? dead_links : living);
    }
  }
  Cut cut;
  for (const auto& [node, count] : counts) {
    const auto& [dead_links, living] = count;
    if (living > 0 || suspects.count(node) == 0) continue;
    const auto well = std::count_if(dead.begin(), dead.end(), [&, me = node](const auto& ends) {
      if (ends.first != me && ends.second != me) return false;
      return counts[ends.first == me ? ends.second : ends.first].second > 0;
    });
    if (well >= 2) cut.nodes.push_back(node);
  }
  if (!cut.nodes.empty()) {
    std::vector<std::string> names;
    for (const Index node : cut.nodes) names.push_back(table.node(node).name);
    cut.evidence = fmt::format(
        "{} and the nodes around do not reach each other over the network, "
        "and those reach others",
        fmt::join(names, ", "));
    return cut;
  }
  if (dead.size() != 1) return std::nullopt;
  const auto [a, b] = dead.front();
  if (suspects.count(a) == 0 || suspects.count(b) == 0 || counts[a].second == 0 ||
      counts[b].second == 0) {
    return std::nullopt;
  }
  cut.link = dead.front();
  cut.evidence = fmt::format(
      "{} and {} do not reach each other over the network, and both reach "
      "others",
      table.node(a).name, table.node(b).name);
  return cut;
}

}  // namespace holdfast::detect
