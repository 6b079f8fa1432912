#pragma once

#include <cstdlib>
#include <type_traits>

// A planted bug may leave unused code, which must still compile.
#pragma GCC diagnostic ignored "-Wunused"
#pragma GCC diagnostic ignored "-Wunused-parameter"
#pragma GCC diagnostic ignored "-Wparentheses"
#pragma GCC diagnostic ignored "-Wextra"

// Included by the copy of the tree that tests/mutation/run.py makes, never by the tree itself.

namespace holdfast::mutation {

/// Returns the number in $HOLDFAST_MUTATION, which is fixed for the life of a process; 0: none.
inline int Selected() {
  static const int selected = [] {
    const char* chosen = std::getenv("HOLDFAST_MUTATION");
    return chosen == nullptr ? 0 : std::atoi(chosen);
  }();
  return selected;
}

/// Returns whether $HOLDFAST_MUTATION selects the planted bug with this number. What the compiler
/// evaluates has no bug.
constexpr bool On(int number) { return !std::is_constant_evaluated() && Selected() == number; }

}  // namespace holdfast::mutation
