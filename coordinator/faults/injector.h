#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/process.h"
#include "base/status.h"

// The request to a fault injector, and how to start and stop one. The injector is a separate
// process (`agent/faults`): it injects one fault into other processes or the node, and then reverts
// it.

namespace holdfast::coord {

struct CutRequest {
  std::string drill;                   // a valid name
  std::vector<std::string> addresses;  // of the peers to cut off: numeric, no names
  uint64_t bytes_per_s = 0;            // limit in each direction; 0: drop everything
};

enum class InjectedFault {
  kRestart,  // kill `process`, wait, and execute its program again
  kStop,     // SIGSTOP `process`, SIGCONT at the end
  kFill,     // fill the file systems of `files` with these files, remove them at the end
  kCut,      // drop or slow down packets as `cut` describes
};

struct FaultRequest {
  InjectedFault action = InjectedFault::kRestart;
  std::string record;  // path of the record file, removed when the injector ends
  int64_t start_in_ms = 0;
  int64_t duration_ms = 0;
  ProcessName process;
  /// The run directory of a node; not empty: kRestart also kills the node's keeper, shims and
  /// workers. Data directories stay.
  std::string node_run_dir;
  /// kStop: percentage of each 100 ms in which the process is stopped.
  uint32_t stopped_percent = 100;
  std::vector<std::string> files;
  CutRequest cut;
};

/// Starts holdfast-fault from the directory of this program, in a new session, and returns its
/// process ID. The injector outlives the caller. AlreadyExists: an injector with this record is
/// running.
Result<pid_t> StartInjector(const FaultRequest& request);
/// Checks whether kCut is possible on this machine, by a run of the injector that only tests this.
/// FailedPrecondition states the reason why it is not.
Status RehearseInjector(const FaultRequest& request);
/// Makes the injector with this record revert its fault, and waits until the injector has ended. OK
/// if none is running; DeadlineExceeded if it does not end in time.
Status StopInjector(const std::string& record);

/// Parses the arguments that StartInjector passes to holdfast-fault. InvalidArgument for any other
/// argument.
Result<FaultRequest> ParseFaultRequest(std::span<const std::string> arguments);
/// Prefix of an injector's error messages.
inline constexpr const char* kInjectorPrefix = "holdfast-fault: ";

}  // namespace holdfast::coord
