#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "agent/pipeline/node.h"
#include "agent/server/sight_filter.h"
#include "agent/telemetry/gpu_watch.h"
#include "coordinator/api/coordinator.pb.h"
#include "storage/base/mutex.h"
#include "storage/base/status.h"

namespace holdfast::agent {

class GrpcCoordinatorLink;

/// Looks at the node's ranks ten times a second and tells the coordinator, with errors of the GPUs.
/// Nothing of the ranks is kept for later: while the coordinator is away, what was seen is
/// forgotten, but for the communicators, which are told again. Its own thread.
class TelemetrySender {
 public:
  /// All outlive it.
  TelemetrySender(Node& node, const GpuWatch& gpus, GrpcCoordinatorLink& link);
  ~TelemetrySender();

  /// Since the start.
  struct Counts {
    uint64_t sent = 0;     // digests that the coordinator has taken
    uint64_t unsent = 0;   // and that it has not
    uint64_t dropped = 0;  // records that are missing in them: TelemetryGaps
    uint64_t overwritten = 0;
    uint64_t nonsense = 0;
  };
  Counts counts() const;

  /// One message for each job among `sights`; `taken_ns` is CLOCK_MONOTONIC.
  static std::vector<coordinator::Digest> DigestsOf(const std::vector<RankSight>& sights,
                                                    uint64_t taken_ns, bool with_communicators);

 private:
  void Run();
  void Count(const std::vector<RankSight>& sights);
  void AddReach(const std::vector<RankSight>& sights, std::vector<coordinator::Digest>* digests);
  bool Send(std::vector<coordinator::Digest> digests, const std::vector<GpuError>& errors,
            uint64_t now_ns);

  WatchedRanks& ranks_;
  PeerReach& reach_;
  const GpuWatch& gpus_;
  GrpcCoordinatorLink& link_;
  SightFilter filter_;
  std::map<std::string, uint64_t> numbers_;  // of the digests, by job
  uint64_t told_errors_ = 0;                 // of GPUs, up to this number
  mutable Mutex mutex_;
  CondVar changed_;
  Counts counts_ HOLDFAST_GUARDED_BY(mutex_);
  bool stopping_ HOLDFAST_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace holdfast::agent
