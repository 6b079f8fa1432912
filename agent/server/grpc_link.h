#pragma once

#include <grpcpp/grpcpp.h>

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>

#include "agent/pipeline/coordinator_link.h"
#include "agent/pipeline/fact_book.h"
#include "agent/workers/manager.h"
#include "coordinator/api/channel.h"
#include "coordinator/api/coordinator.grpc.pb.h"
#include "storage/base/clock.h"
#include "storage/base/mutex.h"
#include "storage/volume/seen_life.h"

namespace holdfast::agent {

struct GrpcLinkOptions {
  std::string cluster;
  std::string node;
  uint64_t agent_start = 0;  // later starts have higher numbers
  uint64_t agent_id = 0;     // the same for all starts; 0: not known
  std::function<uint32_t()> disk_free_percent;
  std::function<std::string()> peer_address = [] { return std::string(); };  // empty: takes no part
  std::map<std::string, std::string> labels;  // where the node is: rack, switch
  uint64_t disk_every = 0;                    // steps divisible by this are written; 0: every one
  int64_t heartbeat_ms = 500;
  /// Empty: this node launches no workers, and the two below are not called.
  std::string worker_address;
  std::function<std::vector<WorkerStatus>()> workers;
  std::function<void(WorkersWanted)> want_workers;
  /// The life of the coordinator's store and the highest epoch of it that were seen before.
  SeenLife seen;
  /// Keeps them durably; called before anything of a new life or epoch is obeyed.
  std::function<Status(const SeenLife&)> remember = [](const SeenLife&) { return Status::Ok(); };
};

/// The conversation with the coordinator. One thread keeps an Attach stream open (again after
/// 100 ms to 1 s when it breaks; each time with everything the node holds) and hands directives on;
/// one sends facts the moment they are there, and a heartbeat otherwise, and repeats each batch
/// until it is acknowledged. A coordinator of an older epoch than one already seen is not obeyed.
class GrpcCoordinatorLink final : public CoordinatorLink {
 public:
  GrpcCoordinatorLink(GrpcLinkOptions options, std::shared_ptr<grpc::Channel> channel);
  ~GrpcCoordinatorLink() override;

  /// Begins to attach. `handler` gets the directives until Stop() returns.
  void Start(DirectiveHandler& handler, const std::string& data_address);
  /// Ends everything; calls under way end as Cancelled, and none is called back afterwards.
  void Stop();
  /// Waits until the coordinator has answered an Attach. False: not within the time.
  bool AwaitAttached(int64_t timeout_ms);
  bool attached();
  /// Tells what the node's ranks and GPUs do, once; returns what is to be sampled. Blocks up to a
  /// second. Unavailable while not attached.
  Result<coordinator::ObserveReply> Observe(coordinator::ObserveRequest request);
  /// Something changed that a report tells of: the next one goes at once.
  void Hurry() { facts_.Wake(); }

  void Report(Holding holding) override { facts_.Add(std::move(holding)); }
  void Report(Missing missing) override { facts_.Add(std::move(missing)); }
  void Report(Gone gone) override { facts_.Add(std::move(gone)); }
  void Report(Prepared prepared) override { facts_.Add(std::move(prepared)); }
  void SetWarnings(std::vector<std::string> warnings) override {
    facts_.SetWarnings(std::move(warnings));
  }
  void SetRanks(std::vector<LocalRank> ranks) override { facts_.SetRanks(std::move(ranks)); }
  void Report(TierWanted wanted) override { facts_.Add(std::move(wanted)); }
  void Join(const JoinQuestion& question, std::function<void(Result<Incarnation>)> done) override;
  void DecideRestore(const RestoreQuestion& question,
                     std::function<void(Result<RestoreDecision>)> done) override;
  void FindPlaces(const std::string& job, VersionId version,
                  std::function<void(Result<VersionPlaces>)> done) override;

 private:
  void AttachLoop();
  Status AttachOnce();
  /// Takes the life and epoch of a directive. False: an older coordinator's.
  bool Follow(const coordinator::Directive& directive, bool* first);
  /// False: the stream is to be given up.
  bool Handle(const coordinator::Directive& directive);
  void SendLoop();
  /// Waits until attached; false when stopping. A coordinator without directives for this node says
  /// nothing on the stream: then it is asked which epoch it is.
  bool AwaitAttachedToSend();
  void AskEpoch();
  Status SendBatch(const FactBatch& batch);
  /// Fills the workers of an AttachRequest or a ReportRequest.
  template <typename Request>
  void AddWorkers(Request* request) const;
  bool Pause(int64_t ms);
  /// Registers a call so that Stop() can cancel it; false when stopping.
  bool BeginCall(grpc::ClientContext* context);
  void EndCall(grpc::ClientContext* context);

  GrpcLinkOptions options_;
  std::shared_ptr<grpc::Channel> channel_;  // gRPC's own ownership model
  std::unique_ptr<coordinator::Coordinator::Stub> stub_;
  FactBook facts_;
  DirectiveHandler* handler_ = nullptr;
  std::string data_address_;

  Mutex mutex_;
  CondVar changed_;
  bool stopping_ HOLDFAST_GUARDED_BY(mutex_) = false;
  bool attached_ HOLDFAST_GUARDED_BY(mutex_) = false;
  SeenLife seen_ HOLDFAST_GUARDED_BY(mutex_);
  SeenLife kept_;  // by options_.remember; the attach thread's, like the next
  LifeId told_;    // to the handler
  grpc::ClientContext* stream_ HOLDFAST_GUARDED_BY(mutex_) = nullptr;
  Clock::TimePoint stream_since_ HOLDFAST_GUARDED_BY(mutex_);
  std::set<grpc::ClientContext*> calls_ HOLDFAST_GUARDED_BY(mutex_);

  std::thread attach_thread_;
  std::thread send_thread_;
};

}  // namespace holdfast::agent
