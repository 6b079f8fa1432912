#pragma once

#include <span>
#include <string>

// The fault injector: a process that carries out one fault from outside the affected processes, and
// undoes it.

namespace holdfast::agent {

/// Runs holdfast-fault with its arguments and returns its exit code.
int RunInjector(std::span<const std::string> arguments);

}  // namespace holdfast::agent
