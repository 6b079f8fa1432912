#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "coordinator/detect/records.h"
#include "coordinator/detect/verdict.h"
#include "storage/base/clock.h"

namespace holdfast::detect {

struct DetectorOptions {
  // Hangs. What a legitimate pause may look like waits longer than what it cannot.
  Clock::Duration hang_after = std::chrono::seconds(5);     // without progress: a suspicion
  Clock::Duration stuck_after = std::chrono::seconds(30);   // a verdict where nothing can move
  Clock::Duration absent_after = std::chrono::seconds(60);  // and where a rank may yet come
  Clock::Duration silent_after = std::chrono::seconds(40);  // and where a node says nothing
  /// The longest pause that the job is known to have made, in incarnations before.
  Clock::Duration longest_pause{0};
  Clock::Duration dead_after = std::chrono::seconds(2);  // a rank's node is silent: its word is old
  // Slowness.
  uint32_t windows = 20;        // looked at for a late rank
  uint32_t windows_late = 14;   // of them, late
  uint32_t warmup_windows = 3;  // left out after the start
  double late_share = 0.02;     // of the iteration that a rank must be later than its peers
  double slower_share = 0.01;   // or later beside them than it used to be
  double small_share = 0.006;   // the same when it lasted four times as long
  uint64_t late_ns_min = 1'000'000;
  double slow_transfer_share = 0.10;  // that a transfer must be slower than its baseline
  double z_min = 5;                   // robust standard deviations
  double slower_z_min = 6;            // the same of a rank beside its past: any time may differ
  double small_z_min = 7;             // and of a small change: of its past little may be known
  double hot_share = 0.7;             // of a rank's connections that must be slow to blame the rank
  uint32_t hot_cells_min = 3;
  // Actions.
  double blamed_nodes_share_max = 0.02;  // above it (and above 2 nodes) the fabric is suspected
  // Memory.
  uint32_t ranks_max = 65'536;
  uint32_t communicators_per_rank_max = 16;
};

/// What came in and what became of it.
struct DetectorCounters {
  uint64_t digests = 0;
  uint64_t refused_digests = 0;  // other incarnation, impossible world, too many ranks
  uint64_t repeated_digests = 0;
  uint64_t records = 0;
  uint64_t refused_records = 0;  // nonsense: unknown rank or communicator, impossible numbers
};

/// Watches one incarnation of one job and says who is faulty. Pure: what it answers follows from
/// what it observed and the times passed in. Memory is bounded by the world's size whatever comes
/// in. Thread-compatible.
class Detector {
 public:
  /// `incarnation`: digests of others are refused. `world`: ranks of the job.
  Detector(Incarnation incarnation, uint32_t world, const DetectorOptions& options = {});
  ~Detector();
  Detector(Detector&& other) noexcept;
  Detector& operator=(Detector&& other) noexcept;

  /// Takes in what an agent says. Nonsense is counted and left out.
  void Observe(const Digest& digest, Clock::TimePoint now);
  /// The faults there are, the most certain first; none when the job is healthy. A fault is
  /// repeated for as long as it lasts.
  std::vector<Verdict> Evaluate(Clock::TimePoint now);
  /// What may become a verdict when it lasts: hangs younger than their patience, with the evidence
  /// so far and no action. Set by Evaluate.
  const std::vector<Verdict>& suspicions() const;
  /// The longest time that the job stood still, outside of marked phases, and went on by itself.
  Clock::Duration longest_pause() const;
  /// Communicators whose PeerSums would tell which connection or rank is slow: agents should send
  /// them for the next 20 operations or so. Set by Evaluate.
  const std::vector<CommId>& wanted_peer_sums() const;
  const DetectorCounters& counters() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace holdfast::detect
