#pragma once

#include <algorithm>
#include <set>

#include "storage/base/ids.h"

namespace holdfast::coord {

/// The step whose version all writers to a tier bring there next: the first one at or after it.
/// They must not choose by their own speed, since a version counts only when every writer brought
/// it. The target moves on when the version it led to is committed at the tier or never will be.
/// Writers are the ranks for the disk, the members of parity groups for the peers. Plain data.
class TierTarget {
 public:
  Step step() const { return step_; }

  /// From here on: a new incarnation, or the coordinator's start.
  void Restart(Step step) {
    step_ = step;
    reached_ = step;
    answered_.clear();
    resolved_ = false;
  }
  /// `writer` brought its part of the version of `step`.
  void Answered(Rank writer, Step step) {
    if (step >= step_) answered_.insert(writer);
  }
  /// The version of `step` is at the tier, or will not be.
  void Resolve(Step step) {
    if (step < step_) return;
    resolved_ = true;
    reached_ = std::max(reached_, step);
  }
  /// Every writer brought something. If it makes no version, they chose different steps: GiveUp().
  bool AllAnswered(size_t writers) const { return answered_.size() == writers; }
  void GiveUp() { Resolve(step_); }
  /// The newest step that was dealt with, or the target itself.
  Step reached() const { return reached_; }
  /// Moves on to `next` if it is time. True: it did.
  bool Advance(Step next) {
    if (!resolved_) return false;
    step_ = std::max(step_, next);
    answered_.clear();
    resolved_ = false;
    return true;
  }

 private:
  Step step_;
  Step reached_;
  std::set<Rank> answered_;
  bool resolved_ = false;
};

}  // namespace holdfast::coord
