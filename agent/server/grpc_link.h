#pragma once

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>

#include "agent/pipeline/coordinator_link.h"
#include "agent/pipeline/report_queue.h"
#include "agent/server/clock_warning.h"
#include "agent/workers/manager.h"
#include "base/clock.h"
#include "base/mutex.h"
#include "coordinator/api/coordinator.grpc.pb.h"
#include "coordinator/api/job_owners.h"
#include "coordinator/api/leader_channel.h"
#include "storage/volume/seen_life.h"

namespace holdfast::agent {

class SelfTester;

struct GrpcLinkOptions {
  std::string cluster;
  std::string node;
  uint64_t agent_start = 0;  // later starts have higher numbers
  uint64_t agent_id = 0;     // the same for all starts; 0: unknown
  std::function<uint32_t()> disk_free_percent;
  std::function<ArenaUse()> arena_use;
  std::function<std::string()> peer_address = [] { return std::string(); };
  bool no_parity = false;                     // the node takes part in no parity group
  std::map<std::string, std::string> labels;  // location of the node: rack, switch
  uint32_t shared_tiers = 0;                  // mask of TierBit that the node reaches
  uint64_t disk_every = 0;                    // steps divisible by it go to disk; 0: all
  int64_t heartbeat_ms = 500;  // at least; a coordinator of many agents asks for a longer pause
  /// How long the agent stays away from a relay earlier in its list that serves again, on average;
  /// 0: until the current address fails.
  int64_t relay_return_ms = 60'000;
  /// Empty: this node launches no workers, and the next two functions are not called.
  std::string worker_address;
  std::function<std::vector<WorkerState>()> workers;
  std::function<void(SetWorkers)> set_workers;
  /// Gets the owners of the node's jobs as the coordinator reports them; may be null.
  coord::JobOwners* owners = nullptr;
  /// Runs the self-tests that replies of the coordinator name; may be null.
  SelfTester* self_tester = nullptr;
  /// The life of the coordinator's store and its highest epoch that this agent saw before this
  /// start.
  SeenLife seen;
  /// Stores both durably. Called before any directive of a new life or epoch takes effect.
  std::function<Status(const SeenLife&)> store_seen = [](const SeenLife&) { return Status::Ok(); };
};

/// The connection to the coordinator that leads, with two threads, and a third one where there are
/// several coordinators. One thread keeps an Attach stream open and
/// passes directives on. It reopens a broken stream after 100 ms to 1 s, and sends the node's full
/// inventory each time. The other thread sends reports as soon as they exist, and otherwise
/// heartbeats. It repeats each batch until the coordinator acknowledges the batch. Directives of a
/// coordinator with an older epoch than one already seen are ignored. The third thread asks the
/// other coordinators who leads while the current one does not answer: a stopped process keeps its
/// connections. It also returns to a relay earlier in the list that serves again.
class GrpcCoordinatorLink final : public CoordinatorLink {
 public:
  /// `clock` outlives the link.
  GrpcCoordinatorLink(GrpcLinkOptions options, std::unique_ptr<coord::LeaderChannel> coordinators,
                      const Clock& clock);
  ~GrpcCoordinatorLink() override;

  /// Starts to attach. `handler` gets the directives until Stop() returns.
  void Start(DirectiveHandler& handler, const std::string& data_address);
  /// Stops both threads. Pending calls end as Cancelled, and no callback runs after Stop() has
  /// returned.
  void Stop();
  /// Blocks until the coordinator has answered an Attach. Returns false after the timeout.
  bool AwaitAttached(int64_t timeout_ms);
  bool attached();
  /// Sends the telemetry of the node's ranks and GPUs once; returns the ranks to sample. Blocks up
  /// to one second. Unavailable while not attached.
  Result<coordinator::ObserveReply> Observe(coordinator::ObserveRequest request);
  /// Sends the next report without delay. Call it after a change of the workers, which each report
  /// lists.
  void ReportNow() { reports_.Wake(); }

  void Report(StoredReplica report) override { reports_.Add(std::move(report)); }
  void Report(FailedReplica failed) override { reports_.Add(std::move(failed)); }
  void Report(RemovedReplica removed) override { reports_.Add(std::move(removed)); }
  void Report(Prepared prepared) override { reports_.Add(std::move(prepared)); }
  void SetWarnings(std::vector<std::string> warnings) override;
  /// Replaces the warnings about the agent's process and host, which precede those of SetWarnings.
  void SetHostWarnings(std::vector<std::string> warnings);
  void SetRanks(std::vector<LocalRank> ranks) override {
    node_ticks_.fetch_add(1, std::memory_order_relaxed);
    reports_.SetRanks(std::move(ranks));
  }
  /// Returns how often the node's loop has ticked: the loop calls SetRanks() at each tick.
  uint64_t node_ticks() const { return node_ticks_.load(std::memory_order_relaxed); }
  void SetKnownCommits(std::vector<VersionCommit> commits) override {
    reports_.SetCommits(std::move(commits));
  }
  void Report(TierWanted wanted) override { reports_.Add(std::move(wanted)); }
  void AnnounceDeparture() override {
    departing_.store(true);
    reports_.Wake();
  }
  bool IsAttached() override { return attached(); }
  void Join(const JoinRequest& request, std::function<void(Result<Incarnation>)> done) override;
  void DecideRestore(const RestoreRequest& request,
                     std::function<void(Result<RestoreDecision>)> done) override;
  void FindPlaces(const std::string& job, VersionId version,
                  std::function<void(Result<VersionPlaces>)> done) override;

