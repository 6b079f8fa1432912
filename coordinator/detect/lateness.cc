#include "coordinator/detect/lateness.h"

#include <limits>
#include <numeric>

namespace holdfast::detect {
namespace {

constexpr double kWindowIterations = 0.8;  // at least
constexpr double kWaitForWhole = 3.5;      // iterations, until one that is not whole ends
constexpr double kInIterationMost = 1e6;
constexpr double kWindowNsUnknown = 200e6;  // when the time of an iteration is not known
constexpr double kOfLongest = 0.6;
constexpr double kLongWindow = 2.5;        // times the usual: something else happened
constexpr double kStallShare = 1.5;        // of a window: it stood still, it was not slow
constexpr double kStrongShare = 0.05;      // of a window, to be very late
constexpr uint32_t kStrongSuspicious = 4;  // such windows
constexpr double kWorkDiffers = 0.01;      // of the bytes moved
constexpr double kSpreadLeast = 0.001;
constexpr double kOtherWindows = 2;          // times as long: they hold other parts of the program,
constexpr uint32_t kFirstWindows = 32;       // at the start
constexpr double kTransfersDiffer = 0.05;    // of the bytes of the usual member, on the average
constexpr double kTransfersFollow = 0.125;   // of that average, a window
constexpr double kSmallSpreads = 1.5;        // that a small change must be, at least
constexpr size_t kManyMembers = 32;          // their median is still where one of few would move it
constexpr double kDifferenceMedian = 0.954;  // of two normal values, in standard deviations
constexpr double kDifferenceUpper = 1.81;    // the same, four fifths are below it

}  // namespace

Lateness::Lateness(uint32_t members, const DetectorOptions& options)
    : options_(options), anchor_(members), tracks_(members), leads_(members) {}

/// Without the time of an iteration: some tenths of a second, and most of the longest windows that
/// come again, so that a short part of the program and a long one make no windows of their own.
double Lateness::LeastWindow(double iteration_ns) const {
  if (iteration_ns > 0) return kWindowIterations * iteration_ns;
  double longest = 0;
  double second = 0;
  for (const double wall : walls_.values()) {
    second = std::max(second, std::min(longest, wall));
    longest = std::max(longest, wall);
  }
  return std::max(kWindowNsUnknown, kOfLongest * second);
}

void Lateness::Add(const Gathered& operation, double iteration_ns, const std::vector<bool>& excused,
                   bool alike, RoleUsage& usage) {
  alike_ = alike;
  // The time since the anchor, by the members who were in both.
  scratch_.clear();
  for (size_t i = 0; i < anchor_.size() && scratch_.size() < 9; ++i) {
    const Sample& from = anchor_[i];
    const Sample& to = operation.samples[i];
    if (from.present() && to.present()) {
      scratch_.push_back(static_cast<double>(to.start_ns) - static_cast<double>(from.start_ns));
    }
  }
  if (scratch_.empty()) {
    MoveAnchor(operation);
    if (IsSynchronous(operation.func)) leads_.Add(operation);
    return;
  }
  const double wall_ns = LowerMedian(std::span<double>(scratch_));
  const double least_ns = LeastWindow(iteration_ns);
  if (windows_ < kFirstWindows && least_ns > kOtherWindows * least_ns_) Forget(least_ns);
  const bool ends = wall_ns >= least_ns;  // not: also what came out of order
  const bool whole = ends && WholeIterations(operation, wall_ns, iteration_ns);
  const bool comparable = whole || !work_differs_;
  if (!ends || (!comparable && wall_ns < kWaitForWhole * iteration_ns)) {
    if (IsSynchronous(operation.func)) leads_.Add(operation);
    return;
  }
  if (windows_++ >= options_.warmup_windows && comparable) {
    const bool usual = walls_.size() < 4 || wall_ns < kLongWindow * walls_.Median();
    walls_.Add(wall_ns);
    if (usual) Window(operation, wall_ns, excused, usage);
  }
  MoveAnchor(operation);
  if (IsSynchronous(operation.func)) leads_.Add(operation);
}

/// The windows so far were parts of those to come: what members showed in them is no measure.
void Lateness::Forget(double least_ns) {
  least_ns_ = least_ns;
  std::fill(tracks_.begin(), tracks_.end(), Track());
}

void Lateness::MoveAnchor(const Gathered& operation) {
  leads_.Begin();
  anchor_ = operation.samples;
  anchor_func_ = operation.func;
  anchor_seq_ = operation.seq;
}

/// Where members have different work, only windows of whole iterations have the same proportion of
/// work to bytes.
bool Lateness::WholeIterations(const Gathered& operation, double wall_ns, double iteration_ns) {
  if (operation.func != anchor_func_ || operation.seq <= anchor_seq_ || iteration_ns <= 0) {
    return false;
  }
  const auto operations = static_cast<double>(operation.seq - anchor_seq_);
  const double estimate = std::min(operations * iteration_ns / wall_ns, kInIterationMost);
  in_iteration_.Add(std::max(1U, static_cast<uint32_t>(std::lround(estimate))));
  return (operation.seq - anchor_seq_) % std::max(1U, in_iteration_.Median()) == 0;
}

void Lateness::OwnTimes(const Gathered& operation, const std::vector<bool>& excused) {
  position_.clear();
  own_ns_.clear();
  bytes_.clear();
  by_waits_only_ =
      std::any_of(operation.samples.begin(), operation.samples.end(),
                  [](const Sample& sample) { return sample.present() && sample.blocked_ns == 0; });
  for (uint32_t i = 0; i < anchor_.size(); ++i) {
    const Sample& from = anchor_[i];
    const Sample& to = operation.samples[i];
    if (!from.present() || !to.present() || to.start_ns < from.start_ns) continue;
    if (!excused.empty() && excused[i]) continue;
    double own = -static_cast<double>(to.duration_ns());  // who waits least is last
    double bytes = 0;
    if (!by_waits_only_) {
      if (to.blocked_ns < from.blocked_ns) continue;
      own = static_cast<double>(to.start_ns - from.start_ns) -
            static_cast<double>(to.blocked_ns - from.blocked_ns);
      if (from.moved_bytes != 0 && to.moved_bytes >= from.moved_bytes) {
        bytes = static_cast<double>(to.moved_bytes - from.moved_bytes);
      }
    }
    position_.push_back(i);
    own_ns_.push_back(own);
    bytes_.push_back(bytes);
  }
}

/// Of transfers between two, one more or less is in a window by chance: whether some members have
/// more of them shows on the average.
bool Lateness::TransfersDiffer() {
  usual_bytes_.resize(anchor_.size());
  for (size_t i = 0; i < position_.size(); ++i) {
    double& usual = usual_bytes_[position_[i]];
    usual += (bytes_[i] - usual) * (usual == 0 ? 1 : kTransfersFollow);
  }
  scratch_ = usual_bytes_;
  std::erase(scratch_, 0);
  const double usual = LowerMedian(std::span<double>(scratch_));
  const auto [least, most] = std::minmax_element(scratch_.begin(), scratch_.end());
  transfers_differ_ = scratch_.empty() || *most - *least >= kTransfersDiffer * usual;
  work_differs_ = transfers_differ_;
  return transfers_differ_;
}

/// Members that moved more bytes had more to compute: that is no fault. How much more is learned
/// from all communicators of the role, by pairs of members that are far apart.
void Lateness::TakeOutWork(RoleUsage& usage) {
  const size_t n = own_ns_.size();
  scratch_ = bytes_;
  const double usual = LowerMedian(std::span<double>(scratch_));
  const auto [least, most] = std::minmax_element(bytes_.begin(), bytes_.end());
  work_differs_ = usual > 0 && *least > 0 && *most - *least >= kWorkDiffers * usual;
  if (!work_differs_) return;
  std::vector<uint32_t> order(n);
  std::iota(order.begin(), order.end(), 0U);
  std::sort(order.begin(), order.end(),
            [&](uint32_t a, uint32_t b) { return bytes_[a] < bytes_[b]; });
  const size_t half = n / 2;
  const size_t step = std::max<size_t>(1, half / 8);
  for (size_t i = 0; i < half; i += step) {
    const uint32_t low = order[i];
    const uint32_t high = order[i + (n - half)];
    const double bytes = bytes_[high] - bytes_[low];
    if (bytes > kWorkDiffers * usual) {
      usage.slopes.Add((own_ns_[high] - own_ns_[low]) / bytes);
    }
  }
  if (usage.slopes.size() == 0) return;
  const double slope = std::max(0.0, usage.slopes.Median());
  for (size_t i = 0; i < n; ++i) own_ns_[i] -= slope * (bytes_[i] - usual);
}

void Lateness::Window(const Gathered& operation, double wall_ns, const std::vector<bool>& excused,
                      RoleUsage& usage) {
  OwnTimes(operation, excused);
  if (position_.size() < 2 || position_.size() * 2 < anchor_.size()) return;
  if (IsSynchronous(operation.func) || TransfersDiffer()) TakeOutWork(usage);
  Note(wall_ns, usage);
}

/// By differences of windows far apart: they hold nothing of what lasts, and all of what changes
/// slowly.
void Lateness::NoteNoise(RoleUsage& usage) {
  scratch_.clear();
  for (size_t i = 0; i < own_ns_.size(); ++i) {
    const auto before = tracks_[position_[i]].oldest();
    if (before) scratch_.push_back(std::abs(own_ns_[i] - *before));
  }
  if (scratch_.empty()) return;
  // In a pair or a triple the fastest is the measure: its own excess is 0 and does not change.
  if (scratch_.size() < 4) {
    const double most = *std::max_element(scratch_.begin(), scratch_.end());
    return usage.noises.Add(most / kDifferenceMedian);
  }
  // The upper quantile sees a tail that the median does not.
  const double median = LowerMedian(std::span<double>(scratch_));
  usage.noises.Add(
      std::max(median / kDifferenceMedian, Quantile(scratch_, 0.8) / kDifferenceUpper));
}

void Lateness::Note(double wall_ns, RoleUsage& usage) {
  scratch_ = own_ns_;
  const double usual = LowerMedian(std::span<double>(scratch_));
  const double carried = leads_.carried();
  for (size_t i = 0; i < own_ns_.size(); ++i) {
    double excess = own_ns_[i] - usual;
    // A lead that is carried on counts once, not in each operation.
    if (excess > 0) {
      const double largest = leads_.largest(position_[i]);
      const double rows = std::max(largest, leads_.of_rows(position_[i]));
      const double once = (1 - carried) * rows + carried * largest;
      const double counted_again = std::clamp(leads_.sum(position_[i]) - once, 0.0, excess);
      excess = std::min(excess - counted_again, (1 - carried) * excess + carried * largest);
    }
    own_ns_[i] = excess / wall_ns;  // now the excess
  }
  scratch_ = own_ns_;
  const size_t n = scratch_.size();
  if (n >= 4) {
    usage.spreads.Add(1.4826 * CentreOf(scratch_).mad);
  } else {
    const auto [least, most] = std::minmax_element(scratch_.begin(), scratch_.end());
    usage.spreads.Add((*most - *least) / (n == 2 ? kDifferenceMedian : 1.6));
  }
  NoteNoise(usage);
  if (usage.spread == 0 || usage.spreads.added() % 8 == 0) {
    usage.spread = usage.spreads.Median();
    usage.noise = usage.noises.Median();
  }
  const double spread = std::max(usage.spread, kSpreadLeast);
  // Where work differs it also changes, and what is taken out for it is an estimate: the past binds
  // only where it lasts long and shows beside the median of many.
  const double least = static_cast<double>(options_.late_ns_min) / wall_ns;
  const double small = work_differs_ ? options_.slower_share : options_.small_share;
  small_from_ = n < kManyMembers ? std::numeric_limits<double>::infinity()
                                 : std::max({small, least, kSmallSpreads * spread});
  const LateFrom from{.peers = !alike_ ? std::numeric_limits<double>::infinity()
                                       : std::max({options_.late_share, least, 2 * spread}),
                      .past = work_differs_ ? std::numeric_limits<double>::infinity()
                                            : std::max({options_.slower_share, least, spread}),
                      .strong = !alike_ ? std::numeric_limits<double>::infinity()
                                        : std::max(kStrongShare, 5 * spread),
                      .small = small_from_};
  suspicious_ = false;
  for (size_t i = 0; i < n; ++i) {
    if (own_ns_[i] > kStallShare) continue;
    Track& track = tracks_[position_[i]];
    const size_t reached = track.Add(own_ns_[i], from, options_.windows);
    if (track.windows() % Track::kRecent == 0) {
      const double shift = track.shift();
      if (shift != 0) usage.shifts.Add(std::abs(shift));  // 0: it is the measure itself
    }
    for (size_t level = 0; level < reached; ++level) ++usage.strong[level];
    suspicious_ |= std::max(track.late_count(options_.windows),
                            track.slower_count(options_.windows)) >= options_.windows_late ||
                   track.strong_count() >= kStrongSuspicious || track.small_change(small_from_);
  }
  usage.windows += n;
}

}  // namespace holdfast::detect
