#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

#include "base/ids.h"

namespace holdfast::coord {

/// The target of a tier: writers take the first version at or after this step to the tier. All
/// writers must take the same version, since it is committed only when every writer has written its
/// part. The target advances when the selected version is committed at the tier or can no longer be
/// committed there. The writers are the ranks for tier disk and the members of parity groups for
/// tier peer. Plain data.
class TierTarget {
 public:
  Step step() const { return step_; }

  /// Resets the target to `step`, for a new incarnation or after a start of the coordinator.
  void Restart(Step step) {
    step_ = step;
    reached_ = step;
    Forget();
  }
  /// Records that `writer` has written its part of the version of `step`.
  void Acknowledge(Rank writer, Step step) {
    if (step < step_) return;
    const size_t number = IsParity(writer) ? ParityNode(writer) : writer.value;
    if (number >= acknowledged_.size()) acknowledged_.resize(number + 1);
    if (!acknowledged_[number]) ++count_;
    acknowledged_[number] = true;
  }
  /// Records that the version of `step` is committed at the tier, or never will be.
  void Resolve(Step step) {
    if (step < step_) return;
    resolved_ = true;
    reached_ = std::max(reached_, step);
  }
  /// Whether each of `writers` writers has written a version at or after the target. If none of
  /// these versions is complete, the writers took different steps, and the caller calls Abandon().
  bool AllAcknowledged(size_t writers) const { return count_ == writers; }
  void Abandon() { Resolve(step_); }
  /// The newest resolved step, or the target itself.
  Step reached() const { return reached_; }
  /// Advances to `next` if the target is resolved, but never back. Returns whether it was resolved.
  bool Advance(Step next) {
    if (!resolved_) return false;
    step_ = std::max(step_, next);
    Forget();
    return true;
  }

 private:
  void Forget() {
    acknowledged_.clear();
    count_ = 0;
    resolved_ = false;
  }

  Step step_;
  Step reached_;
  std::vector<bool> acknowledged_;  // by number of the writer
  size_t count_ = 0;
  bool resolved_ = false;
};

}  // namespace holdfast::coord
