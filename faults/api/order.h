#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/process.h"
#include "base/status.h"

// The order for one fault, and its file. The process that carries out the order reads the file. If
// this process is killed, another one reads the file and undoes the fault.

namespace holdfast::faults {

enum class Action {
  kRestart,  // kill `process`, wait, and start its program again
  kStop,     // SIGSTOP `process`, SIGCONT at the end
  kFill,     // fill the file systems of `files` with these files, remove them at the end
  kCut,      // drop or slow down packets as `cut` describes
};
/// Returns "restart", "stop", "fill" or "cut".
std::string NameOf(Action action);

struct CutOrder {
  std::string drill;                   // a valid name
  std::vector<std::string> addresses;  // of the peers to cut off: numeric, no names
  uint64_t bytes_per_s = 0;            // limit in each direction; 0: drop everything
  bool operator==(const CutOrder&) const = default;
};

/// How a server was started, and so how it is started again.
struct Launch {
  std::string program;
  std::string folder;
  std::vector<std::string> arguments;
  std::vector<std::string> environment;
  uid_t uid = 0;
  gid_t gid = 0;
  mode_t umask = 022;
  std::vector<std::string> limits;  // "resource soft hard"
  std::string out;                  // the files of its stdout and stderr; empty: neither is a file
  std::string errors;
  bool operator==(const Launch&) const = default;
};

struct Order {
  Action action = Action::kRestart;
  int64_t start_in_ms = 0;
  int64_t duration_ms = 0;
  ProcessName process;
  /// kRestart: start the server again; false: its service manager does.
  bool starts_again = true;
  Launch launch;
  /// kRestart: a folder that is renamed while the server does not run, and its new name. Empty:
  /// none.
  std::string lost_folder;
  std::string lost_as;
  /// kRestart: where the server listens. Who listens there later is its successor.
  std::string endpoint;
  /// The run directory of a node; not empty: kRestart also kills the node's keeper, shims and
  /// workers. Data directories stay.
  std::string node_run_dir;
  /// kStop: percentage of each 100 ms in which the process is stopped.
  uint32_t stopped_percent = 100;
  std::vector<std::string> files;
  CutOrder cut;
  bool operator==(const Order&) const = default;
};

/// Returns the content of an order's file: "key=value", each followed by a NUL byte.
std::string EncodeOrder(const Order& order);
/// Parses a file. InvalidArgument names the first bad entry, and refuses a file that is torn.
Result<Order> DecodeOrder(std::string_view bytes);

/// Reads the order in an open file.
Result<Order> ReadOrder(int fd);
/// Writes the file under a temporary name and renames it. AlreadyExists: there is a file.
Status WriteOrder(const std::string& path, const Order& order);

/// Takes the lock of an order's file for the lifetime of this process. The descriptor must stay
/// open. AlreadyExists: another process carries out the order or undoes it.
Status LockOrder(int fd);
/// Returns the process that has the lock; pid 0: none.
ProcessName HolderOf(const std::string& path);

}  // namespace holdfast::faults
