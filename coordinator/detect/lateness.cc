#include "coordinator/detect/lateness.h"

#include <limits>
#include <numeric>
#include <utility>

namespace holdfast::detect {
namespace {

constexpr size_t kOwnPastMin = 8;                // windows
constexpr uint32_t kOwnLearnEvery = 4;           // windows
constexpr double kAlwaysFactor = 2;              // times the usual excess
constexpr double kWindowIterations = 0.8;        // at least
constexpr double kWaitForWholeIterations = 3.5;  // iterations, before a partial window ends
/// The least length of a window: in a second, several short iterations may all be disturbed. With a
/// longer one, a slow rank would not be found within 20 iterations of 60 ms.
constexpr double kWindowNsMin = 50e6;
constexpr double kWindowNsUnknown = 200e6;  // if the duration of an iteration is unknown
constexpr double kShareOfLongest = 0.6;
constexpr double kLongWindow = 2.5;  // times the usual length: excluded
constexpr double kStallShare = 1.5;  // of a window: the member stalled and was not slow
/// A member is clearly late if its excess has at least this share of all windows of this length of
/// time.
constexpr std::pair<double, double> kClear[] = {{0.2, 30e9}, {0.06, 60e9}};
constexpr uint32_t kClearWindowsMin = 4;  // one pause of a rank may be in two windows
constexpr double kQuietNs = 20e9;         // the first steps hardly change a window of this length
constexpr double kVeryLateShare = 0.05;   // of a window
constexpr uint32_t kVeryLateSuspicious = 4;  // windows
constexpr double kWorkDiffers = 0.01;        // of the bytes moved
constexpr double kSpreadMin = 0.001;
/// Windows that become this many times longer hold other parts of the program.
constexpr double kLongerWindows = 2;
constexpr uint32_t kFirstWindows = 32;      // of a communicator, in which windows may become longer
constexpr double kTransfersDiffer = 0.05;   // of the average bytes of the usual member
constexpr double kTransfersFollow = 0.125;  // weight of one window in such averages
constexpr double kSmallSpreads = 1.5;       // least small change, in spreads
/// Median and 80th percentile of the absolute difference of two normal values, in standard
/// deviations.
constexpr double kDifferenceMedian = 0.954;
constexpr double kDifferenceUpper = 1.81;

}  // namespace

Lateness::Lateness(uint32_t members, const DetectorOptions& options, bool small_job)
    : options_(options), small_job_(small_job), anchor_(members), tracks_(members), lag_(members) {}

Period& Lateness::PeriodOf(CollectiveKind kind) {
  std::unique_ptr<Period>& period = periods_[static_cast<size_t>(kind)];
  if (!period) period = std::make_unique<Period>();
  return *period;
}

/// Returns the least length of a window. If the duration of an iteration is unknown, the length is
/// at least a few tenths of a second and either about a period of the program or, until that is
/// known, a large share of the second longest window. A window then covers both the short and the
/// long parts of the program.
double Lateness::MinWindow(double iteration_ns) {
  if (iteration_ns > 0) return std::max(kWindowNsMin, kWindowIterations * iteration_ns);
  const double period_ns = PeriodOf(anchor_kind_).duration_ns();
  if (period_ns > 0) return std::max(kWindowNsUnknown, kWindowIterations * period_ns);
  double longest = 0;
  double second = 0;
  for (const double wall : walls_.values()) {
    second = std::max(second, std::min(longest, wall));
    longest = std::max(longest, wall);
  }
  return std::max(kWindowNsUnknown, kShareOfLongest * second);
}

void Lateness::Add(const GatheredOperation& operation, double iteration_ns,
                   const std::vector<bool>& excused, bool equal_work, RoleBaseline& baseline) {
  equal_work_ = equal_work;
  PeriodOf(operation.kind).Add(operation, iteration_ns);
  // The time since the anchor, measured by the members with samples of both operations.
  scratch_.clear();
  for (size_t i = 0; i < anchor_.size() && scratch_.size() < 9; ++i) {
    const Sample& from = anchor_[i];
    const Sample& to = operation.samples[i];
    if (from.present() && to.present()) {
      scratch_.push_back(static_cast<double>(to.started_ns) - static_cast<double>(from.started_ns));
    }
  }
  if (scratch_.empty()) {
    MoveAnchor(operation);
    if (IsSynchronous(operation.kind)) lag_.Add(operation);
    return;
  }
  const double wall_ns = LowerMedian(std::span<double>(scratch_));
  const double least_ns = MinWindow(iteration_ns);
  const uint32_t period = PeriodOf(anchor_kind_).operations();
  const bool longer = least_ns > kLongerWindows * min_window_ns_ || period > std::max(period_, 1U);
  if (windows_ < kFirstWindows && longer) ResetTracks(least_ns, period);
  const bool ends = wall_ns >= least_ns;  // false also for operations that arrive out of order
  const bool whole = ends && HoldsWholeIterations(operation);
  const bool unequal = work_differs_ || (!equal_work_ && iteration_ns > 0);
  const bool comparable = whole || !unequal;
  const bool waits = !whole && (unequal || period > 0);
  if (!ends || (waits && wall_ns < kWaitForWholeIterations * std::max(iteration_ns, least_ns))) {
    if (IsSynchronous(operation.kind)) lag_.Add(operation);
    return;
  }
  const uint32_t warmup = wall_ns < kQuietNs ? options_.warmup_windows : 1;
  if (windows_++ >= warmup && comparable) {
    const bool usual = walls_.size() < 4 || wall_ns < kLongWindow * walls_.Median();
    walls_.Add(wall_ns);
    if (usual) AddWindow(operation, wall_ns, excused, baseline);
  }
  MoveAnchor(operation);
  if (IsSynchronous(operation.kind)) lag_.Add(operation);
}

/// Returns the number of windows in a time, limited to kClearWindowsMin … windows_late.
uint32_t Lateness::WindowsIn(double duration_ns) const {
  const double window = window_ns();
  if (window == 0) return options_.windows_late;
  const auto windows = static_cast<uint32_t>(std::min(std::ceil(duration_ns / window), 1e3));
  return std::clamp(windows, kClearWindowsMin, options_.windows_late);
}

uint32_t Lateness::clear_windows() const { return WindowsIn(kClear[0].second); }

std::optional<Lateness::Clear> Lateness::ClearlyLate(const Track& track) const {
  for (const auto& [share, duration_ns] : kClear) {
    const uint32_t windows = WindowsIn(duration_ns);
    const double least = track.least(windows);
    if (least >= share) return Clear{windows, least};
  }
  return std::nullopt;
}

/// Starts again: the windows so far covered only parts of the iteration and are not comparable with
/// those to come.
void Lateness::ResetTracks(double min_window_ns, uint32_t period) {
  min_window_ns_ = min_window_ns;
  period_ = period;
  std::fill(tracks_.begin(), tracks_.end(), Track());
  own_past_.clear();
}

void Lateness::MoveAnchor(const GatheredOperation& operation) {
  lag_.Begin();
  anchor_ = operation.samples;
  anchor_kind_ = operation.kind;
  anchor_sequence_ = operation.sequence;
}

/// Whether the window holds complete iterations. Other windows hold other parts of the program from
/// time to time. If members have different work, only windows of complete iterations have the same
/// proportion of work to bytes.
bool Lateness::HoldsWholeIterations(const GatheredOperation& operation) {
  const uint32_t period = PeriodOf(anchor_kind_).operations();
  return period > 0 && operation.kind == anchor_kind_ && operation.sequence > anchor_sequence_ &&
         (operation.sequence - anchor_sequence_) % period == 0;
}

void Lateness::ComputeOwnTimes(const GatheredOperation& operation,
                               const std::vector<bool>& excused) {
  position_.clear();
  own_ns_.clear();
  bytes_.clear();
  by_waits_only_ =
      std::any_of(operation.samples.begin(), operation.samples.end(),
                  [](const Sample& sample) { return sample.present() && sample.blocked_ns == 0; });
  for (uint32_t i = 0; i < anchor_.size(); ++i) {
    const Sample& from = anchor_[i];
    const Sample& to = operation.samples[i];
    if (!from.present() || !to.present() || to.started_ns < from.started_ns) continue;
    if (!excused.empty() && excused[i]) continue;
    if (lag_.seen(i) < LagTracker::kSeenMin) continue;
    double own = -static_cast<double>(to.duration_ns());  // the last member waits least
    double bytes = 0;
    if (!by_waits_only_) {
      if (to.blocked_ns < from.blocked_ns) continue;
      own = static_cast<double>(to.started_ns - from.started_ns) -
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

/// Updates whether some members have more pairwise transfers than others. Their number in a single
/// window varies by chance, so averages are compared.
bool Lateness::UpdateTransfersDiffer() {
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

/// Subtracts the time that members need for extra work: a member that moved more bytes also had
/// more to compute, which is not a fault. The time per byte is learned from all communicators of
/// the role, by comparing members with few bytes and members with many. It is learned as a share of
/// the usual own time: in a communicator that waits for another one of its role, some computing
/// overlaps the wait, so all own times are shorter.
void Lateness::SubtractWork(double wall_ns, RoleBaseline& baseline) {
  const size_t n = own_ns_.size();
  scratch_ = bytes_;
  const double usual = LowerMedian(std::span<double>(scratch_));
  const auto [least, most] = std::minmax_element(bytes_.begin(), bytes_.end());
  work_differs_ = usual > 0 && *least > 0 && *most - *least >= kWorkDiffers * usual;
  if (!work_differs_) return;
  scratch_ = own_ns_;
  const double own_ns = LowerMedian(std::span<double>(scratch_));
  if (own_ns <= 0) return;
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
      baseline.slopes.Add((own_ns_[high] - own_ns_[low]) / own_ns / (bytes / usual));
    }
  }
  if (baseline.slopes.size() == 0) return;
  const double ns_per_byte = std::max(0.0, baseline.slopes.Median()) * own_ns / usual;
  corrections_.resize(anchor_.size());
  for (size_t i = 0; i < n; ++i) {
    const double correction_ns = ns_per_byte * (bytes_[i] - usual);
    own_ns_[i] -= correction_ns;
    double& share = corrections_[position_[i]];
    share += (std::abs(correction_ns) / wall_ns - share) * kTransfersFollow;
  }
}

void Lateness::AddWindow(const GatheredOperation& operation, double wall_ns,
                         const std::vector<bool>& excused, RoleBaseline& baseline) {
  if (IsSynchronous(operation.kind)) lag_.End(operation);
  ComputeOwnTimes(operation, excused);
  if (position_.size() < 2 || position_.size() * 2 < anchor_.size()) return;
  if (IsSynchronous(operation.kind) || UpdateTransfersDiffer()) {
    SubtractWork(wall_ns, baseline);
  }
  const bool counted = operation.kind == anchor_kind_ && operation.sequence > anchor_sequence_;
  const auto operations = counted ? static_cast<double>(operation.sequence - anchor_sequence_) : 0;
  RecordWindow(wall_ns, operations, baseline);
}

/// Whether a member of a pair or a triple of a small job may have become slower. Its change is no
/// noise.
bool Lateness::FewExamined() const {
  return small_job_ && position_.size() < 4 && std::ranges::any_of(position_, [this](uint32_t at) {
           return tracks_[at].slower_count(options_.windows) * 2 >= options_.windows_late;
         });
}

/// Measures noise by the differences between windows far apart: lasting differences between members
/// cancel out, and slow changes remain.
void Lateness::RecordNoise(RoleBaseline& baseline) {
  scratch_.clear();
  for (size_t i = 0; i < own_ns_.size(); ++i) {
    const auto before = tracks_[position_[i]].oldest();
    if (before) scratch_.push_back(std::abs(own_ns_[i] - *before));
  }
  if (scratch_.empty()) return;
  // A pair or a triple is measured against its fastest member, whose excess is always 0.
  if (scratch_.size() < 4) {
    if (FewExamined()) return;
    const double most = *std::max_element(scratch_.begin(), scratch_.end());
    return baseline.noises.Add(most / kDifferenceMedian);
  }
  // The upper quantile covers a tail that the median ignores.
  const double median = LowerMedian(std::span<double>(scratch_));
  baseline.noises.Add(
      std::max(median / kDifferenceMedian, Quantile(scratch_, 0.8) / kDifferenceUpper));
}

/// Returns the excess of a member of a pair or a triple, reduced to what its own time has grown.
/// The reference of a pair or a triple is a single member, whose own time shrinks if it waits more
/// than before.
double Lateness::ReduceToGrowth(uint32_t position, double excess, double own_ns, double wall_ns,
                                double operations) {
  if (operations == 0) return excess;
  own_past_.resize(anchor_.size());
  Recent<double, 32>& past = own_past_[position];
  const bool known = past.size() >= kOwnPastMin && tracks_[position].knows_past();
  const double growth = known ? std::max(0.0, own_ns - operations * past.Median()) / wall_ns : 0;
  if (!known || (windows_ % kOwnLearnEvery == 0 && growth < options_.late_share)) {
    past.Add(own_ns / operations);
  }
  // A member that was always late is not reduced.
  if (!known || excess < kAlwaysFactor * tracks_[position].usual()) return excess;
  return std::min(excess, tracks_[position].usual() + growth);
}

/// Returns how much the reference is later than usual because members are missing in this window,
/// as a share of the window. If half of the members have more work than the others, one missing
/// member moves the median from one half to the other. Returns nullopt while this is unknown.
std::optional<double> Lateness::ReferenceShift() {
  if (position_.size() == anchor_.size()) return 0;
  std::vector<double> all;
  std::vector<double> present;
  for (const Track& track : tracks_) {
    if (!track.knows_past()) {
      return tracks_.size() < kManyMembers ? std::nullopt : std::optional<double>(0);
    }
    all.push_back(track.usual());
  }
  for (const uint32_t position : position_) present.push_back(tracks_[position].usual());
  return LowerMedian(std::span<double>(present)) - LowerMedian(std::span<double>(all));
}

/// Returns `excess_ns` of a window with a lag that carries over counted once, not in each
/// operation.
double Lateness::CountLagOnce(uint32_t position, double excess_ns) const {
  const double carried = lag_.carried();
  if (excess_ns <= 0) {
    // A member that is ahead is ahead in all of these operations.
    return std::max(excess_ns, (1 - carried) * excess_ns + carried * lag_.least(position));
  }
  const double largest = lag_.largest(position);
  const double rows = std::max(largest, lag_.of_rows(position));
  const double once = (1 - carried) * rows + carried * largest;
  const double counted_again = std::clamp(lag_.sum(position) - once, 0.0, excess_ns);
  return std::min(excess_ns - counted_again, (1 - carried) * excess_ns + carried * largest);
}

/// Adds the spread of the window, whose shares are in `scratch_`, to the baseline.
void Lateness::RecordSpread(RoleBaseline& baseline) {
  const size_t n = scratch_.size();
  if (n >= 4) {
    baseline.spreads.Add(1.4826 * CentreOf(scratch_).mad);
  } else if (!FewExamined()) {
    const auto [least, most] = std::minmax_element(scratch_.begin(), scratch_.end());
    baseline.spreads.Add((*most - *least) / (n == 2 ? kDifferenceMedian : 1.6));
  }
  RecordNoise(baseline);
  if (baseline.spread == 0 || baseline.spreads.added() % 8 == 0) {
    baseline.spread = baseline.spreads.Median();
    baseline.noise = baseline.noises.Median();
  }
}

/// `operations`: in the window; 0: unknown.
void Lateness::RecordWindow(double wall_ns, double operations, RoleBaseline& baseline) {
  const auto shift_of_reference = ReferenceShift();
  if (!shift_of_reference) return;
  scratch_ = own_ns_;
  const double own_ns = LowerMedian(std::span<double>(scratch_));
  const double usual = own_ns - *shift_of_reference * wall_ns;
  busy_.Add(by_waits_only_ ? 1 : std::clamp(own_ns / wall_ns, 0.0, 1.0));
  for (size_t i = 0; i < own_ns_.size(); ++i) {
    const double share = CountLagOnce(position_[i], own_ns_[i] - usual) / wall_ns;
    // From here on, own_ns_ has the excess.
    own_ns_[i] = own_ns_.size() >= 4
                     ? share
                     : ReduceToGrowth(position_[i], share, own_ns_[i], wall_ns, operations);
  }
  scratch_ = own_ns_;
  const size_t n = scratch_.size();
  RecordSpread(baseline);
  const double spread = std::max(baseline.spread, kSpreadMin);
  // If work differs, it also changes over time, and its correction is an estimate. A comparison
  // with the past is then reliable only for long-lasting changes.
  const double least = static_cast<double>(options_.late_ns_min) / wall_ns;
  constexpr double kNever = std::numeric_limits<double>::infinity();
  const double small = work_differs_ || !many() ? options_.slower_share : options_.small_share;
  // The spread of a few members is that of their work, as of the stages of a pipeline.
  const double scatter = many() ? spread : std::max(baseline.noise, kSpreadMin);
  small_change_min_ = n < 4 ? kNever : std::max({small, least, kSmallSpreads * scatter});
  const LatenessThresholds from{
      .peers = !equal_work_ ? kNever : std::max({options_.late_share, least, 2 * spread}),
      .past = work_differs_ ? kNever : std::max({options_.slower_share, least, spread}),
      .very_late = !equal_work_ ? kNever : std::max(kVeryLateShare, 5 * spread),
      .small = small_change_min_};
  suspicious_ = false;
  for (size_t i = 0; i < n; ++i) {
    if (own_ns_[i] > kStallShare) continue;
    Track& track = tracks_[position_[i]];
    const size_t reached = track.Add(own_ns_[i], from, options_.windows);
    if (track.windows() % Track::kRecent == 0) {
      const double shift = track.shift();
      // 0: the reference itself.
      if (shift != 0 && !FewExamined()) baseline.shifts.Add(std::abs(shift));
      const double lasting = track.lasting_shift();
      if (lasting != 0 && !FewExamined()) baseline.lasting_shifts.Add(std::abs(lasting));
    }
    for (size_t level = 0; level < reached; ++level) ++baseline.very_late[level];
    suspicious_ |= std::max(track.late_count(options_.windows),
                            track.slower_count(options_.windows)) >= options_.windows_late ||
                   track.very_late_count() >= kVeryLateSuspicious ||
                   track.small_change(small_change_min_) || (equal_work_ && ClearlyLate(track));
  }
  baseline.windows += n;
}

}  // namespace holdfast::detect
