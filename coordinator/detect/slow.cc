#include "coordinator/detect/slow.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "coordinator/detect/evidence.h"

namespace holdfast::detect {
namespace {

constexpr Clock::Duration kGatherTimeout = std::chrono::seconds(3);
constexpr Clock::Duration kDigestDelay = std::chrono::seconds(2);

// Slow transfers.
constexpr uint64_t kMatrixOperations = 16;
constexpr Clock::Duration kMatrixMin = std::chrono::seconds(5);
constexpr Clock::Duration kSlowMin = std::chrono::seconds(20);  // least length of a slowdown
constexpr Clock::Duration kSlowMax = std::chrono::seconds(120);
constexpr Clock::Duration kMatrixWait = std::chrono::seconds(60);
constexpr size_t kMatrixCellsPerMember = 16;
constexpr size_t kWantedMax = 64;
constexpr Clock::Duration kScanEvery = std::chrono::seconds(60);
constexpr Clock::Duration kScanFor = std::chrono::seconds(10);
constexpr uint64_t kScanOperations = 8;
// The operations of some programs are minutes apart. A scan waits for them.
constexpr Clock::Duration kScanRareAfter = std::chrono::seconds(60);
constexpr Clock::Duration kScanAtMost = std::chrono::minutes(15);
constexpr uint64_t kScanRareOperations = 4;
constexpr uint32_t kScanCells = 4;       // needed to know the usual cost
constexpr double kScanShare = 0.25;      // by which a connection must be slower than the others
constexpr double kExplainedShare = 0.5;  // of an operation's slowdown, by the slowest connection
constexpr size_t kFabricCommsMin = 4;

// Lasting lateness.
constexpr size_t kTrackMin = 10;             // windows needed to know a member's lasting excess
constexpr double kLastingSpreadMin = 0.003;  // robust spread of lasting excesses
/// The usual spread of lasting excesses. A few members may show a smaller one, so the usual spread
/// is averaged in, with the weight of kLastingSpreadWeight members.
constexpr double kLastingSpreadUsual = 0.0045;
constexpr double kLastingSpreadWeight = 8;
constexpr size_t kRingMin = 4;        // members of a ring; two or three may be pipeline stages
constexpr double kAlwaysShare = 0.5;  // of a rank's excess, in its past: it was always that late
/// Of a rank's excess: the other rank is of the same kind. A rank that computes while an operation
/// waits for a slower rank shows only a part of its excess.
constexpr double kSimilarShare = 0.35;
constexpr double kSharedShare = 0.5;  // of a rank's change: another member has changed likewise
constexpr size_t kKindShare = 64;     // one rank in this many may be similar by chance
constexpr size_t kFewOthers = 6;      // fewer have no quantiles
/// With fewer other ranks than this, the usual spread of lasting differences between healthy ranks
/// does not show. A rank that was always late then counts as a straggler only from the excess
/// kFewAlwaysMin or from kFewAlwaysZ standard deviations on: it may only be of a slower kind.
constexpr size_t kFewAlways = 24;
constexpr double kFewAlwaysMin = 0.06;
constexpr double kFewAlwaysZ = 7;
constexpr double kLastingDeviation = 1.4826 * kLastingSpreadUsual;
constexpr double kShiftMin = 0.0015;                // least spread of members' changes
constexpr double kLongShiftMin = 0.0007;            // likewise, of long-lasting changes
constexpr double kUpperToMedian = 0.6745 / 1.2816;  // median of |normal| over its 80th percentile

// Frequent stalls.
constexpr uint32_t kVeryLateMin = 5;   // windows
constexpr double kVeryLateTimes = 3;   // times the expected number, to run the test at all
constexpr double kVeryLateUnseen = 3;  // upper bound at 95 % where no event was seen
constexpr uint32_t kVeryLateWidths[] = {16, 32, 64, 128};
constexpr uint32_t kStallsPerBurst = 2;
constexpr double kStallsAtMost = 0.6;  // of the windows: more are lateness, which is judged as such
constexpr double kFalsePositiveRate = 1e-6;  // upper bound over all ranks

constexpr double kIndependentSteps = 3;  // without an operation: ranks do not wait for each other
constexpr double kUnstableWindows = 25;
constexpr double kUnstableWindowNs = 1e9;
constexpr double kImmediateFactor = 2;  // times the least z, for a verdict from one set of windows
// Times the least z, while transfers are slow. A pair has no other rank whose work overlaps as
// much.
constexpr double kUnstableFactor = 2;
constexpr double kUnstablePairFactor = 4;
/// An iteration that became longer by more than this many times a rank's change has another cause.
constexpr double kUnexplainedFactor = 3;

bool IsPlausible(const CollectiveRecord& record) {
  return static_cast<uint8_t>(record.kind) < kCollectiveKinds && record.sequence < kSequenceMax &&
         record.bytes <= kBytesMax && record.ended_ns > record.started_ns &&
         record.ended_ns - record.started_ns <= kDurationNsMax &&
         record.ended_ns < UINT64_MAX / 2 &&
         record.blocked_ns <= record.started_ns + kDurationNsMax;
}

std::string_view RoleName(CommunicatorRole role) {
  static constexpr std::string_view kNames[] = {"", "data-parallel ", "tensor-parallel ",
                                                "pipeline ", "expert-parallel "};
  return kNames[static_cast<size_t>(role)];
}

/// Returns the distance between neighbouring members of a communicator of unknown role, else 0.
uint32_t StrideOf(const CommInfo& comm) {
  if (comm.role != CommunicatorRole::kUnknown || comm.by_rank.size() < 2) return 0;
  return comm.members[comm.by_rank[1]] - comm.members[comm.by_rank[0]];
}

bool WasAlwaysLate(const Track& track, double excess) {
  return track.knows_past() && track.usual() >= kAlwaysShare * excess;
}

}  // namespace

bool IsFarBehind(double excess, std::span<const double> others, double few) {
  if (few > 1) return excess >= kFewAlwaysMin;
  double squares = kLastingSpreadWeight * kLastingDeviation * kLastingDeviation;
  for (const double other : others) squares += other * other;
  const double weight = static_cast<double>(others.size()) + kLastingSpreadWeight;
  return excess > kFewAlwaysZ * std::sqrt(squares / weight);
}

double LastingSpread(std::span<double> excesses) {
  const auto members = static_cast<double>(excesses.size());
  double shown = LowerMedian(excesses);
  if (excesses.size() >= kFewOthers) {
    shown = std::max(shown, Quantile(excesses, 0.8) * kUpperToMedian);
  }
  const double weighted = (members * shown + kLastingSpreadWeight * kLastingSpreadUsual) /
                          (members + kLastingSpreadWeight);
  return std::max({weighted, shown, kLastingSpreadMin});
}

namespace {

/// Returns the rate of very late windows of the other members of a communicator.
double StallRate(std::span<const Track> members, const Track& but, size_t level) {
  uint64_t very_late = 0;
  uint64_t windows = 0;
  for (const Track& member : members) {
    if (&member == &but) continue;
    very_late += member.very_late_count(level);
    windows += std::min(member.windows(), WindowHistory::kCapacity);
  }
  return windows == 0 ? 0 : static_cast<double>(very_late) / static_cast<double>(windows);
}

}  // namespace

std::optional<FrequentStalls> FindFrequentStalls(const Track& track, std::span<const Track> members,
                                                 const RoleBaseline& baseline, size_t tracks) {
  if (track.very_late_count() < kVeryLateMin) return std::nullopt;
  constexpr double kTests = Track::kLevels * std::size(kVeryLateWidths);
  // The bound on false positives is shared by all tests of all ranks.
  const double p_max = kFalsePositiveRate / (kTests * static_cast<double>(tracks));
  for (size_t level = 0; level < Track::kLevels; ++level) {
    const uint64_t own = track.very_late_count(level);
    const uint64_t windows = std::min(track.windows(), WindowHistory::kCapacity);
    const auto others =
        static_cast<double>(baseline.very_late[level] - std::min(baseline.very_late[level], own));
    const double p_role =
        (others + kVeryLateUnseen) / static_cast<double>(baseline.windows - windows + 1);
    // Stalls come in bursts: two of them count as one independent event.
    const auto exceeds = [&](double p, uint32_t very_late, uint32_t examined) {
      return very_late >= kVeryLateTimes * p * examined &&
             BinomialTail(very_late / kStallsPerBurst, examined / kStallsPerBurst, p) < p_max;
    };
    for (const uint32_t width : kVeryLateWidths) {
      const uint32_t very_late = track.very_late_count(level, width);
      const uint32_t examined = std::min(width, track.windows());
      if (very_late < kVeryLateMin || very_late > kStallsAtMost * examined) continue;
      // Few members exceed the rate of their role. Only for these, all members are examined.
      if (!exceeds(p_role, very_late, examined)) continue;
      if (exceeds(std::max(p_role, StallRate(members, track, level)), very_late, examined)) {
        return FrequentStalls{.very_late = very_late,
                              .windows = examined,
                              .all_very_late = baseline.very_late[level]};
      }
    }
  }
  return std::nullopt;
}

bool IsSharedDrift(const Track& track, std::span<const Track> members) {
  return track.knows_past() && track.usual() >= kSimilarShare * track.excess() &&
         IsSharedChange(track, members);
}

bool IsSharedChange(const Track& track, std::span<const Track> members) {
  return std::any_of(members.begin(), members.end(), [&](const Track& member) {
    return &member != &track && member.shift() >= kSharedShare * track.shift();
  });
}

/// Whether the operation's start times are comparable: all members synchronize in it, or the
/// members only send to each other, all about equally often.
bool SlownessDetector::IsComparable(CollectiveKind kind, const CommInfo& comm) {
  if (IsSynchronous(kind)) return true;
  if (kind != CollectiveKind::kSend) return false;
  for (size_t other = 0; other < kCollectiveKinds; ++other) {
    if (IsSynchronous(static_cast<CollectiveKind>(other)) && comm.completed_most[other] > 0)
      return false;
  }
  const auto& row = comm.completed[static_cast<size_t>(kind)];
  if (row.empty()) return false;
  const auto [least, most] = std::minmax_element(row.begin(), row.end());
  return *least * 10 >= *most * 9;
}

void SlownessDetector::AddRecord(Rank rank, const CollectiveRecord& record, Index node,
                                 Table& table, Clock::TimePoint now) {
  const Membership* membership = table.Find(rank, record.communicator, node);
  if (membership == nullptr || !IsPlausible(record)) {
    table.RefuseRecord();
    return;
  }
  table.NoteCompleted(*membership, record.kind, record.sequence + 1, table.node(node).as_of);
  const CommInfo& comm = table.comm(membership->comm);
  last_operation_ = now;
  if (!IsComparable(record.kind, comm) || comm.members.size() < 2) return;
  if (watches_.size() <= membership->comm) watches_.resize(membership->comm + 1);
  std::unique_ptr<Watch>& watch = watches_[membership->comm];
  if (!watch) {
    watch = std::make_unique<Watch>(static_cast<uint32_t>(comm.members.size()), options_);
  }
  watch->gatherer.Add(record, membership->position, now);
  while (auto complete = watch->gatherer.Take(Clock::TimePoint::min())) {
    FinishOperation(*complete, membership->comm, table);
  }
}

void SlownessDetector::FinishOperation(const GatheredOperation& operation, Index comm,
                                       Table& table) {
  Watch& watch = *watches_[comm];
  uint64_t most = 0;
  for (const Sample& sample : operation.samples) {
    if (sample.present()) most = std::max(most, sample.duration_ns());
  }
  const CommunicatorRole role = table.comm(comm).role;
  const std::vector<bool> excused = Excused(operation, table.comm(comm).members, table);
  if (excused.empty())
    table.NoteDuration(DurationKeyOf(role, operation.kind, operation.bytes), most);
  if (IsSynchronous(operation.kind)) watch.transfers.Add(operation, pace_.iteration_ns());
  if (watch.stages_known != table.pairwise_comms()) {
    watch.stages_known = table.pairwise_comms();
    watch.spans_stages = table.SpansStages(comm);
  }
  const bool equal_work = !watch.spans_stages || IsRing(comm, table);
  watch.lateness.Add(operation, pace_.iteration_ns(), excused, equal_work,
                     baselines_[ClassOf(comm, table)]);
}

/// Whether the members only send to each other, all the same number of bytes. They then have the
/// same work. The first and last stages of a pipeline send less than the stages between them.
bool SlownessDetector::IsRing(Index comm, const Table& table) const {
  const CommInfo& info = table.comm(comm);
  return table.comms().size() == 1 && info.pairwise && info.role != CommunicatorRole::kPipeline &&
         info.members.size() >= kRingMin && !watches_[comm]->lateness.transfers_differ();
}

/// Returns, by position, the members that were in a phase without steps around the operation's
/// window. Empty if there are none.
std::vector<bool> SlownessDetector::Excused(const GatheredOperation& operation,
                                            std::span<const uint32_t> members,
                                            const Table& table) const {
  const auto window = Clock::Duration(static_cast<int64_t>(2 * pace_.iteration_ns()));
  const auto from = operation.since - window - kDigestDelay;
  if (table.excused_at() == Clock::TimePoint::min() || table.excused_at() < from) return {};
  std::vector<bool> excused;
  for (const uint32_t rank : members) {
    excused.push_back(table.rank(rank).excused_at >= from &&
                      table.rank(rank).excused_at != Clock::TimePoint::min());
  }
  return excused;
}

void SlownessDetector::StartSteps(const Table& table) {
  steps_ = std::make_unique<Steps>(table.world(), options_);
  for (uint32_t rank = 0; rank < table.world(); ++rank) all_ranks_.push_back(rank);
}

/// Evaluates the completed steps. Steps count only while no operation is reported: if ranks wait
/// for each other in every step, its length does not depend on a single rank.
void SlownessDetector::FinishSteps(const Table& table, Clock::TimePoint now) {
  if (!steps_) return;
  const auto independent =
      Clock::Duration(static_cast<int64_t>(kIndependentSteps * pace_.iteration_ns()));
  while (auto step = steps_->Take(now - kGatherTimeout)) {
    if (last_operation_ != Clock::TimePoint() && now - last_operation_ < independent) continue;
    steps_->lateness().Add(*step, pace_.iteration_ns(), Excused(*step, all_ranks_, table), true,
                           baselines_[kStepsClass]);
  }
}

void SlownessDetector::Observe(const Digest& digest, Index node, Table& table,
                               Clock::TimePoint now) {
  for (const RankState& state : digest.ranks) {
    if (state.rank.value >= table.world() || table.rank(state.rank.value).node != node) continue;
    for (const StepTime& step : state.steps) {
      pace_.Add(step.step, step.duration_ns);
      if (!steps_) StartSteps(table);
      steps_->Add(state.rank.value, step, now);
    }
  }
  for (const RankRecord& ended : digest.ended)
    AddRecord(ended.rank, ended.record, node, table, now);
  for (const RankTransfers& transfers : digest.peers) {
    const PeerTransfers& sums = transfers.sums;
    const Membership* membership = table.Find(transfers.rank, sums.communicator, node);
    const bool plausible = membership != nullptr && transfers.peer.value < table.world() &&
                           transfers.peer != transfers.rank &&
                           static_cast<uint8_t>(sums.direction) <= 1 && sums.bytes <= kBytesMax &&
                           sums.transfer_ns <= kDurationNsMax &&
                           sums.peer_wait_ns <= kDurationNsMax && sums.transfers <= 1'000'000;
    if (!plausible) {
      table.RefuseRecord();
      continue;
    }
    AddTransfers(transfers, membership->comm, table);
  }
}

const SlownessDetector::Class SlownessDetector::kStepsClass = {CommunicatorRole::kUnknown, true, 0,
                                                               0};

SlownessDetector::Class SlownessDetector::ClassOf(Index comm, const Table& table) const {
  const CommInfo& info = table.comm(comm);
  return {info.role, !watches_[comm]->spans_stages, info.members.size(), StrideOf(info)};
}

const std::vector<SlownessDetector::LastingExcess>& SlownessDetector::LastingExcesses(
    const Class& of, const Table& table) const {
  const auto [found, first] = lasting_.try_emplace(of);
  std::vector<LastingExcess>& lasting = found->second;
  if (!first) return lasting;
  const auto add = [&lasting](const Lateness& lateness, std::span<const uint32_t> members) {
    for (uint32_t position = 0; position < members.size(); ++position) {
      const Track& track = lateness.tracks()[position];
      const double excess = track.excess();
      if (track.recent() < kTrackMin || excess == 0) continue;  // 0: the reference itself
      lasting.push_back({members[position], excess});
    }
  };
  if (of == kStepsClass) add(steps_->lateness(), all_ranks_);
  for (Index comm = 0; comm < watches_.size(); ++comm) {
    if (!watches_[comm] || ClassOf(comm, table) != of) continue;
    add(watches_[comm]->lateness, table.comm(comm).members);
  }
  return lasting;
}

/// Whether the rank is later than the spread of the other ranks explains. A rank that was always
/// late is a straggler only if hardly any other rank is similar. Otherwise these ranks form a kind
/// of their own, for example with older GPUs. `few`: a factor on the spread of small communicators.
bool SlownessDetector::IsLaterThanPeers(const Track& track, uint32_t rank,
                                        const std::vector<LastingExcess>& lasting,
                                        const RoleBaseline& baseline, double few, bool always,
                                        double& z) const {
  const double excess = track.excess();
  std::vector<double> others;
  std::set<uint32_t> similar;
  for (const LastingExcess& other : lasting) {
    if (other.rank == rank) continue;
    others.push_back(std::abs(other.excess));
    if (other.excess >= kSimilarShare * excess) similar.insert(other.rank);
  }
  z = 0.6745 * excess / (few * LastingSpread(others));
  if (z <= options_.z_min) return false;
  // A rank that was not always late has changed. The change must exceed noise that lasts for a
  // while.
  if (!always) return !track.knows_past() || ChangeZ(track, baseline) > options_.z_min;
  if (others.size() < kFewAlways && !IsFarBehind(excess, others, few)) return false;
  return similar.size() <= others.size() / kKindShare;
}

/// Returns the z-score of the member's change, relative to the usual changes of the role's members
/// and to noise.
double SlownessDetector::ChangeZ(const Track& track, const RoleBaseline& baseline) {
  const double usual = 1.4826 * std::max(baseline.shifts.Median(), kShiftMin);
  const double noise = std::max(baseline.noise, track.own_noise());
  return track.shift() / std::max(usual, track.shift_error(noise));
}

/// Returns the same for a long-lasting change, whose longer average has less noise.
double SlownessDetector::LongChangeZ(const Track& track, const RoleBaseline& baseline) {
  const double usual = 1.4826 * std::max(baseline.shifts.Median(), kLongShiftMin);
  const double noise = std::max(baseline.noise, track.own_noise());
  return track.lasting_shift() / std::max(usual, track.lasting_shift_error(noise));
}

/// Whether iterations are longer than before, and a rank that needs `change_ns` more time of its
/// own does not explain it. Slow transfers change how computing and operations overlap.
bool SlownessDetector::HasOtherCause(double change_ns) const {
  const auto shift = pace_.shift();
  return shift && shift->after_ns - shift->before_ns > kUnexplainedFactor * change_ns;
}

std::optional<Verdict> SlownessDetector::JudgeMember(Index comm, uint32_t position,
                                                     const Table& table) const {
  const bool steps = comm == kNone;
  const Lateness& lateness = steps ? steps_->lateness() : watches_[comm]->lateness;
  const std::span<const uint32_t> members =
      steps ? std::span<const uint32_t>(all_ranks_) : table.comm(comm).members;
  const Track& track = lateness.tracks()[position];
  const bool equal_work = lateness.equal_work();
  const Class of = steps ? kStepsClass : ClassOf(comm, table);
  const RoleBaseline& baseline = baselines_.at(of);
  const uint32_t late_count = track.late_count(options_.windows);
  const uint32_t slower_count = track.slower_count(options_.windows);
  const bool late = equal_work && late_count >= options_.windows_late;
  const bool slower = slower_count >= options_.windows_late;
  std::optional<FrequentStalls> stalls;
  if (equal_work && !transfers_unstable_) {
    stalls = FindFrequentStalls(track, lateness.tracks(), baseline, table.world());
  }
  const bool small = track.small_change(lateness.small_change_min());
  if (!late && !slower && !small && !stalls) return std::nullopt;
  const uint32_t rank = members[position];
  // In a ring, a rank computes while its sends wait for slow neighbours. Its own time then shows
  // only a part of what it has in common with them.
  const bool ring = !steps && table.comm(comm).pairwise;
  // A pair or a triple is measured against its fastest member: the spreads of two members add up.
  const double few = members.size() < 4 ? std::sqrt(2.0) : 1;
  double late_z = 0;
  const bool unstable =
      transfers_unstable_ || HasOtherCause(std::max(track.shift(), 0.0) * lateness.window_ns());
  const double doubt = !unstable ? 1 : members.size() < 4 ? kUnstablePairFactor : kUnstableFactor;
  // Among thousands of windows, noise exceeds the limit in some, but not in consecutive sets.
  // Without the confirmation of twice as many windows, z must be twice as high.
  const auto enough = [&](double z, double z_min, uint32_t count_of_twice) {
    const bool confirmed = count_of_twice >= 2 * options_.windows_late;
    return z > doubt * (confirmed ? z_min : kImmediateFactor * z_min);
  };
  const bool drift = IsSharedDrift(track, lateness.tracks());
  const bool always = WasAlwaysLate(track, track.excess());
  const bool is_late = late && !(ring && always) &&
                       IsLaterThanPeers(track, rank, LastingExcesses(of, table), baseline, few,
                                        always || drift, late_z) &&
                       enough(late_z, options_.z_min, track.late_count(2 * options_.windows));
  const double slower_z = slower ? ChangeZ(track, baseline) : 0;
  const double small_z = small ? LongChangeZ(track, baseline) : 0;
  const bool is_slower =
      !drift && enough(slower_z, options_.slower_z_min, track.slower_count(2 * options_.windows)) &&
      (equal_work || ring || !IsSharedChange(track, lateness.tracks()));
  const bool is_small = small_z > doubt * options_.small_z_min;
  const bool lasts = is_late || is_slower || is_small;
  if (!lasts && !stalls) return std::nullopt;
  Verdict verdict{
      .fault = FaultClass::kComputeSlow,
      .ranks = {Rank{rank}},
      .edge = {},
      .nodes = {table.NodeNameOf(rank)},
      .confidence = lasts ? std::min(0.95, 0.6 + std::max({late_z, slower_z, small_z}) / 50) : 0.7,
      .action = Action::kAlert,
      .evidence = {}};
  const double window_ns = lateness.window_ns();
  const std::string place =
      steps ? "its steps"
            : fmt::format("the {}communicator {:x}", RoleName(table.comm(comm).role),
                          table.comm(comm).id.value);
  auto lasting = [&](double share, std::string_view than, uint32_t count, double by_z) {
    verdict.evidence.push_back(fmt::format(
        "rank {} needed {} ({:.1f} % of {}) more time of its own than {} in {}; late in {} of the "
        "last {} windows, z = {:.0f}",
        rank, InSeconds(static_cast<uint64_t>(share * window_ns)), share * 100,
        InSeconds(static_cast<uint64_t>(window_ns)), than, place, count, track.recent(), by_z));
  };
  if (is_late) lasting(track.excess(), "its peers", late_count, late_z);
  if (is_slower) {
    lasting(track.shift(), "before, relative to its peers,", slower_count, slower_z);
  }
  if (is_small && !is_late && !is_slower) {
    verdict.evidence.push_back(
        fmt::format("rank {} needed {:.1f} % of {} more time of its own than before, relative to "
                    "its peers, in {}, in the last {} windows and in the {} windows before, z = "
                    "{:.0f}",
                    rank, track.lasting_shift() * 100, InSeconds(static_cast<uint64_t>(window_ns)),
                    place, Track::kRecent, Track::kLong, small_z));
  }
  if (!lasts) {
    verdict.evidence.push_back(fmt::format(
        "rank {} was very late in {} of the last {} windows of {}; of all ranks, {} of {} windows "
        "were as late",
        rank, stalls->very_late, stalls->windows, place, stalls->all_very_late, baseline.windows));
  }
  if (lateness.by_waits_only()) {
    verdict.evidence.emplace_back("computed from waits alone: blocked time is not reported");
  }
  return verdict;
}

void SlownessDetector::FindStragglers(const Table& table, std::vector<Verdict>& verdicts) const {
  lasting_.clear();
  std::map<uint32_t, Verdict> late;             // by rank, the verdict of highest confidence
  std::set<std::pair<Index, uint32_t>> places;  // communicator and rank
  std::set<uint32_t> by_waits;
  for (Index comm = 0; comm < watches_.size(); ++comm) {
    if (!watches_[comm] || !watches_[comm]->lateness.suspicious()) continue;
    const CommInfo& info = table.comm(comm);
    for (uint32_t position = 0; position < info.members.size(); ++position) {
      auto verdict = JudgeMember(comm, position, table);
      if (!verdict) continue;
      const uint32_t rank = info.members[position];
      places.insert({comm, rank});
      if (watches_[comm]->lateness.by_waits_only()) by_waits.insert(rank);
      const auto [at, added] = late.emplace(rank, *verdict);
      if (!added && at->second.confidence < verdict->confidence) at->second = *verdict;
    }
  }
  if (steps_ && steps_->lateness().suspicious()) {
    for (const uint32_t rank : all_ranks_) {
      if (auto verdict = JudgeMember(kNone, rank, table)) late.emplace(rank, std::move(*verdict));
    }
  }
  // Waits alone do not show the cause: a rank may be late here since another rank made it wait in
  // another communicator.
  for (uint32_t rank : by_waits) {
    const bool inherited = std::any_of(
        table.rank(rank).memberships.begin(), table.rank(rank).memberships.end(),
        [&](const Membership& membership) {
          return places.count({membership.comm, rank}) == 0 &&
                 std::any_of(places.begin(), places.end(),
                             [&](const auto& place) { return place.first == membership.comm; });
        });
    if (inherited) late.erase(rank);
  }
  for (auto& [rank, verdict] : late) verdicts.push_back(std::move(verdict));
}

Verdict SlownessDetector::SlowTransferVerdict(const std::optional<TransferMonitor::Slow>& slow,
                                              const DelayMatrix::Blame& blame, const Pool& pool,
                                              const Table& table, Index comm) {
  Verdict verdict{.fault = FaultClass::kCommSlow,
                  .ranks = {},
                  .edge = {},
                  .nodes = {},
                  .confidence = 0.85,
                  .action = Action::kAlert,
                  .evidence = {}};
  if (slow) {
    verdict.evidence.push_back(fmt::format(
        "{} of {} bytes in communicator {:x} takes {} instead of {} (+{:.0f} %), for {:.0f} s, "
        "z = {:.0f}",
        NameOf(slow->kind), slow->bytes, table.comm(comm).id.value,
        InSeconds(static_cast<uint64_t>(slow->now_ns)),
        InSeconds(static_cast<uint64_t>(slow->usual_ns)), (slow->now_ns / slow->usual_ns - 1) * 100,
        slow->lasting_s, slow->z));
  } else {
    verdict.evidence.emplace_back(
        "two comparisons of all connections, a minute apart, found the same one");
  }
  if (blame.rank) {
    verdict.ranks = {*blame.rank};
    verdict.nodes = {table.NodeNameOf(blame.rank->value)};
    verdict.evidence.push_back(fmt::format(
        "{} of {} connections that rank {} {} are slow; the slowest, rank {} to rank {}, waits "
        "{:.1f} times as long per byte as the usual connection, z = {:.0f}",
        blame.hot, blame.populated, blame.rank->value, blame.sends ? "sends on" : "receives on",
        blame.edge.from.value, blame.edge.to.value, blame.ratio, blame.z));
  } else {
    verdict.edge = blame.edge;
    verdict.nodes = {table.NodeNameOf(blame.edge.from.value),
                     table.NodeNameOf(blame.edge.to.value)};
    if (verdict.nodes[0] == verdict.nodes[1]) verdict.nodes.pop_back();
    verdict.evidence.push_back(fmt::format(
        "rank {} to rank {} waits {:.1f} times as long per byte as the usual connection, z = "
        "{:.0f} ({} operations); either end may be the cause: test both nodes",
        blame.edge.from.value, blame.edge.to.value, blame.ratio, blame.z,
        pool.matrix.operations()));
  }
  return verdict;
}

void SlownessDetector::AddTransfers(const RankTransfers& transfers, Index comm,
                                    const Table& table) {
  const CommInfo& info = table.comm(comm);
  const bool watched = comm < watches_.size() && watches_[comm];
  const Class of =
      watched ? ClassOf(comm, table) : Class{info.role, false, info.members.size(), StrideOf(info)};
  if (const auto pool = pools_.find(of); pool != pools_.end()) pool->second.matrix.Add(transfers);
  if (scanned_at_ == Clock::TimePoint()) return;
  scans_.try_emplace(of, kMatrixCellsPerMember * table.world()).first->second.matrix.Add(transfers);
}

SlownessDetector::Pool& SlownessDetector::OpenPool(const Class& of, const Table& table,
                                                   Clock::TimePoint now) {
  const auto found = pools_.find(of);
  if (found != pools_.end()) return found->second;
  size_t members = 0;
  for (const CommInfo& comm : table.comms()) members += comm.members.size();
  Pool& pool = pools_.try_emplace(of, kMatrixCellsPerMember * members).first->second;
  pool.since = now;
  return pool;
}

void SlownessDetector::FindSlowTransfers(const Table& table, Clock::TimePoint now,
                                         std::vector<Verdict>& verdicts) {
  wanted_.clear();
  size_t watched = 0;
  size_t slow_count = 0;
  // If congestion has ended before without help, more congestion must last longer to be reported.
  const auto min_duration = std::clamp<Clock::Duration>(longest_ended_ * 3 / 2, kSlowMin, kSlowMax);
  std::map<Class, std::pair<Index, TransferMonitor::Slow>> slowest;
  for (Index comm = 0; comm < watches_.size(); ++comm) {
    if (!watches_[comm]) continue;
    ++watched;
    const auto slow = watches_[comm]->transfers.slow(min_duration);
    if (!slow) continue;
    ++slow_count;
    const auto [at, first] = slowest.try_emplace(ClassOf(comm, table), comm, *slow);
    if (!first && at->second.second.z < slow->z) at->second = {comm, *slow};
  }
  std::erase_if(pools_, [&](const auto& pool) { return slowest.count(pool.first) == 0; });
  std::optional<Verdict> widespread;
  std::vector<Verdict> found;
  for (const auto& [of, example] : slowest) {
    Pool& pool = OpenPool(of, table, now);
    for (Index comm = 0; comm < watches_.size() && wanted_.size() < kWantedMax; ++comm) {
      if (watches_[comm] && ClassOf(comm, table) == of) wanted_.push_back(table.comm(comm).id);
    }
    const auto& [comm, slow] = example;
    const bool enough =
        pool.matrix.operations() >= kMatrixOperations && now - pool.since >= kMatrixMin;
    const auto blame = enough ? pool.matrix.Find(options_) : std::nullopt;
    pool.widespread |= blame && blame->widespread;
    // The slowest connection must explain a large part of the operation's slowdown.
    const bool explains =
        blame && blame->ratio - 1 >= kExplainedShare * (slow.now_ns / slow.usual_ns - 1);
    if (explains && !pool.widespread) {
      found.push_back(SlowTransferVerdict(slow, *blame, pool, table, comm));
    } else if (pool.widespread || now - pool.since > kMatrixWait) {
      Verdict verdict = SlowTransferVerdict(slow, {}, pool, table, comm);
      verdict.edge.reset();
      verdict.nodes.clear();
      verdict.confidence = 0.5;
      verdict.evidence.back() = "no single connection stands out";
      if (!pool.widespread) {
        found.push_back(std::move(verdict));
        continue;
      }
      verdict.fault = FaultClass::kFabric;
      verdict.evidence.back() = "the slow connections have no common end: no rank is blamed";
      if (!widespread) widespread = std::move(verdict);
    }
  }
  if (!widespread && slow_count >= kFabricCommsMin && slow_count * 2 >= watched && found.empty()) {
    widespread = {.fault = FaultClass::kFabric,
                  .ranks = {},
                  .edge = {},
                  .nodes = {},
                  .confidence = 0.7,
                  .action = Action::kAlert,
                  .evidence = {fmt::format(
                      "transfers are slow in {} of {} communicators at once: no rank is blamed",
                      slow_count, watched)}};
  }
  if (widespread) {
    verdicts.push_back(std::move(*widespread));
    return;
  }
  for (Verdict& verdict : found) verdicts.push_back(std::move(verdict));
  if (slowest.empty()) ScanConnections(table, now, verdicts);
}

/// Whether the scan since `begin` has measured as many operations. Also if operations have ended
/// and none was measured: the job does not measure its connections.
bool SlownessDetector::HasEnoughToCompare(Clock::TimePoint begin, Clock::TimePoint now,
                                          uint64_t operations) const {
  if (scans_.empty()) return last_operation_ > begin && now - last_operation_ > kDigestDelay;
  return std::any_of(scans_.begin(), scans_.end(), [&](const auto& scan) {
    return scan.second.matrix.operations() >= operations;
  });
}

/// Compares all connections with each other from time to time. A connection that was slow from the
/// start has no past to compare with, and a job with only sends and receives has no operation in
/// which all ranks take part.
void SlownessDetector::ScanConnections(const Table& table, Clock::TimePoint now,
                                       std::vector<Verdict>& verdicts) {
  verdicts.insert(verdicts.end(), scan_verdicts_.begin(), scan_verdicts_.end());
  if (scanned_at_ == Clock::TimePoint()) scanned_at_ = now;
  const Clock::Duration since = now - scanned_at_;
  if (since < kScanEvery) return;
  const Clock::Duration scanning = since - kScanEvery;
  const uint64_t operations = scanning < kScanRareAfter ? kScanOperations : kScanRareOperations;
  const bool enough = HasEnoughToCompare(scanned_at_ + kScanEvery, now, operations);
  if (scanning < kScanFor || (!enough && scanning < kScanAtMost)) {
    for (Index comm = 0; comm < table.comms().size() && wanted_.size() < kWantedMax; ++comm) {
      if (table.comm(comm).members.size() > 1) wanted_.push_back(table.comm(comm).id);
    }
    return;
  }
  scanned_at_ = now;
  std::optional<Edge> worst;
  scan_verdicts_.clear();
  for (const auto& [of, pool] : scans_) {
    DetectorOptions strict = options_;
    strict.slow_transfer_share = kScanShare;
    const auto blame =
        pool.matrix.operations() >= operations ? pool.matrix.Find(strict) : std::nullopt;
    if (!blame || blame->widespread || blame->of < kScanCells) continue;
    worst = blame->edge;
    if (scan_found_ != worst) continue;
    scan_verdicts_.push_back(SlowTransferVerdict(std::nullopt, *blame, pool, table, 0));
  }
  scan_found_ = worst;
  scans_.clear();
}

void SlownessDetector::AddPace(std::vector<Verdict>& verdicts) const {
  const auto shift = pace_.shift();
  if (!shift) return;
  for (Verdict& verdict : verdicts) {
    verdict.confidence = std::min(0.99, verdict.confidence + 0.04);
    verdict.evidence.push_back(
        fmt::format("an iteration takes {} instead of {} (+{:.0f} %) since about step {}",
                    InSeconds(static_cast<uint64_t>(shift->after_ns)),
                    InSeconds(static_cast<uint64_t>(shift->before_ns)),
                    (shift->after_ns / shift->before_ns - 1) * 100, shift->step));
  }
}

std::vector<Verdict> SlownessDetector::Evaluate(Table& table, Clock::TimePoint now) {
  for (Index comm = 0; comm < watches_.size(); ++comm) {
    if (!watches_[comm]) continue;
    while (auto old = watches_[comm]->gatherer.Take(now - kGatherTimeout)) {
      FinishOperation(*old, comm, table);
    }
  }
  FinishSteps(table, now);
  bool much_slower = false;
  for (const auto& watch : watches_) {
    if (!watch) continue;
    much_slower |= watch->transfers.much_slower();
    longest_ended_ = std::max(longest_ended_, watch->transfers.longest_ended());
  }
  // The windows measured while transfers were slow stay in the ranks' tracks for some time.
  if (much_slower) {
    const double window_ns = std::max(pace_.iteration_ns(), kUnstableWindowNs);
    unstable_until_ = now + Clock::Duration(static_cast<int64_t>(kUnstableWindows * window_ns));
  }
  transfers_unstable_ = now < unstable_until_;
  std::vector<Verdict> verdicts;
  FindStragglers(table, verdicts);
  FindSlowTransfers(table, now, verdicts);
  AddPace(verdicts);
  return verdicts;
}

}  // namespace holdfast::detect
