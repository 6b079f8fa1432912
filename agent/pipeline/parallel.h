#pragma once

#include <cstddef>
#include <functional>
#include <string>

#include "base/status.h"

namespace holdfast::agent {

/// Calls `work` for each of `count` items on a few threads, beginning with item `first`. After an
/// error no further item begins. Returns an error, if there was one.
Status InParallel(size_t count, size_t first, const std::function<Status(size_t)>& work);

/// Returns where a node begins in a list that all nodes walk, so that they do not all begin at the
/// same place.
size_t FirstOf(const std::string& node, size_t count);

}  // namespace holdfast::agent
