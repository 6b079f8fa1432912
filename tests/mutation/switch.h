#pragma once

#include <cstdlib>

// What a bug leaves over is no reason not to compile it.
#pragma GCC diagnostic ignored "-Wunused"
#pragma GCC diagnostic ignored "-Wunused-parameter"
#pragma GCC diagnostic ignored "-Wparentheses"
#pragma GCC diagnostic ignored "-Wextra"

// Included by the copy of the tree that tests/mutation/run.py makes, never by the tree itself.

namespace holdfast::mutation {

/// Whether the planted bug with this number is the one that $HOLDFAST_MUTATION names. One is chosen
/// for the life of a process.
inline bool On(int number) {
  static const int active = [] {
    const char* chosen = std::getenv("HOLDFAST_MUTATION");
    return chosen == nullptr ? 0 : std::atoi(chosen);
  }();
  return active == number;
}

}  // namespace holdfast::mutation
