#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "agent/pipeline/node.h"
#include "agent/server/digest_batch.h"
#include "agent/server/observation_filter.h"
#include "agent/server/processor_waits.h"
#include "agent/telemetry/gpu_watch.h"
#include "base/mutex.h"
#include "base/status.h"
#include "coordinator/api/coordinator.pb.h"

namespace holdfast::agent {

class GrpcCoordinatorLink;

/// Polls the telemetry of the node's ranks ten times per second and sends it to the coordinator,
/// with errors of the GPUs. A coordinator of many agents gets several polls in one message. While
/// the coordinator is unreachable, the telemetry of ranks is dropped; afterwards the list of
/// communicators is sent again. Runs in its own thread.
class TelemetrySender {
 public:
  /// The arguments must outlive the sender.
  TelemetrySender(Node& node, const GpuWatch& gpus, GrpcCoordinatorLink& link);
  ~TelemetrySender();

  /// Totals since the start.
  struct Counts {
    uint64_t sent = 0;     // digests that the coordinator has accepted
    uint64_t unsent = 0;   // digests that it has not accepted
    uint64_t dropped = 0;  // records that the digests lack: see TelemetryGaps
    uint64_t overwritten = 0;
    uint64_t nonsense = 0;
  };
  Counts counts() const;

  /// Returns one digest for each job among `observations`; `taken_ns` is CLOCK_MONOTONIC.
  static std::vector<coordinator::Digest> DigestsOf(const std::vector<ObservedRank>& observations,
                                                    uint64_t taken_ns, bool with_communicators);

 private:
  void Run();
  void Count(const std::vector<ObservedRank>& observations);
  void MeasureWaits(uint64_t now_ns, std::vector<ObservedRank>* observations);
  void AddReach(const std::vector<ObservedRank>& observations, uint64_t now_ns,
                std::vector<coordinator::Digest>* digests);
  /// Moves the digests out of `polls`. Returns whether the coordinator has accepted them.
  bool Send(std::vector<DigestBatch::Poll>& polls, const std::vector<GpuError>& errors,
            uint64_t now_ns);

  WatchedRanks& ranks_;
  PeerReach& reach_;
  const GpuWatch& gpus_;
  GrpcCoordinatorLink& link_;
  ProcessorWaits waits_;
  ObservationFilter filter_;
  DigestBatch batch_;
  std::map<std::string, uint64_t> numbers_;                      // of the next digest, by job
  std::map<std::string, std::chrono::nanoseconds> probe_until_;  // by job; CLOCK_MONOTONIC
  uint64_t sent_errors_ = 0;  // number of the last GPU error that was sent
  mutable Mutex mutex_;
  CondVar changed_;
  Counts counts_ HOLDFAST_GUARDED_BY(mutex_);
  bool stopping_ HOLDFAST_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace holdfast::agent
