#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>

#include "base/clock.h"
#include "base/mutex.h"
#include "base/thread.h"
#include "coordinator/restart/supervisor.h"
#include "coordinator/state/state.h"

namespace holdfast::coord {

/// A copy of the applier's state after a batch whose effects are stored. Never changed.
struct Snapshot {
  State state;
  Supervisor supervisor;
  Epoch epoch;
  /// Whether this coordinator still has the store. Threads: any, also after the store is closed.
  std::function<bool()> held;
};

/// Answers queries on a separate thread from the newest snapshot, so that no query delays a
/// commit and no slow write to the store delays a query.
///
/// A query reads a snapshot that was taken after the query was submitted: a caller sees what it
/// changed before. When the applier publishes none within kPatience, since it waits for its store,
/// the query reads the newest one, which is older. Queries are answered in their order. Threads:
/// any.
class Reads {
 public:
  /// Receives the state, or nullptr while none is loaded.
  using StateQuery = std::function<void(const State*, Epoch)>;
  using SupervisorQuery = std::function<void(const Supervisor*)>;

  /// Queries that may wait; more are refused.
  static constexpr size_t kWaitingMax = 1024;
  static constexpr std::chrono::milliseconds kPatience{200};
  /// When a caller whose query was refused should try again.
  static constexpr std::chrono::milliseconds kRetryAfter{100};

  /// `ask` makes the applier publish a snapshot soon. Called without a lock of this class.
  Reads(Clock& clock, std::function<void()> ask);
  ~Reads() { Stop(); }

  /// Return false, without calling the query, when kWaitingMax queries wait already.
  bool Submit(StateQuery query);
  bool Submit(SupervisorQuery query);

  // ---- for the applier ----
  /// Returns the number of the last query; pass it to Publish() with a snapshot taken afterwards.
  uint64_t asked();
  void Publish(std::shared_ptr<const Snapshot> snapshot, uint64_t covers);
  /// No query is answered from an earlier snapshot any more, except one that is being answered.
  void Withdraw();
  /// Answers all waiting queries, and all later ones, with nullptr.
  void Stop();

 private:
  struct Query {
    uint64_t number = 0;
    Clock::TimePoint patience_ends;
    StateQuery state;
    SupervisorQuery supervisor;
  };
  bool Submit(Query query);
  void Run();
  /// Whether the first query can be answered now.
  bool IsDue() HOLDFAST_REQUIRES(mutex_);
  static void Answer(const Query& query, const Snapshot* snapshot);

  Clock& clock_;
  const std::function<void()> ask_;
  Mutex mutex_;
  CondVar changed_;
  std::deque<Query> waiting_ HOLDFAST_GUARDED_BY(mutex_);
  uint64_t asked_ HOLDFAST_GUARDED_BY(mutex_) = 0;
  std::shared_ptr<const Snapshot> snapshot_ HOLDFAST_GUARDED_BY(mutex_);
  uint64_t covers_ HOLDFAST_GUARDED_BY(mutex_) = 0;  // last query that was asked before snapshot_
  bool stopping_ HOLDFAST_GUARDED_BY(mutex_) = false;
  Thread thread_;
};

}  // namespace holdfast::coord
