#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "agent/telemetry/table_reader.h"
#include "storage/base/fd.h"
#include "storage/base/ids.h"
#include "storage/base/mutex.h"
#include "storage/base/process.h"

namespace holdfast::agent {

struct WatchedRank {
  std::string job;
  Rank rank;
  uint32_t world = 0;
  Incarnation incarnation;
  ProcessName process;
};

/// One look at a trainer.
struct RankSight {
  WatchedRank who;
  bool alive = true;
  bool ended_orderly = false;  // with exit code 0, by SIGTERM or SIGINT: somebody wanted that
  char process_state = 0;
  RankTelemetry telemetry;  // not present: it is not connected, or tells nothing
};

/// The trainers of this node and what can be seen of them from outside. A process that ended
/// without a goodbye stays in sight, as dead, until its rank is taken by another or its job goes on
/// to a newer incarnation. Thread-safe.
class WatchedRanks {
 public:
  /// `pid_fd` is the process's. `control` stays mapped until Leave().
  void Join(const WatchedRank& who, UniqueFd pid_fd, SegmentControl& control);
  /// Its memory may go from here on. `orderly`: it said goodbye, nobody misses it.
  void Leave(const std::string& job, Rank rank, bool orderly);
  /// Looks at all of them; `now_ns` is CLOCK_MONOTONIC.
  std::vector<RankSight> Look(uint64_t now_ns);
  /// The process that runs a rank, or did last.
  std::optional<ProcessName> ProcessOf(const std::string& job, Rank rank);
  /// Asks the ranks of a job to tell of their next operations' transfers, too.
  void Sample(const std::string& job, uint32_t operations);

 private:
  struct Entry {
    WatchedRank who;
    UniqueFd pid_fd;
    std::optional<uint64_t> ended_ns;  // when its end was seen first
    SegmentControl* control = nullptr;  // while it is connected
    std::optional<TableReader> reader;
    bool complained = false;
  };

  static void SeeEnd(Entry& entry, bool reaped, uint64_t now_ns, RankSight* sight);

  Mutex mutex_;
  std::map<std::pair<std::string, Rank>, Entry> entries_ HOLDFAST_GUARDED_BY(mutex_);
};

}  // namespace holdfast::agent
