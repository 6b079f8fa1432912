#pragma once

#include <vector>

#include "testing/sim/program/engine.h"
#include "testing/sim/program/flights.h"

// The records that a rank's library writes of its operations (client/core/collectives.cc), as its
// agent reads them (agent/telemetry/table_reader.cc). Times are on the global clock.

namespace holdfast::sim::program {

class Recorder {
 public:
  Recorder(Engine& engine, uint32_t rank);

  struct Ended {
    CollectiveRecord record;  // without stamps
    double start_s = 0;
    double stop_s = 0;
    double enqueue_s = 0;
  };
  /// The state at one moment, and the records since the previous snapshot. The engine must have run
  /// until then.
  struct Snapshot {
    std::vector<Ended> ended;
    std::vector<TableFlight> flights;
    std::vector<detect::RankCompleted> completed;
    double silent_s = 0;  // since the rank last wrote anything
    uint64_t step = 0;
    double since_step_s = 0;
    std::vector<StepTime> steps;
    uint8_t phases = 0;
  };
  void Read(double at_s, Snapshot& snapshot);

 private:
  struct Event {
    double at_s = 0;
    bool starts = false;
    Op* op = nullptr;
  };
  void Replay(double until_s, Snapshot& snapshot);
  void ReadFlights(double at_s, double view_s, Snapshot& snapshot);
  void ReadSteps(double at_s, double view_s, Snapshot& snapshot);
  uint16_t TakeSlot();
  uint32_t CommOf(const Op& op) const { return engine_.job().channels[op.channel].comm; }

  Engine& engine_;
  const uint32_t rank_;
  double read_until_s_ = -1;
  double last_write_s_ = 0;
  // The same totals as in client/core/collectives.cc.
  uint32_t running_ = 0;
  double running_since_s_ = 0;
  double blocked_s_ = 0;
  uint64_t moved_bytes_ = 0;
  std::vector<bool> slots_;
  std::vector<std::array<uint64_t, kCollectiveKinds>> begun_;  // by own communicator
  std::vector<std::array<uint64_t, kCollectiveKinds>> open_;
  uint64_t steps_ = 0;
  double step_at_s_ = 0;
  std::vector<Event> events_;
};

}  // namespace holdfast::sim::program
