#pragma once

#include <span>
#include <string>

// A hand carries out one fault from outside of those it strikes, and undoes it.

namespace holdfast::agent {

/// What holdfast-fault does with its arguments; returns its exit code.
int RunHand(std::span<const std::string> arguments);

}  // namespace holdfast::agent
