#pragma once

#include <deque>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "agent/pipeline/coordinator_link.h"
#include "storage/base/mutex.h"

namespace holdfast::agent {

/// Facts for one report.
struct FactBatch {
  std::vector<Holding> holdings;
  std::vector<Missing> missing;
  std::vector<Gone> gone;
  std::vector<Prepared> prepared;
  std::vector<TierWanted> wanted;
  std::vector<std::string> warnings;  // always all of them
  std::vector<LocalRank> ranks;       // likewise
  bool empty() const {
    return holdings.empty() && missing.empty() && gone.empty() && prepared.empty();
  }
};

/// Everything this node holds and what the coordinator has yet to hear of it. A fact is pending
/// until the batch that carries it is acknowledged; what contradicts a pending fact replaces it, so
/// the book stays bounded by what is held, however long the coordinator is away. Thread-safe.
class FactBook {
 public:
  void Add(Holding holding);
  void Add(Missing missing);
  void Add(Gone gone);
  void Add(Prepared prepared);
  void Add(TierWanted wanted);
  void SetWarnings(std::vector<std::string> warnings);
  void SetRanks(std::vector<LocalRank> ranks);

  /// Waits up to `timeout_ms` until something is pending.
  bool AwaitPending(int timeout_ms);
  /// Wakes AwaitPending once.
  void Wake();
  /// Pending facts, oldest first, now under way. Give them back with Return() when they were not
  /// acknowledged.
  FactBatch Take();
  void Return(FactBatch batch);
  /// For (re)attaching: all holdings. The coordinator replaces what it knew by them, so no holding
  /// or disappearance is pending afterwards.
  FactBatch Inventory();

 private:
  using Place = std::pair<ShardKey, Tier>;
  void AddPending(const Place& place) HOLDFAST_REQUIRES(mutex_);
  void ForgetPending(const Place& place) HOLDFAST_REQUIRES(mutex_);
  bool HasPending() const HOLDFAST_REQUIRES(mutex_);

  Mutex mutex_;
  CondVar changed_;
  std::map<Place, Holding> held_ HOLDFAST_GUARDED_BY(mutex_);
  std::deque<Place> pending_holdings_ HOLDFAST_GUARDED_BY(mutex_);
  std::deque<Missing> missing_ HOLDFAST_GUARDED_BY(mutex_);
  std::deque<Gone> gone_ HOLDFAST_GUARDED_BY(mutex_);
  std::deque<Prepared> prepared_ HOLDFAST_GUARDED_BY(mutex_);
  std::deque<TierWanted> wanted_ HOLDFAST_GUARDED_BY(mutex_);
  std::vector<std::string> warnings_ HOLDFAST_GUARDED_BY(mutex_);
  std::vector<LocalRank> ranks_ HOLDFAST_GUARDED_BY(mutex_);
  bool urgent_ HOLDFAST_GUARDED_BY(mutex_) = false;  // woken, or warnings or ranks changed
};

}  // namespace holdfast::agent
