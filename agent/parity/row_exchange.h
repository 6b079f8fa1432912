#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "agent/peers/transport.h"
#include "base/clock.h"
#include "base/mutex.h"

namespace holdfast::agent {

/// A queue of a few units that passes one row of parity from the leader that encodes it to the
/// member that keeps it. The faster side waits. Thread-safe.
class RowQueue {
 public:
  /// Appends a unit; blocks while the queue is full. Once the queue is closed, returns the reason
  /// given to Close().
  Status Push(std::span<const std::byte> unit, Clock::TimePoint deadline);
  /// Closes the queue; OK: the row is complete. Later calls have no effect.
  void Close(Status why);
  /// Removes and returns the next unit; empty when the row is complete.
  Result<std::vector<std::byte>> Pop(Clock::TimePoint deadline);

 private:
  Mutex mutex_;
  CondVar changed_;
  std::deque<std::vector<std::byte>> units_ HOLDFAST_GUARDED_BY(mutex_);
  bool closed_ HOLDFAST_GUARDED_BY(mutex_) = false;
  Status why_ HOLDFAST_GUARDED_BY(mutex_);
};

/// The rows of a node: leaders write them, followers read them, in any order of arrival.
/// Thread-safe.
class RowExchange {
 public:
  /// Returns the row's queue, which the first caller creates; null when there are too many rows.
  std::shared_ptr<RowQueue> Find(const PeerRequest& request);
  /// Closes and removes every row of the version.
  void Drop(const std::string& job, VersionId version, const Status& why);
  /// Serves PeerRequestKind::kParityRow. Reads must go forward, in the leader's units.
  Result<std::unique_ptr<PeerReader>> Open(const PeerRequest& request);

 private:
  using Key = std::tuple<std::string, VersionId, uint32_t, uint32_t>;  // stripe, parity
  Mutex mutex_;
  std::map<Key, std::shared_ptr<RowQueue>> rows_ HOLDFAST_GUARDED_BY(mutex_);
};

}  // namespace holdfast::agent
