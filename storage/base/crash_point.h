#pragma once

// HOLDFAST_CRASH_POINT("volume.after_rename") kills the process with SIGKILL when the environment
// variable HOLDFAST_CRASH names that point: "volume.after_rename" at its first passing,
// "volume.after_rename:3" at its third. Compiled to nothing unless HOLDFAST_CRASH_POINTS is on, as
// it is for tests and never for what is installed.
#if defined(HOLDFAST_CRASH_POINTS)
#define HOLDFAST_CRASH_POINT(name) ::holdfast::PassCrashPoint(name)
#else
#define HOLDFAST_CRASH_POINT(name) static_cast<void>(0)
#endif

namespace holdfast {
/// Dies here when this point is the chosen one. Threads: any.
void PassCrashPoint(const char* name);
}  // namespace holdfast
