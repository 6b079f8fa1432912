#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "storage/base/process.h"
#include "storage/base/status.h"

// The order for a hand, which carries out one fault from outside of those it strikes and undoes it
// (`agent/faults`), and how a hand is started and ended.

namespace holdfast::coord {

struct CutOrder {
  std::string drill;                   // a valid name
  std::vector<std::string> addresses;  // of the others: numbers, no names
  uint64_t bytes_per_s = 0;            // so much passes in each direction; 0: nothing
};

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

/// What StartHand gives holdfast-fault as arguments. InvalidArgument for anything else.
Result<HandOrder> ParseHandOrder(std::span<const std::string> arguments);
/// Before what a hand says of its failure.
inline constexpr const char* kHandSays = "holdfast-fault: ";

}  // namespace holdfast::coord
