#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "coordinator/restart/supervisor.h"
#include "coordinator/server/attendance.h"
#include "coordinator/state/state.h"
#include "coordinator/store/catalog.h"
#include "storage/base/clock.h"
#include "storage/base/mutex.h"

namespace holdfast::coord {

/// Takes directives to one attached node. Threads: called by the applier alone.
class DirectiveSink {
 public:
  virtual ~DirectiveSink() = default;
  virtual void Push(Epoch epoch, const Directive& directive) = 0;
  /// No more directives; OK ends the stream in order.
  virtual void Close(const Status& why) = 0;
};

/// The one writer. Events queue up; its thread applies all that are waiting, stores what they
/// decided in one synced write, and only then answers and sends. If the write fails, its outcome is
/// unknown: the state is dropped, everything waiting is told to try again, every stream is closed,
/// and state is loaded anew from the store. Threads: Submit, Ask and Stop from any.
class Applier {
 public:
  using StoreOpener = std::function<Result<std::unique_ptr<MetaStore>>()>;
  /// Gets the answer, or nullptr when the outcome is unknown: try again.
  using ReplyHandler = std::function<void(const Reply*)>;
  /// Gets what is known between two batches, or nullptr while nothing is.
  using Query = std::function<void(const State*, Epoch)>;
  using RestartAsker = std::function<void(const IncidentRecord&)>;
  using RunQuery = std::function<void(const Supervisor*)>;

  /// Opens the store and takes an epoch; `clock` outlives the applier. `restart` is called for a
  /// job that those who launched it have to start again.
  static Result<std::unique_ptr<Applier>> Start(std::string cluster, StateOptions options,
                                                SupervisorOptions runs, StoreOpener opener,
                                                Clock& clock, RestartAsker restart = nullptr);
  ~Applier();

  /// A number for a request or a stream, never given twice.
  uint64_t NextId() { return next_id_.fetch_add(1); }
  void Submit(Event event, RequestId request = 0, ReplyHandler handler = nullptr);
  void Submit(RunEvent event, RequestId request = 0, ReplyHandler handler = nullptr);
  /// The sink is kept until it was closed. shared_ptr: gRPC's reactor owns the same object until
  /// the call is over, which may be earlier or later.
  void Attach(NodeAttached event, std::shared_ptr<DirectiveSink> sink);
  void Ask(Query query);
  void Ask(RunQuery query);
  const Attendance& attendance() const { return attendance_; }
  /// Ends the thread, failing what still waits and closing every stream.
  void Stop();
  Epoch epoch() const { return Epoch{epoch_.load()}; }

 private:
  struct Work {
    std::optional<Event> event;
    std::optional<RunEvent> run_event;
    RequestId request = 0;
    ReplyHandler handler;
    AttachId attach = 0;
    std::shared_ptr<DirectiveSink> sink;
    Query query;
    RunQuery run_query;
  };

  Applier(std::string cluster, StateOptions options, SupervisorOptions runs, StoreOpener opener,
          Clock& clock, RestartAsker restart);
  /// Takes the time for a batch.
  void Wake();
  Status Load();
  void Run();
  std::vector<Work> Take();
  void Register(Work& work);
  void ApplyBatch(std::vector<Work>& batch);
  void Apply(const Event& event, std::vector<Effect>& effects);
  void AnswerQueries(Work& work, bool stopping);
  void TellOfRuns(std::vector<Effect>& effects);
  Status StoreBatch(const std::vector<Effect>& effects);
  void Deliver(const std::vector<Effect>& effects);
  void CloseSink(AttachId attach, const Status& why);
  void DropEverything(const Status& why);
  void Enqueue(Work work);

  const std::string cluster_;
  StateOptions options_;
  SupervisorOptions run_options_;
  const StoreOpener opener_;
  const RestartAsker ask_restart_;
  Clock& clock_;
  const std::chrono::nanoseconds tick_;
  std::atomic<uint64_t> next_id_{1};
  std::atomic<uint64_t> epoch_{0};
  Attendance attendance_;

  Mutex mutex_;
  CondVar wake_;
  std::vector<Work> queue_ HOLDFAST_GUARDED_BY(mutex_);
  bool stopping_ HOLDFAST_GUARDED_BY(mutex_) = false;

  // Only the applier's thread, once it runs.
  std::unique_ptr<Catalog> catalog_;
  std::optional<State> state_;
  std::optional<Supervisor> supervisor_;  // there with state_
  std::map<RequestId, ReplyHandler> handlers_;
  std::map<AttachId, std::shared_ptr<DirectiveSink>> sinks_;
  /// The time of the batch, for all that it applies. Time in which this thread did not run is left
  /// out of it: nobody is blamed for what was not heard meanwhile.
  Instant at_;
  Clock::TimePoint woke_;
  Clock::Duration stood_still_{0};  // in all
  bool resumed_ = false;            // it stood still just before this batch
  Clock::TimePoint ticked_;
  Clock::TimePoint load_again_at_;

  std::thread thread_;
};

}  // namespace holdfast::coord
