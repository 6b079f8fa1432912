#pragma once

#include <sys/types.h>

#include <memory>
#include <set>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/mutex.h"
#include "base/process.h"
#include "base/status.h"
#include "faults/api/order.h"

namespace holdfast::faults {

/// The orders that are carried out on this machine: a folder with a file for each. A separate
/// process carries out each order, and outlives this one. Thread-safe.
class OrderBook {
 public:
  /// Creates the folder, for this user only. Orders of an earlier process are in force. `program`
  /// is that of holdfast-fault; by default it is the running one, even if its file has been
  /// replaced. `clock` outlives the book.
  static Result<std::unique_ptr<OrderBook>> Open(std::string folder, Clock& clock,
                                                 std::string program = "/proc/self/exe");

  /// Starts a process that carries out the order, and returns when the process has its lock.
  /// FailedPrecondition: another drill is in force here. AlreadyExists: this order is.
  Status Begin(const std::string& drill, const Order& order);
  /// FailedPrecondition: another drill is in force here.
  Status CheckFree(const std::string& drill);
  /// Undoes all orders of the drill. OK: none is left; DeadlineExceeded: one does not end in time.
  Status End(const std::string& drill);
  /// Reaps ended processes. Undoes each order whose process was killed before it undid its fault.
  /// Call it about every second.
  void Watch();

 private:
  struct Entry {
    std::string path;
    std::string drill;
    ProcessName holder;  // pid 0: its process was killed
  };
  OrderBook(std::string folder, Clock& clock, std::string program)
      : folder_(std::move(folder)), clock_(clock), program_(std::move(program)) {}
  std::vector<Entry> Entries() const;
  Status CheckFreeLocked(const std::string& drill) const;
  void WatchLocked() HOLDFAST_REQUIRES(mutex_);
  /// Starts this program with `mode` and the path, and waits until it has the lock or has ended.
  Status Start(const char* mode, const std::string& path) HOLDFAST_REQUIRES(mutex_);

  const std::string folder_;
  Clock& clock_;
  const std::string program_;
  Mutex mutex_;
  std::set<pid_t> children_ HOLDFAST_GUARDED_BY(mutex_);
};

}  // namespace holdfast::faults
