#pragma once

#include <array>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "coordinator/detect/gather.h"
#include "coordinator/detect/lag.h"
#include "coordinator/detect/period.h"
#include "coordinator/detect/robust.h"
#include "coordinator/detect/track.h"

// Finds stragglers: members that are late because of their own time. A rank's own time between two
// operations of a communicator is the time on its clock less the time it was blocked in operations.
// It is compared with the own time of the other members, which have the same work. Clocks of
// different ranks are never compared.

namespace holdfast::detect {

/// Usual values of all communicators of one role.
struct RoleBaseline {
  Recent<double, 64> spreads;  // of own times in a window, as a share of the window
  /// If the members' bytes differ: the share by which own time grows, per share of more bytes.
  Recent<double, 64> slopes;
  Recent<double, 64> noises;   // spread of a member's excess between windows far apart, as a share
  Recent<double, 64> shifts;   // absolute changes of members against their own past
  Recent<double, 64> lasting_shifts;  // likewise, of changes that have lasted
  double spread = 0;                  // the median of the spreads, updated from time to time
  double noise = 0;                   // the median of the noises, updated likewise
  std::array<uint64_t, Track::kLevels> very_late{};  // windows in which a member was very late
  uint64_t windows = 0;                              // of all members
};

class Lateness {
 public:
  /// In a job of so few ranks, a role has one or two pairs, and each of them is half of what noise
  /// is learned from.
  static constexpr uint32_t kSmallJob = 4;
  /// One member of 32 does not move their median.
  static constexpr size_t kManyMembers = 32;

  Lateness(uint32_t members, const DetectorOptions& options, bool small_job = false);

  /// Adds an operation. `iteration_ns`: the usual duration of an iteration, 0 if unknown.
  /// `excused`: by position, members whose lateness has a known cause; empty: none.
  /// `equal_work`: the members have the same work. If false, each member is compared only with its
  /// own past.
  void Add(const GatheredOperation& operation, double iteration_ns,
           const std::vector<bool>& excused, bool equal_work, RoleBaseline& baseline);

  const std::vector<Track>& tracks() const { return tracks_; }
  bool many() const { return tracks_.size() >= kManyMembers; }
  /// Whether some member may be late for long, or often, and should be examined.
  bool suspicious() const { return suspicious_; }
  /// The least long-lasting change to examine, as a share of a window.
  double small_change_min() const { return small_change_min_; }
  /// The usual length of a window; 0 if unknown.
  double window_ns() const { return walls_.size() == 0 ? 0 : walls_.Median(); }
  /// The share of a window that is the usual member's own time, 0 … 1. A GPU that is 10 % slower
  /// adds only 5 % to the window of a job that waits half of the time.
  double busy() const { return busy_.size() == 0 ? 1 : busy_.Median(); }
  /// The last windows in all of which a member was clearly late.
  struct Clear {
    uint32_t windows = 0;
    double least = 0;  // excess in any of them, as a share of the window
  };
  /// Returns whether the member was clearly late for a minute, or far later for half a minute. This
  /// is fewer windows than other criteria need if windows are long.
  std::optional<Clear> ClearlyLate(const Track& track) const;
  /// The fewest windows that ClearlyLate examines.
  uint32_t clear_windows() const;
  /// Whether totals of blocked time are missing. A late rank may then have inherited its lateness.
  bool by_waits_only() const { return by_waits_only_; }
  bool equal_work() const { return equal_work_; }
  /// By how much the member's own time is usually corrected since it has more or less work than
  /// the usual member, as a share of the window.
  double correction(uint32_t position) const {
    return corrections_.empty() ? 0 : corrections_[position];
  }
  /// Whether the members differ in their average number of bytes sent pairwise.
  bool transfers_differ() const { return transfers_differ_; }

 private:
  Period& PeriodOf(CollectiveKind kind);
  uint32_t WindowsIn(double duration_ns) const;
  bool HoldsWholeIterations(const GatheredOperation& operation);
  void AddWindow(const GatheredOperation& operation, double wall_ns,
                 const std::vector<bool>& excused, RoleBaseline& baseline);
  void ComputeOwnTimes(const GatheredOperation& operation, const std::vector<bool>& excused);
  void ResetTracks(double min_window_ns, uint32_t period);
  void MoveAnchor(const GatheredOperation& operation);
  double MinWindow(double iteration_ns);
  bool UpdateTransfersDiffer();
  void SubtractWork(double wall_ns, RoleBaseline& baseline);
  std::optional<double> ReferenceShift();
  double CountLagOnce(uint32_t position, double excess_ns) const;
  void RecordSpread(RoleBaseline& baseline);
  void RecordNoise(RoleBaseline& baseline);
  bool FewExamined() const;
  double ReduceToGrowth(uint32_t position, double excess, double own_ns, double wall_ns,
                        double operations);
  void RecordWindow(double wall_ns, double operations, RoleBaseline& baseline);

  const DetectorOptions options_;
  const bool small_job_;
  std::vector<Sample> anchor_;  // the operation at which the window began
  CollectiveKind anchor_kind_ = CollectiveKind::kOther;
  uint64_t anchor_sequence_ = 0;
  std::array<std::unique_ptr<Period>, kCollectiveKinds> periods_;  // of kinds with operations
  uint32_t period_ = 0;                       // of the anchor's kind, when the tracks began
  bool work_differs_ = false;                 // the members move different numbers of bytes
  std::vector<double> corrections_;           // by position, if work differs
  std::vector<double> usual_bytes_;           // by position, in windows of pairwise transfers
  std::vector<Recent<double, 32>> own_past_;  // per operation; only of pairs and triples
  std::vector<Track> tracks_;
  LagTracker lag_;
  bool equal_work_ = true;
  bool transfers_differ_ = true;  // until the first window
  Recent<double, 16> walls_;
  Recent<double, 16> busy_;
  double min_window_ns_ = 0;  // least length of a window when the tracks began
  uint32_t windows_ = 0;
  double small_change_min_ = 0;
  bool suspicious_ = false;
  bool by_waits_only_ = false;
  // Scratch of one window, by member that is present in it.
  std::vector<uint32_t> position_;
  std::vector<double> own_ns_;
  std::vector<double> bytes_;
  std::vector<double> scratch_;
};

}  // namespace holdfast::detect
