#pragma once

#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "coordinator/detect/table.h"

// Which node, or which link between two, is cut, by who still reaches whom.

namespace holdfast::detect {

struct Cut {
  std::vector<Index> nodes;                     // these are cut off, or …
  std::optional<std::pair<Index, Index>> link;  // … nothing passes between these two
  std::string evidence;
};

/// Looks at the words of all nodes that are younger than `fresh`. `suspects`: nodes that may be
/// blamed. Nothing where the words allow no conclusion: a node is cut off when it reaches none of
/// those it asked, and at least two others asked it in vain that reach somebody else. A link is cut
/// when it is the only one, and both its ends reach others.
std::optional<Cut> FindCut(const Table& table, const std::set<Index>& suspects,
                           Clock::TimePoint now, Clock::Duration fresh);

/// How many of the nodes that asked `node` lately had an answer, and how many had none.
std::pair<uint32_t, uint32_t> AnswersOf(const Table& table, Index node, Clock::TimePoint now,
                                        Clock::Duration fresh);

/// Some node did not answer another one.
bool AnyInVain(const Table& table, Clock::TimePoint now, Clock::Duration fresh);

}  // namespace holdfast::detect
