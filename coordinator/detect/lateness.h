#pragma once

#include <array>
#include <string>
#include <vector>

#include "coordinator/detect/gather.h"
#include "coordinator/detect/leads.h"
#include "coordinator/detect/robust.h"
#include "coordinator/detect/track.h"

// Who comes late by own fault. The time that a rank needs for itself between two operations of a
// communicator (its clock's difference less the time it was blocked in operations meanwhile) is
// compared with that of the other members, who had the same work to do. Clocks are never compared.

namespace holdfast::detect {

/// What is usual among all communicators of one role.
struct RoleUsage {
  Recent<double, 64> spreads;  // of own times in a window, as a share of the window
  Recent<double, 64> slopes;   // own nanoseconds a byte moved, where the members' bytes differ
  Recent<double, 64> noises;   // of a member's own times in windows far apart, the same
  Recent<double, 64> shifts;   // sizes of members' changes beside their own past
  double spread = 0;           // the median of the spreads, brought up to date now and then
  double noise = 0;            // of the noises
  std::array<uint64_t, Track::kLevels> strong{};  // windows in which a member came very late
  uint64_t windows = 0;                           // of all members
};

class Lateness {
 public:
  Lateness(uint32_t members, const DetectorOptions& options);

  /// Takes an operation in. `iteration_ns`: the usual time of an iteration, 0 when not known.
  /// `excused`: by position, members whose lateness has a known cause; empty: none.
  /// `alike`: the members have the same work; else each is only compared with its own past.
  void Add(const Gathered& operation, double iteration_ns, const std::vector<bool>& excused,
           bool alike, RoleUsage& usage);

  const std::vector<Track>& tracks() const { return tracks_; }
  /// Some member may be late lastingly, or often: worth a look.
  bool suspicious() const { return suspicious_; }
  /// From what change on, as a share of a window, one that lasted long is worth a look.
  double small_from() const { return small_from_; }
  /// Usual length of a window.
  double window_ns() const { return walls_.size() == 0 ? 0 : walls_.Median(); }
  /// The totals of blocked time were not there: a late rank may have inherited its lateness.
  bool by_waits_only() const { return by_waits_only_; }
  bool alike() const { return alike_; }
  /// Members have different numbers of transfers between two, on the average.
  bool transfers_differ() const { return transfers_differ_; }

 private:
  bool WholeIterations(const Gathered& operation, double wall_ns, double iteration_ns);
  void Window(const Gathered& operation, double wall_ns, const std::vector<bool>& excused,
              RoleUsage& usage);
  void OwnTimes(const Gathered& operation, const std::vector<bool>& excused);
  void Forget(double least_ns);
  void MoveAnchor(const Gathered& operation);
  double LeastWindow(double iteration_ns) const;
  bool TransfersDiffer();
  void TakeOutWork(RoleUsage& usage);
  void NoteNoise(RoleUsage& usage);
  void Note(double wall_ns, RoleUsage& usage);

  const DetectorOptions options_;
  std::vector<Sample> anchor_;  // where the window began, and what operation that was
  Func anchor_func_ = Func::kOther;
  uint64_t anchor_seq_ = 0;
  Recent<uint32_t, 16> in_iteration_;  // operations of the kind in an iteration, by each estimate
  bool work_differs_ = false;          // the members move different numbers of bytes
  std::vector<double> usual_bytes_;    // by position, of windows of transfers between two
  std::vector<Track> tracks_;
  Leads leads_;
  bool alike_ = true;
  bool transfers_differ_ = true;  // until the first window
  Recent<double, 16> walls_;
  double least_ns_ = 0;  // how long windows had to be when the tracks began
  uint32_t windows_ = 0;
  double small_from_ = 0;
  bool suspicious_ = false;
  bool by_waits_only_ = false;
  // Scratch of one window, by member present in it.
  std::vector<uint32_t> position_;
  std::vector<double> own_ns_;
  std::vector<double> bytes_;
  std::vector<double> scratch_;
};

}  // namespace holdfast::detect
