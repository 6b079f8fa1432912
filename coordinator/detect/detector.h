#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/clock.h"
#include "coordinator/detect/records.h"
#include "coordinator/detect/verdict.h"

namespace holdfast::detect {

struct DetectorOptions {
  // Hangs. The patience is longer for a stall that may be a legitimate pause.
  Clock::Duration hang_after = std::chrono::seconds(5);     // no progress: a suspicion
  Clock::Duration stuck_after = std::chrono::seconds(30);   // a verdict if all ranks are blocked
  Clock::Duration absent_after = std::chrono::seconds(60);  // a verdict if a rank may still join
  Clock::Duration idle_after = std::chrono::seconds(50);    // likewise, and it does not run
  Clock::Duration silent_after = std::chrono::seconds(40);  // a verdict if a node is silent
  /// The longest pause of earlier incarnations of the job, as far as it is known.
  Clock::Duration longest_pause{0};
  Clock::Duration dead_after = std::chrono::seconds(2);  // a silent node's reports are out of date
  // Slowness.
  uint32_t windows = 20;        // examined for a straggler
  uint32_t windows_late = 14;   // of these, the least number in which the rank is late
  uint32_t warmup_windows = 3;  // ignored after the start
  double late_share = 0.02;     // of an iteration that a rank must be later than its peers
  double slower_share = 0.01;   // of an iteration that its lateness must have grown
  double small_share = 0.006;   // likewise, for growth that has lasted four times as long
  uint64_t late_ns_min = 1'000'000;
  double slow_transfer_share = 0.10;  // by which a transfer must exceed its baseline
  double z_min = 5;                   // robust standard deviations
  double slower_z_min = 6;            // the same for a rank against its past, which may vary
  double small_z_min = 7;             // the same for a small change, whose past may be short
  double hot_share = 0.7;             // of a rank's connections that must be slow to blame the rank
  uint32_t hot_cells_min = 3;
  // Actions.
  double blamed_nodes_share_max = 0.02;  // above this (and above 2 nodes) suspect the fabric
  // Memory.
  uint32_t ranks_max = 65'536;
  uint32_t communicators_per_rank_max = 16;
};

/// Counts of the input and of what was refused.
struct DetectorCounters {
  uint64_t digests = 0;
  uint64_t refused_digests = 0;  // other incarnation, impossible world, too many ranks
  uint64_t repeated_digests = 0;
  uint64_t records = 0;
  uint64_t refused_records = 0;  // unknown rank or communicator, impossible numbers
};

/// Watches one incarnation of one job and identifies faulty ranks, nodes and links. Pure: the
/// verdicts depend only on the digests observed and the times passed in. Memory is bounded by the
/// world's size for any input. Thread-compatible.
class Detector {
 public:
  /// `incarnation`: digests of other incarnations are refused. `world`: the number of ranks.
  Detector(Incarnation incarnation, uint32_t world, const DetectorOptions& options = {});
  ~Detector();
  Detector(Detector&& other) noexcept;
  Detector& operator=(Detector&& other) noexcept;

  /// Adds one agent's digest. Implausible records are dropped and counted.
  void Observe(const Digest& digest, Clock::TimePoint now);
  /// Returns the present faults, dead processes first; none if the job is healthy. Returns a fault
  /// again for as long as it lasts.
  std::vector<Verdict> Evaluate(Clock::TimePoint now);
  /// Returns hangs younger than their patience, which become verdicts if they last. They have the
  /// evidence so far and no action. Set by Evaluate.
  const std::vector<Verdict>& suspicions() const;
  /// Returns the longest stall outside marked phases after which the job continued without help.
  Clock::Duration longest_pause() const;
  /// Returns the communicators whose RankTransfers would show which connection or rank is slow.
  /// Agents should send these for about the next 20 operations. Set by Evaluate.
  const std::vector<CommunicatorId>& wanted_transfers() const;
  /// Whether agents should probe each other, because transfers are slow. Set by Evaluate.
  bool needs_probes() const;
  const DetectorCounters& counters() const;

 private:
  void LocateByProbes(Verdict& verdict);

  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace holdfast::detect
