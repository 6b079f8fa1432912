#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <vector>

#include "agent/api/segment_layout.h"
#include "agent/telemetry/rank_telemetry.h"
#include "base/status.h"

namespace holdfast::agent {

/// Polls the table that one rank's trainer writes. The table is untrusted: one poll takes bounded
/// time and memory for any content of the table, and returns only plausible numbers. It never
/// writes to the table. For one thread at a time; the trainer may write concurrently.
class TableReader {
 public:
  /// `control` must stay mapped for the reader's life. A reader is for one connection of a trainer.
  explicit TableReader(const SegmentControl& control) : control_(control) {}

  /// Returns the state at `now_ns` (CLOCK_MONOTONIC) and what is new since the last call.
  /// Unsupported: the table is of another release, or is no table.
  Result<RankTelemetry> Read(uint64_t now_ns);

 private:
  struct Sums {
    uint64_t key = 0;
    std::array<uint64_t, 6> words = {};
  };
  struct Progress {
    uint64_t step = 0;
    uint64_t advanced_ns = 0;
    uint64_t last_step_ns = 0;
  };
  struct Cached {
    uint64_t tag = 0;
    bool valid = false;
    Communicator value;
  };

  void Restart(uint64_t writer);
  void ReadProgress(uint64_t now_ns, RankTelemetry* out);
  void ReadSteps(RankTelemetry* out);
  void ReadCommunicators(RankTelemetry* out);
  void ReadBegun();
  void ReadInFlight(uint64_t now_ns, RankTelemetry* out);
  void CountCompleted(RankTelemetry* out);
  void ReadRing(uint64_t now_ns, RankTelemetry* out);
  void ReadPeers(uint64_t now_ns, RankTelemetry* out);
  void OfferEdge(uint64_t operation, const EdgeWait& edge, RankTelemetry* out) const;
  void ReadDrops(RankTelemetry* out);
  bool Plausible(const CollectiveRecord& record, uint64_t now_ns) const;
  void RecordActivity(uint64_t at_ns, uint64_t now_ns);

  const SegmentControl& control_;
  uint64_t writer_ = 0;
  uint64_t ring_next_ = 0;
  bool ring_waiting_ = false;  // at the last poll the record of ring_next_ was incomplete
  uint64_t steps_next_ = 0;
  uint64_t activity_ns_ = 0;  // time of the trainer's last record
  uint64_t dropped_ = 0;
  Progress progress_;
  std::map<CommunicatorId, uint32_t> index_of_;  // index of a communicator's entry, by ID
  std::map<uint64_t, size_t> flight_of_;  // index in RankTelemetry::in_flight, by OperationName
  std::array<Cached, kCommunicatorsMax> communicators_ = {};
  std::array<std::array<uint64_t, kCollectiveKinds>, kCommunicatorsMax> begun_ = {};
  std::array<Sums, kPeerCellsMax> sums_ = {};
};

}  // namespace holdfast::agent
