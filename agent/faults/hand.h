#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "agent/api/process.h"
#include "agent/faults/network_cut.h"
#include "storage/base/status.h"

// A hand carries out one fault from outside of those it strikes, and undoes it.

namespace holdfast::agent {

enum class HandAction {
  kRestart,  // kill `process`, wait, and become its successor
  kStop,     // SIGSTOP `process`, SIGCONT at the end
  kFill,     // take all room that `files` can get, remove them at the end
  kCut,      // `cut`: lose or slow down packets
};

struct HandOrder {
  HandAction action = HandAction::kRestart;
  std::string record;  // path; removed when the hand has ended
  int64_t start_in_ms = 0;
  int64_t duration_ms = 0;
  ProcessName process;
  /// kRestart: of a whole node. Its keeper, shims and workers die, too; data directories stay.
  std::string node_run_dir;
  /// kStop: so much of each tenth of a second.
  uint32_t stopped_percent = 100;
  std::vector<std::string> files;
  CutOrder cut;
};

/// Starts holdfast-fault, found beside this program, in a session of its own. It outlives the
/// caller. AlreadyExists: a hand with this record is at work.
Result<pid_t> StartHand(const HandOrder& order);
/// Whether a hand could do kCut here, by one that only tries.
Status RehearseHand(const HandOrder& order);
/// Has a hand end its fault and waits for that; OK when there is none.
Status EndHand(const std::string& record);

/// What holdfast-fault does with its arguments; returns its exit code.
int RunHand(std::span<const std::string> arguments);

/// Not to another process that has got the same pid. NotFound: it has ended.
Status SignalProcess(const ProcessName& process, int signal);

}  // namespace holdfast::agent
