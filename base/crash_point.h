#pragma once

// HOLDFAST_CRASH_POINT("volume.after_rename") kills the process with SIGKILL when the environment
// variable HOLDFAST_CRASH names that point. "volume.after_rename" kills at the first pass,
// "volume.after_rename:3" at the third. The macro compiles to nothing unless HOLDFAST_CRASH_POINTS
// is on. Test builds set that option; installed builds never do.
#if defined(HOLDFAST_CRASH_POINTS)
#define HOLDFAST_CRASH_POINT(name) ::holdfast::PassCrashPoint(name)
#else
#define HOLDFAST_CRASH_POINT(name) static_cast<void>(0)
#endif

namespace holdfast {
/// Kills this process when HOLDFAST_CRASH names this point. Threads: any.
void PassCrashPoint(const char* name);
}  // namespace holdfast
