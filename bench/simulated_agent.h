#pragma once

#include <grpcpp/grpcpp.h>

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>

#include "base/endpoint.h"
#include "base/ids.h"
#include "base/tiers.h"
#include "coordinator/api/coordinator.grpc.pb.h"

namespace holdfast::bench {

/// The job of the simulated ranks.
inline constexpr char kLoadJob[] = "load";

/// Receives what happens to the simulated agents. Threads: gRPC's; the calls may overlap.
class LoadObserver {
 public:
  virtual ~LoadObserver() = default;
  virtual void OnAttached() = 0;
  virtual void OnDetached() = 0;
  virtual void OnJoined() = 0;
  /// The agent received the commit of this step at tier memory.
  virtual void OnCommitted(uint64_t step) = 0;
  /// The agent sent the report of this step for the first time.
  virtual void OnReportSent(uint64_t step) = 0;
  virtual void OnRefused(const std::string& what) = 0;
};

/// One agent's conversation with a coordinator, over its own connection: Attach with the complete
/// inventory, Join of each rank, batched reports of replicas in memory, heartbeats and telemetry.
/// Behaves like GrpcCoordinatorLink, but has no thread: gRPC's callbacks and Turn() advance it.
/// Thread-safe.
class SimulatedAgent {
 public:
  using Clock = std::chrono::steady_clock;

  /// `observer` outlives the agent. The node has the ranks from `first_rank` on.
  SimulatedAgent(const Endpoint& endpoint, uint32_t number, uint32_t first_rank, uint32_t ranks,
                 uint32_t world, LoadObserver& observer);
  /// Ends all calls and waits for them.
  ~SimulatedAgent();
  SimulatedAgent(const SimulatedAgent&) = delete;
  SimulatedAgent& operator=(const SimulatedAgent&) = delete;

  /// Begins what is due: attach again, a pending report, a heartbeat. Call every few milliseconds.
  void Turn(Clock::time_point now);
  /// Begins a Join of every rank. A Join that fails is repeated by later Turn() calls.
  void JoinRanks();
  /// All ranks of the node have saved this step. Memory frees the steps before it once it is
  /// committed, and disk gets it then, until the coordinator removes it there.
  void Save(uint64_t step);
  /// Makes one telemetry digest of all ranks. Sends it with those before it, unless the coordinator
  /// asked for a longer pause between messages. Returns whether a message was sent.
  bool Observe(uint64_t number, uint64_t step);

 private:
  class Stream;
  using Place = std::pair<uint64_t, Tier>;  // a step, and where this node has it
  using Places = std::set<Place>;
  template <typename Request, typename Reply>
  struct Call;

  void Attach();
  void Join(uint32_t rank);
  /// Sends the pending reports, or an empty heartbeat.
  void Report();
  void OnDirective(const coordinator::Directive& directive);
  void OnStreamEnd(const grpc::Status& status);
  void OnReportDone(const Places& stored, const Places& removed, const grpc::Status& sent,
                    const coordinator::ReportReply& reply);
  // Call these with the lock.
  void Add(Place place);
  void Remove(Place place);
  void OnCommit(uint64_t step);
  void AddDigest(uint64_t number, uint64_t step);
  void AddReplicas(Place place,
                   google::protobuf::RepeatedPtrField<coordinator::StoredReplica>* to) const;
  void EndCall();

  const std::string node_;
  const uint64_t start_;
  const uint32_t first_rank_;
  const uint32_t ranks_;
  const uint32_t world_;
  LoadObserver& observer_;
  std::unique_ptr<coordinator::Coordinator::Stub> stub_;

  std::mutex mutex_;
  std::condition_variable idle_;
  uint32_t calls_ = 0;  // in progress, with the stream
  bool stopping_ = false;
  Stream* stream_ = nullptr;  // gRPC's reactor, which deletes itself
  bool attached_ = false;
  uint64_t epoch_ = 0;
  uint64_t incarnation_ = 0;
  std::set<uint32_t> to_join_;
  bool reporting_ = false;
  coordinator::ObserveRequest telemetry_;  // not sent yet
  Clock::duration observe_pause_{};
  Clock::time_point observe_at_;
  Places held_;
  Places stored_;           // reports without an acknowledgement
  Places removed_;          // likewise
  uint64_t saved_ = 0;      // newest step in memory
  uint64_t sent_ = 0;       // newest step whose report was sent at least once
  uint64_t committed_ = 0;  // newest step
  std::chrono::milliseconds attach_wait_{100};
  Clock::time_point attach_at_;
  Clock::time_point report_at_;
};

}  // namespace holdfast::bench
