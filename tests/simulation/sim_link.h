#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>

#include "agent/pipeline/coordinator_link.h"
#include "agent/pipeline/report_queue.h"
#include "base/thread.h"
#include "storage/volume/volume.h"
#include "tests/simulation/coordinator_host.h"

namespace holdfast::simulation {

struct World;

/// An agent's connection to the coordinator. It follows GrpcCoordinatorLink, with messages of the
/// simulated network in place of gRPC: one thread attaches and passes directives on, the other
/// sends the reports of the real ReportQueue and repeats them until they are acknowledged.
class SimLink final : public agent::CoordinatorLink {
 public:
  struct Options {
    std::string node;
    uint64_t agent_start = 0;
    uint64_t agent_id = 0;
    SeenLife seen;
  };
  /// `dead` turns true when the agent's process ends: nothing that it does later has an effect.
  SimLink(World& world, Options options, Mailbox& mailbox, std::shared_ptr<bool> dead,
          Volume& volume);
  ~SimLink() override { Stop(); }

  void Start(agent::DirectiveHandler& handler);
  void Stop();
  /// The connection breaks; the coordinator notices it later.
  void Break();

  void Report(StoredReplica report) override;
  void Report(FailedReplica failed) override { reports_.Add(std::move(failed)); }
  void Report(RemovedReplica removed) override;
  void Report(Prepared prepared) override { reports_.Add(std::move(prepared)); }
  void Report(TierWanted wanted) override { reports_.Add(std::move(wanted)); }
  void SetWarnings(std::vector<std::string> warnings) override {
    reports_.SetWarnings(std::move(warnings));
  }
  void SetRanks(std::vector<LocalRank> ranks) override { reports_.SetRanks(std::move(ranks)); }
  void Join(const JoinRequest& request, std::function<void(Result<Incarnation>)> done) override;
  void DecideRestore(const RestoreRequest& request,
                     std::function<void(Result<RestoreDecision>)> done) override;
  void FindPlaces(const std::string& job, VersionId version,
                  std::function<void(Result<VersionPlaces>)> done) override;

 private:
  using Answer = std::function<void(const coord::Reply*)>;  // nullptr: unknown, try again
  /// Sends a call. `send` runs at the coordinator with a request ID and where to answer. `done`
  /// runs once at this agent: with the reply, or with an error.
  void Call(Clock::Duration timeout,
            std::function<void(CoordinatorLife&, coord::RequestId, Answer)> send,
            std::function<void(const coord::Reply*, const Status&)> done);
  /// Ends a call, unless it has ended.
  void Finish(uint64_t call, const coord::Reply* reply, const Status& status);
  void AttachLoop();
  void AttachOnce();
  bool Accept(Epoch epoch, const coord::Directive& directive);
  bool Handle(Epoch epoch, const coord::Directive& directive);
  void SendLoop();
  Status SendBatch(const agent::ReportBatch& batch);
  bool Pause(Clock::Duration time);
  void CloseStream();
  coord::NodeAttached MakeAttach();

  World& world_;
  const Options options_;
  Mailbox& mailbox_;
  const std::shared_ptr<bool> dead_;
  Volume& volume_;
  agent::ReportQueue reports_;
  agent::DirectiveHandler* handler_ = nullptr;
  bool stopping_ = false;
  bool attached_ = false;
  SeenLife seen_;
  SeenLife last_stored_;
  LifeId reported_life_;
  std::shared_ptr<Stream> stream_;
  std::map<uint64_t, std::function<void(const coord::Reply*, const Status&)>> calls_;
  uint64_t next_call_ = 1;
  char changed_ = 0;  // its address wakes the threads
  Thread attach_thread_;
  Thread send_thread_;
};

}  // namespace holdfast::simulation
