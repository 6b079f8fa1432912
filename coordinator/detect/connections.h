#pragma once

#include "coordinator/detect/waits.h"

// What the connections of an operation wait for, as their ranks report it.

namespace holdfast::detect {

/// Finds where an operation hangs that all members have started: follows the reported waits to the
/// connection or the rank at their end, and names it in the verdict. Names nothing if the reports
/// do not show an end. Adds the evidence in both cases.
void BlameConnection(const Table& table, const Operation& operation, Verdict& verdict);

}  // namespace holdfast::detect
