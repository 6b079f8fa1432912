#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/invariant.h"
#include "base/mutex.h"
#include "base/thread.h"
#include "coordinator/contract/pace.h"
#include "coordinator/restart/supervisor.h"
#include "coordinator/server/attendance.h"
#include "coordinator/server/owner_table.h"
#include "coordinator/server/reads.h"
#include "coordinator/server/self_test_orders.h"
#include "coordinator/state/state.h"
#include "coordinator/store/catalog.h"

namespace holdfast::coord {

/// Sends directives to one attached node. Threads: only the applier's.
class DirectiveSink {
 public:
  virtual ~DirectiveSink() = default;
  virtual void Push(Epoch epoch, const Directive& directive) = 0;
  /// Ends the stream with the status `why`; OK is an orderly end. No directive follows.
  virtual void Close(const Status& why) = 0;
};

/// The single writer. Its thread applies all queued events as a batch and stores their effects in
/// one synced write; only then does it send replies and directives. If the write fails, its outcome
/// is unknown: the applier drops the state, ends all waiting calls so that they are tried again,
/// closes every stream, and loads the state from the store again.
///
/// Once an invariant is violated, the state in memory may be wrong. The applier then stores nothing
/// more: it refuses events, closes the streams, and answers queries from what the store has. Only a
/// new process applies events again.
///
/// Queries read a snapshot of the state, on the thread of Reads. The applier copies its state for
/// them after a batch when a query waits, and otherwise once a second, and spends at most a tenth
/// of its time on the copies. Threads: any may call Submit, Attach, Query and Stop.
class Applier {
 public:
  using StoreOpener = std::function<Result<std::unique_ptr<MetaStore>>()>;
  /// Receives the reply, or nullptr if the outcome is unknown and the caller should try again.
  using ReplyHandler = std::function<void(const Reply*)>;
  using StateQuery = Reads::StateQuery;
  using RestartHandler = std::function<void(const IncidentRecord&)>;
  using SupervisorQuery = Reads::SupervisorQuery;

  /// Whether Start() needs the store. On a shared store another coordinator may lead for days.
  enum class Startup { kNeedsStore, kMayStandBy };

  /// Opens the store and takes the next epoch. `clock` outlives the applier. The applier calls
  /// `restart` for each incident whose job needs restart.command. With kMayStandBy, a store that
  /// cannot be opened is tried again until it can; calls fail as Unavailable meanwhile.
  static Result<std::unique_ptr<Applier>> Start(std::string cluster, StateOptions options,
                                                SupervisorOptions runs, StoreOpener opener,
                                                Clock& clock, RestartHandler restart = nullptr,
                                                Startup startup = Startup::kNeedsStore);
  ~Applier();

  /// Returns a unique number for a request or a stream.
  uint64_t NextId() { return next_id_.fetch_add(1); }
  /// Returns the owners of all jobs, as the store has them.
  const JobOwners& job_owners() const { return job_owners_; }
  void Submit(Event event, std::optional<RequestId> request = {}, ReplyHandler handler = nullptr);
  void Submit(RunEvent event, std::optional<RequestId> request = {},
              ReplyHandler handler = nullptr);
  /// Submits the event and keeps the sink until it is closed. A shared_ptr, since gRPC's reactor
  /// owns the same object until the call ends, which may be earlier or later.
  void Attach(NodeAttached event, std::shared_ptr<DirectiveSink> sink);
  /// Keeps a sink that gets no directives until all are closed, as when the state is dropped.
  void Keep(AttachId id, std::shared_ptr<DirectiveSink> sink);
  /// Ends a Keep(), without closing the sink.
  void Release(AttachId id);
  /// Return false, without calling the query, when too many queries wait; see Reads.
  [[nodiscard]] bool Query(StateQuery query) { return reads_->Submit(std::move(query)); }
  [[nodiscard]] bool Query(SupervisorQuery query) { return reads_->Submit(std::move(query)); }
  /// Calls `then` on the applier's thread after its next batch, also while no state is loaded.
  void AfterNextBatch(std::function<void()> then);
  /// Returns how long the batch in progress has taken; 0 between batches.
  std::chrono::nanoseconds busy_for() const;
  /// Describes the violated invariant that stopped the applier; empty while the applier works.
  std::string stopped_why() const { return invariants_.what(); }
  /// Why the store could not be loaded the last time. Empty: it could, or this coordinator stands
  /// by. From any thread.
  std::string why_not_loaded() const {
    MutexLock lock(mutex_);
    return why_not_loaded_;
  }
  const Attendance& attendance() const { return attendance_; }
  /// Can be read at any time, from any thread.
  const SelfTestOrders& self_tests() const { return self_tests_; }
  /// The pause that an agent makes between two heartbeats.
  std::chrono::milliseconds heartbeat_pause() const {
    return HeartbeatPause(attendance_.agents(), options_.node_lease);
  }
  /// Ends the thread, fails all waiting calls and closes every stream.
  void Stop();
  Epoch epoch() const { return Epoch{epoch_.load()}; }

