#pragma once

#include <cstdlib>

// A planted bug may leave unused code, which must still compile.
#pragma GCC diagnostic ignored "-Wunused"
#pragma GCC diagnostic ignored "-Wunused-parameter"
#pragma GCC diagnostic ignored "-Wparentheses"
#pragma GCC diagnostic ignored "-Wextra"

// Included by the copy of the tree that tests/mutation/run.py makes, never by the tree itself.

namespace holdfast::mutation {

/// Returns whether $HOLDFAST_MUTATION selects the planted bug with this number. The selection is
/// fixed for the life of a process.
inline bool On(int number) {
  static const int active = [] {
    const char* chosen = std::getenv("HOLDFAST_MUTATION");
    return chosen == nullptr ? 0 : std::atoi(chosen);
  }();
  return active == number;
}

}  // namespace holdfast::mutation
