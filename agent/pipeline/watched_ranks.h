#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "agent/telemetry/table_reader.h"
#include "base/fd.h"
#include "base/ids.h"
#include "base/mutex.h"
#include "base/process.h"

namespace holdfast::agent {

struct WatchedRank {
  std::string job;
  Rank rank;
  uint32_t world = 0;
  Incarnation incarnation;
  ProcessName process;
};

/// One observation of a trainer.
struct ObservedRank {
  WatchedRank who;
  bool alive = true;
  bool ended_orderly = false;  // exit code 0, SIGTERM or SIGINT: an intended end
  char process_state = 0;
  uint32_t processor_wait_percent = 0;  // of its threads, together; measured if it makes no steps
  RankTelemetry telemetry;              // present is false: not connected, or no telemetry
};

/// The trainers of this node, observed from outside: process state and telemetry. A process that
/// ended without a Goodbye is still observed, as dead, until another process joins as its rank or
/// its job starts a newer incarnation on this node. Thread-safe.
class WatchedRanks {
 public:
  /// Begins to observe a rank. `pid_fd` is that of its process. `control` stays mapped until
  /// Leave().
  void Join(const WatchedRank& who, UniqueFd pid_fd, SegmentControl& control);
  /// Stops using the rank's memory, which may be unmapped afterwards. With `orderly` (the trainer
  /// sent a Goodbye), also stops observing the process.
  void Leave(const std::string& job, Rank rank, bool orderly);
  /// Observes all ranks; `now_ns` is CLOCK_MONOTONIC.
  std::vector<ObservedRank> Observe(uint64_t now_ns);
  /// Returns the process that runs a rank, or ran it last.
  std::optional<ProcessName> ProcessOf(const std::string& job, Rank rank);
  /// Requests that the connected ranks of a job record, for their next `operations` operations, the
  /// transfers as well.
  void Sample(const std::string& job, uint32_t operations);

 private:
  struct Entry {
    WatchedRank who;
    UniqueFd pid_fd;
    std::optional<uint64_t> ended_ns;   // when its end was first observed
    SegmentControl* control = nullptr;  // set while it is connected
    std::optional<TableReader> reader;
    bool read_error_logged = false;
  };

  /// Fills `alive` and `ended_orderly` for a process that no longer runs.
  static void ObserveEnd(Entry& entry, bool reaped, uint64_t now_ns, ObservedRank* observed);

  Mutex mutex_;
  std::map<std::pair<std::string, Rank>, Entry> entries_ HOLDFAST_GUARDED_BY(mutex_);
};

}  // namespace holdfast::agent
