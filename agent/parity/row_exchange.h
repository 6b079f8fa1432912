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
#include "storage/base/clock.h"
#include "storage/base/mutex.h"

namespace holdfast::agent {

/// One row of parity on its way from the leader that encodes it to the member that keeps it: a few
/// units, and whoever is ahead waits. Thread-safe.
class RowQueue {
 public:
  /// Waits for room. Once Close()d, its reason.
  Status Push(std::span<const std::byte> unit, Clock::TimePoint deadline);
  /// OK: the row is complete. The first call counts.
  void Close(Status why);
  /// The next unit; empty when the row is complete.
  Result<std::vector<std::byte>> Pop(Clock::TimePoint deadline);

 private:
  Mutex mutex_;
  CondVar changed_;
  std::deque<std::vector<std::byte>> units_ HOLDFAST_GUARDED_BY(mutex_);
  bool closed_ HOLDFAST_GUARDED_BY(mutex_) = false;
  Status why_ HOLDFAST_GUARDED_BY(mutex_);
};

/// Where leaders leave rows and followers find them, whoever comes first. Thread-safe.
class RowExchange {
 public:
  /// The row's queue; made by the first of the two that asks.
  std::shared_ptr<RowQueue> Find(const PeerRequest& request);
  /// Closes and forgets every row of the version.
  void Drop(const std::string& job, VersionId version, const Status& why);
  /// Serves PeerRequestKind::kParityRow; reads go forward, in the leader's units.
  Result<std::unique_ptr<PeerReader>> Open(const PeerRequest& request);

 private:
  using Key = std::tuple<std::string, VersionId, uint32_t, uint32_t>;  // stripe, parity
  Mutex mutex_;
  std::map<Key, std::shared_ptr<RowQueue>> rows_ HOLDFAST_GUARDED_BY(mutex_);
};

}  // namespace holdfast::agent
