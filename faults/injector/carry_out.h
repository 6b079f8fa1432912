#pragma once

#include <string>

#include "base/clock.h"

// A process of holdfast-fault for one fault. It is outside the processes that the fault affects,
// and undoes the fault even if all of them, and the injector that started it, have ended.

namespace holdfast::faults {

/// Carries out the order in the file `path`, undoes it at the end of its time or at SIGTERM,
/// whichever happens first, and removes the file. Returns the exit code.
int CarryOut(const std::string& path, Clock& clock);

/// Undoes an order whose process was killed, and removes the file. Does nothing if another process
/// does either. Returns the exit code.
int Undo(const std::string& path);

}  // namespace holdfast::faults