 private:
  struct Work {
    std::optional<Event> event;
    std::optional<RunEvent> run_event;
    std::optional<RequestId> request;  // of the handler
    ReplyHandler handler;
    std::optional<AttachId> attach;  // of the sink, which ends without a new one
    std::shared_ptr<DirectiveSink> sink;
    std::function<void()> then;
  };

  Applier(std::string cluster, StateOptions options, SupervisorOptions runs, StoreOpener opener,
          Clock& clock, RestartHandler restart, Startup startup);
  /// Sets the time of the next batch.
  void UpdateTime();
  Status Load();
  /// Loads the state if there is none and it is time.
  void LoadIfDue();
  /// Discards the state: its coordinator no longer has the store, or a write failed.
  void Drop(const Status& why);
  void Run();
  std::vector<Work> Take();
  void Register(Work& work);
  void ApplyBatch(std::vector<Work>& batch);
  void Apply(const Event& event, std::vector<Effect>& effects);
  void Apply(const RunEvent& event, std::vector<Effect>& effects);
  /// Checks the owner of a job that a process of `uid` opens, and how many jobs the user has.
  Status CheckUser(const std::string& job, uint32_t uid) const;
  /// Publishes a snapshot of the state if one is due; without a state, withdraws the last one.
  void PublishSnapshot();
  void FinishBatch(std::vector<Effect>& effects);
  void ApplyRunChanges(std::vector<Effect>& effects);
  Status StoreBatch(const std::vector<Effect>& effects);
  void Deliver(const std::vector<Effect>& effects);
  void CloseSink(AttachId attach, const Status& why);
  void AbandonClients(const Status& why);
  /// Drops the batch, whose effects were not stored, and replaces the state by what the store has.
  void StopApplying();
  /// Refuses the events of a batch after StopApplying(). Queries are answered.
  void Refuse(std::vector<Work>& batch);
  void Enqueue(Work work);

  const std::string cluster_;
  InvariantMonitor invariants_{"coordinator"};
  StateOptions options_;
  SupervisorOptions run_options_;
  const StoreOpener opener_;
  const RestartHandler run_restart_command_;
  const Startup startup_;
  Clock& clock_;
  const std::chrono::nanoseconds tick_;
  std::atomic<uint64_t> next_id_{1};
  std::atomic<uint64_t> epoch_{0};
  std::atomic<int64_t> batch_began_{0};  // nanoseconds of clock_; 0: between batches
  Attendance attendance_;
  SelfTestOrders self_tests_;
  JobOwners job_owners_;

  mutable Mutex mutex_;
  CondVar wake_;
  std::vector<Work> queue_ HOLDFAST_GUARDED_BY(mutex_);
  bool stopping_ HOLDFAST_GUARDED_BY(mutex_) = false;
  bool snapshot_wanted_ HOLDFAST_GUARDED_BY(mutex_) = false;
  std::string why_not_loaded_ HOLDFAST_GUARDED_BY(mutex_);

  // Once the applier's thread runs, only this thread accesses these members.
  std::unique_ptr<Catalog> catalog_;
  std::optional<State> state_;
  std::optional<Supervisor> supervisor_;  // set exactly when state_ is
  OwnerTable owners_;                     // of state_ and supervisor_
  std::map<RequestId, ReplyHandler> handlers_;
  std::map<AttachId, std::shared_ptr<DirectiveSink>> sinks_;
  /// Time of the batch, for all of its events. It excludes periods in which this thread did not
  /// run, so that no node is blamed for silence in them.
  Instant at_;
  Clock::TimePoint last_wake_;
  Clock::Duration paused_{0};  // total
  bool resumed_ = false;       // a pause ended just before this batch
  Clock::TimePoint last_tick_;
  Clock::TimePoint reload_at_;
  std::string load_error_;  // the last one that was logged
  Clock::TimePoint load_error_at_;
  uint64_t published_ = 0;  // the last query that a snapshot covers
  Clock::TimePoint published_at_;
  Clock::TimePoint publish_not_before_;

  std::unique_ptr<Reads> reads_;
  Thread thread_;
};

}  // namespace holdfast::coord