 private:
  void AttachLoop();
  Status AttachOnce();
  /// Ok: the current coordinator leads. Otherwise goes on to another one.
  Status FindLeader();
  void SearchLoop();
  /// While a call to the current coordinator is silent, searches the others for a new leader. When
  /// the current one is a relay that does not answer at all, any way to the leader will do.
  void SearchLeader();
  /// From time to time, attaches through a relay earlier in the list that has the leader again.
  void ReturnToRelay();
  struct Leading {
    LifeId life;
    Epoch epoch;
    bool relay = false;  // a relay answered for the coordinator
  };
  /// Returns the life and epoch of a coordinator, if it leads.
  std::optional<Leading> AskWhetherItLeads(size_t coordinator, grpc::ClientContext* context,
                                           int64_t timeout_ms);
  /// Goes on to another coordinator, and ends all calls to the current one.
  void Switch(size_t coordinator);
  /// Records the life and epoch of a directive. Returns false for an older epoch.
  bool AcceptEpoch(const coordinator::Directive& directive, bool* first);
  /// Returns false when the stream must be closed.
  bool Handle(const coordinator::Directive& directive);
  void SendLoop();
  /// Blocks until attached, and returns the coordinator; nothing when stopping. A coordinator
  /// without directives for this node sends nothing on the stream; QueryEpoch() then requests its
  /// epoch.
  std::optional<size_t> AwaitAttachedToSend();
  /// Ends the stream, so that the next one brings the complete inventory. `planned`: not because of
  /// an error.
  void AttachAgain(bool planned = false);
  void QueryEpoch();
  Status SendBatch(const ReportBatch& batch, size_t coordinator);
  /// Fills the workers of an AttachRequest or a ReportRequest.
  template <typename Request>
  void AddWorkers(Request* request) const;
  void ReportWarnings() HOLDFAST_REQUIRES(warnings_mutex_);
  bool Pause(int64_t ms);
  /// Registers a call, so that Stop() can cancel it. Returns false when stopping.
  bool BeginCall(grpc::ClientContext* context);
  void EndCall(grpc::ClientContext* context);
  /// Mark the time in which an answer of the current coordinator is due.
  void BeginAsking();
  void EndAsking();

  GrpcLinkOptions options_;
  const std::unique_ptr<coord::LeaderChannel> coordinators_;
  const Clock& clock_;
  ReportQueue reports_;
  DirectiveHandler* handler_ = nullptr;
  std::string data_address_;
  std::atomic<uint64_t> node_ticks_{0};
  std::atomic<bool> departing_{false};

  Mutex warnings_mutex_;
  std::vector<std::string> host_warnings_ HOLDFAST_GUARDED_BY(warnings_mutex_);
  ClockWarning clock_warning_ HOLDFAST_GUARDED_BY(warnings_mutex_);
  std::vector<std::string> node_warnings_ HOLDFAST_GUARDED_BY(warnings_mutex_);

  Mutex mutex_;
  CondVar changed_;
  bool stopping_ HOLDFAST_GUARDED_BY(mutex_) = false;
  bool attached_ HOLDFAST_GUARDED_BY(mutex_) = false;
  bool planned_ HOLDFAST_GUARDED_BY(mutex_) = false;  // the stream ends without an error
  SeenLife seen_ HOLDFAST_GUARDED_BY(mutex_);
  // Only the attach thread uses these three.
  SeenLife last_stored_;  // last value passed to options_.store_seen
  LifeId reported_life_;  // last life passed to the handler
  size_t strangers_ = 0;  // leaders in a row of another life than the one that this agent follows
  // Only the search thread uses these two.
  size_t away_at_ = 0;  // the address at which return_at_ was set
  Clock::TimePoint return_at_;
  grpc::ClientContext* stream_ HOLDFAST_GUARDED_BY(mutex_) = nullptr;
  size_t stream_at_ HOLDFAST_GUARDED_BY(mutex_) = 0;  // the coordinator of the stream
  Clock::TimePoint stream_since_ HOLDFAST_GUARDED_BY(mutex_);
  std::set<grpc::ClientContext*> calls_ HOLDFAST_GUARDED_BY(mutex_);
  /// Start of the report or query that the current coordinator has not answered.
  std::optional<Clock::TimePoint> asked_since_ HOLDFAST_GUARDED_BY(mutex_);

  int64_t heartbeat_pause_ms_;  // of send_thread_
  std::thread attach_thread_;
  std::thread send_thread_;
  std::thread search_thread_;  // with several coordinators
};

}  // namespace holdfast::agent
