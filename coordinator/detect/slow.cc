#include "coordinator/detect/slow.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "coordinator/detect/evidence.h"

namespace holdfast::detect {
namespace {

constexpr Clock::Duration kGatherFor = std::chrono::seconds(3);
constexpr Clock::Duration kDigestDelay = std::chrono::seconds(2);
constexpr uint64_t kMatrixOperations = 16;
constexpr Clock::Duration kMatrixWait = std::chrono::seconds(60);
constexpr size_t kMatrixCellsAMember = 16;
constexpr size_t kWantedMax = 64;
constexpr size_t kTrackLeast = 10;          // windows, to know a member's lasting excess
constexpr double kLastingLeast = 0.003;     // robust spread of lasting excesses, at least
constexpr double kLastingUsual = 0.0045;    // what it usually is: of few members some show less,
constexpr double kLastingWeight = 8;        // so it counts as much as so many of them
constexpr double kShiftLeast = 0.0015;      // the same of their changes
constexpr double kLongShiftLeast = 0.0007;  // and of those that are looked at for longer
constexpr uint32_t kOftenLeast = 5;         // very late windows
constexpr double kOftenTimes = 3;           // as many as are expected, to be worth a calculation
constexpr double kOftenUnseen = 3;          // that may be usual where none was seen, at 95 %
constexpr uint32_t kOftenWidths[] = {16, 32, 64, 128};
constexpr double kOftenByChance = 1e-6;  // over all ranks, at most
constexpr size_t kFabricCommsLeast = 4;

bool Sane(const Collective& record) {
  return static_cast<uint8_t>(record.func) <= kFuncMax && record.seq < kSeqMax &&
         record.bytes <= kBytesMax && record.stop_ns > record.start_ns &&
         record.stop_ns - record.start_ns <= kDurationNsMax && record.stop_ns < UINT64_MAX / 2 &&
         record.blocked_ns <= record.start_ns + kDurationNsMax;
}

std::string_view Word(Role role) {
  static constexpr std::string_view kWords[] = {"", "data-parallel ", "tensor-parallel ",
                                                "pipeline ", "expert-parallel "};
  return kWords[static_cast<size_t>(role)];
}

}  // namespace

double LastingSpread(std::span<double> excesses) {
  const auto members = static_cast<double>(excesses.size());
  const double shown = LowerMedian(excesses);
  return std::max((members * shown + kLastingWeight * kLastingUsual) / (members + kLastingWeight),
                  kLastingLeast);
}

std::optional<Often> OftenVeryLate(const Track& track, const RoleUsage& usage, size_t tracks) {
  if (track.strong_count() < kOftenLeast) return std::nullopt;
  constexpr double kTests = Track::kLevels * std::size(kOftenWidths);
  const double least = kOftenByChance / (kTests * static_cast<double>(tracks));
  for (size_t level = 0; level < Track::kLevels; ++level) {
    const uint64_t own = track.strong_count(level);
    const uint64_t windows = std::min(track.windows(), LastWindows::kKept);
    const auto others =
        static_cast<double>(usage.strong[level] - std::min(usage.strong[level], own));
    const double p = (others + kOftenUnseen) / static_cast<double>(usage.windows - windows + 1);
    for (const uint32_t width : kOftenWidths) {
      const uint32_t strong = track.strong_count(level, width);
      const uint32_t of = std::min(width, track.windows());
      if (strong < kOftenLeast || strong < kOftenTimes * p * of) continue;
      if (BinomialTail(strong, of, p) < least) {
        return Often{.strong = strong, .of = of, .all_strong = usage.strong[level]};
      }
    }
  }
  return std::nullopt;
}

void Slowness::TakeRecord(const Collective& record, Index node, Table& table,
                          Clock::TimePoint now) {
  const Seat* seat = table.Find(record.rank, record.comm, node);
  if (seat == nullptr || !Sane(record)) {
    table.RefuseRecord();
    return;
  }
  table.NoteCompleted(*seat, record.func, record.seq + 1, table.node(node).as_of);
  const CommInfo& comm = table.comm(seat->comm);
  if (!IsSynchronous(record.func) || comm.members.size() < 2) return;
  if (watches_.size() <= seat->comm) watches_.resize(seat->comm + 1);
  std::unique_ptr<Watch>& watch = watches_[seat->comm];
  if (!watch) {
    watch = std::make_unique<Watch>(static_cast<uint32_t>(comm.members.size()), options_);
  }
  watch->gatherer.Add(record, seat->position, now);
  while (auto whole = watch->gatherer.Take(Clock::TimePoint::min())) {
    Finish(*whole, seat->comm, table);
  }
}

void Slowness::Finish(const Gathered& operation, Index comm, Table& table) {
  Watch& watch = *watches_[comm];
  uint64_t most = 0;
  for (const Sample& sample : operation.samples) {
    if (sample.present()) most = std::max(most, sample.duration_ns());
  }
  const Role role = table.comm(comm).role;
  const std::vector<bool> excused = Excused(operation, comm, table);
  if (excused.empty()) table.NoteDuration(KindOf(role, operation.func, operation.bytes), most);
  watch.transfers.Add(operation);
  watch.lateness.Add(operation, pace_.iteration_ns(), excused, usage_[static_cast<size_t>(role)]);
}

/// Members that were in a checkpoint or the like about when the operation's window was.
std::vector<bool> Slowness::Excused(const Gathered& operation, Index comm,
                                    const Table& table) const {
  const auto window = Clock::Duration(static_cast<int64_t>(2 * pace_.iteration_ns()));
  const auto from = operation.since - window - kDigestDelay;
  if (table.excused_at() == Clock::TimePoint::min() || table.excused_at() < from) return {};
  std::vector<bool> excused;
  for (uint32_t rank : table.comm(comm).members) {
    excused.push_back(table.rank(rank).excused_at >= from &&
                      table.rank(rank).excused_at != Clock::TimePoint::min());
  }
  return excused;
}

void Slowness::Observe(const Digest& digest, Index node, Table& table, Clock::TimePoint now) {
  for (const RankState& state : digest.ranks) {
    if (state.rank.value >= table.world() || table.rank(state.rank.value).node != node) continue;
    for (const StepTime& step : state.steps_done) pace_.Add(step.step, step.duration_ns);
  }
  for (const Collective& record : digest.collectives) TakeRecord(record, node, table, now);
  for (const PeerSums& sums : digest.peer_sums) {
    const Seat* seat = table.Find(sums.rank, sums.comm, node);
    const bool sane = seat != nullptr && sums.peer.value < table.world() &&
                      sums.peer != sums.rank && static_cast<uint8_t>(sums.direction) <= 1 &&
                      sums.bytes <= kBytesMax && sums.wait_ns <= kDurationNsMax &&
                      sums.operations <= 1'000'000;
    if (!sane) {
      table.RefuseRecord();
      continue;
    }
    if (seat->comm >= watches_.size() || !watches_[seat->comm]) continue;
    if (watches_[seat->comm]->matrix) watches_[seat->comm]->matrix->Add(sums);
  }
}

double Slowness::LastingSpreadOf(Role role, const Table& table) const {
  std::vector<double> lasting;
  for (Index comm = 0; comm < watches_.size(); ++comm) {
    if (!watches_[comm] || table.comm(comm).role != role) continue;
    for (const Track& track : watches_[comm]->lateness.tracks()) {
      if (track.recent() < kTrackLeast) continue;
      const double excess = track.excess();
      if (excess != 0) lasting.push_back(std::abs(excess));  // 0: it is the measure itself
    }
  }
  return LastingSpread(lasting);
}

/// A change beside those that the role's members are known to have, and those that noise makes.
double Slowness::SlowerZ(const Track& track, const RoleUsage& usage) {
  const double usual = 1.4826 * std::max(usage.shifts.Median(), kShiftLeast);
  return track.shift() / std::max(usual, track.shift_error(usage.noise));
}

/// The same of a small change that lasted long: more windows, less noise.
double Slowness::LastingZ(const Track& track, const RoleUsage& usage) {
  const double usual = 1.4826 * std::max(usage.shifts.Median(), kLongShiftLeast);
  return track.lasting_shift() / std::max(usual, track.lasting_shift_error(usage.noise));
}

std::optional<Verdict> Slowness::Late(Index comm, uint32_t position, double& lasting_spread,
                                      const Table& table) const {
  const Watch& watch = *watches_[comm];
  const CommInfo& info = table.comm(comm);
  const Track& track = watch.lateness.tracks()[position];
  const RoleUsage& usage = usage_[static_cast<size_t>(info.role)];
  const bool late = track.late_count() >= options_.windows_late;
  const bool slower = track.slower_count() >= options_.windows_late;
  const auto often = OftenVeryLate(track, usage, table.world());
  const bool small = track.small_change(watch.lateness.small_from());
  if (!late && !slower && !small && !often) return std::nullopt;
  if (late && lasting_spread == 0) lasting_spread = LastingSpreadOf(info.role, table);
  const uint32_t rank = info.members[position];
  // In a pair or a triple the measure is the fastest member: two members' differences add up.
  const double few = info.members.size() < 4 ? std::sqrt(2.0) : 1;
  const double late_z = late ? 0.6745 * track.excess() / (few * lasting_spread) : 0;
  const double slower_z = slower ? SlowerZ(track, usage) : 0;
  const double small_z = small ? LastingZ(track, usage) : 0;
  const bool is_late = late_z > options_.z_min;
  const bool is_slower = slower_z > options_.slower_z_min;
  const bool is_small = small_z > options_.small_z_min;
  const bool lasts = is_late || is_slower || is_small;
  if (!lasts && !often) return std::nullopt;
  Verdict verdict{
      .fault = FaultClass::kComputeSlow,
      .ranks = {Rank{rank}},
      .edge = {},
      .nodes = {table.NodeNameOf(rank)},
      .confidence = lasts ? std::min(0.95, 0.6 + std::max({late_z, slower_z, small_z}) / 50) : 0.7,
      .action = Action::kAlert,
      .evidence = {}};
  const double window_ns = watch.lateness.window_ns();
  const std::string place = fmt::format("the {}communicator {:x}", Word(info.role), info.id.value);
  auto lasting = [&](double share, std::string_view than, uint32_t count, double by_z) {
    verdict.evidence.push_back(fmt::format(
        "rank {} needed {} ({:.1f} % of {}) more for itself than {} in {}, late in {} of the last "
        "{} windows, z = {:.0f}",
        rank, InSeconds(static_cast<uint64_t>(share * window_ns)), share * 100,
        InSeconds(static_cast<uint64_t>(window_ns)), than, place, count, track.recent(), by_z));
  };
  if (is_late) lasting(track.excess(), "its peers", track.late_count(), late_z);
  if (is_slower) {
    lasting(track.shift(), "it used to beside its peers", track.slower_count(), slower_z);
  }
  if (is_small && !is_late && !is_slower) {
    verdict.evidence.push_back(fmt::format(
        "rank {} needed {:.1f} % of {} more for itself than it used to beside its peers in {} in "
        "the last {} windows and as much in the {} before, z = {:.0f}",
        rank, track.lasting_shift() * 100, InSeconds(static_cast<uint64_t>(window_ns)), place,
        Track::kRecent, Track::kLong, small_z));
  }
  if (!lasts) {
    verdict.evidence.push_back(fmt::format(
        "rank {} came very late in {} of the last {} windows of {}; of all ranks together {} of "
        "{} windows were as late",
        rank, often->strong, often->of, place, often->all_strong, usage.windows));
  }
  if (watch.lateness.by_waits_only()) {
    verdict.evidence.emplace_back("by waits alone: its blocked time is not told");
  }
  return verdict;
}

void Slowness::LookForLate(const Table& table, std::vector<Verdict>& verdicts) const {
  std::array<double, kRoleMax + 1> lasting{};
  std::map<uint32_t, Verdict> late;             // by rank, the surest
  std::set<std::pair<Index, uint32_t>> places;  // communicator and rank
  std::set<uint32_t> by_waits;
  for (Index comm = 0; comm < watches_.size(); ++comm) {
    if (!watches_[comm] || !watches_[comm]->lateness.suspicious()) continue;
    const CommInfo& info = table.comm(comm);
    for (uint32_t position = 0; position < info.members.size(); ++position) {
      auto verdict = Late(comm, position, lasting[static_cast<size_t>(info.role)], table);
      if (!verdict) continue;
      const uint32_t rank = info.members[position];
      places.insert({comm, rank});
      if (watches_[comm]->lateness.by_waits_only()) by_waits.insert(rank);
      const auto [at, added] = late.emplace(rank, *verdict);
      if (!added && at->second.confidence < verdict->confidence) at->second = *verdict;
    }
  }
  // Waits alone are inherited: who is late here because another was late there is not the cause.
  for (uint32_t rank : by_waits) {
    const bool inherited = std::any_of(
        table.rank(rank).seats.begin(), table.rank(rank).seats.end(), [&](const Seat& seat) {
          return places.count({seat.comm, rank}) == 0 &&
                 std::any_of(places.begin(), places.end(),
                             [&](const auto& place) { return place.first == seat.comm; });
        });
    if (inherited) late.erase(rank);
  }
  for (auto& [rank, verdict] : late) verdicts.push_back(std::move(verdict));
}

Verdict Slowness::SlowTransfer(const Watch& watch, const Transfers::Slow& slow,
                               const DelayMatrix::Blame& blame, const Table& table,
                               Index comm) const {
  Verdict verdict{.fault = FaultClass::kCommSlow,
                  .ranks = {},
                  .edge = {},
                  .nodes = {},
                  .confidence = 0.85,
                  .action = Action::kAlert,
                  .evidence = {}};
  verdict.evidence.push_back(fmt::format(
      "{} of {} bytes in communicator {:x} takes {} where it took {} (+{:.0f} %), in {} of the "
      "last 8, z = {:.0f}",
      ToString(slow.func), slow.bytes, table.comm(comm).id.value,
      InSeconds(static_cast<uint64_t>(slow.now_ns)),
      InSeconds(static_cast<uint64_t>(slow.usual_ns)), (slow.now_ns / slow.usual_ns - 1) * 100,
      slow.hot, slow.z));
  if (blame.rank) {
    verdict.ranks = {*blame.rank};
    verdict.nodes = {table.NodeNameOf(blame.rank->value)};
    verdict.evidence.push_back(fmt::format(
        "{} of {} connections that rank {} {} are slow; the slowest, rank {} to rank {}, waits "
        "{:.1f} times as long a byte as the usual one, z = {:.0f}",
        blame.hot, blame.populated, blame.rank->value, blame.sends ? "sends on" : "receives on",
        blame.edge.from.value, blame.edge.to.value, blame.ratio, blame.z));
  } else {
    verdict.edge = blame.edge;
    verdict.nodes = {table.NodeNameOf(blame.edge.from.value),
                     table.NodeNameOf(blame.edge.to.value)};
    if (verdict.nodes[0] == verdict.nodes[1]) verdict.nodes.pop_back();
    verdict.evidence.push_back(fmt::format(
        "rank {} to rank {} waits {:.1f} times as long a byte as the usual connection, z = {:.0f} "
        "({} operations); test the pair: either end may be the cause",
        blame.edge.from.value, blame.edge.to.value, blame.ratio, blame.z,
        watch.matrix->operations()));
  }
  return verdict;
}

void Slowness::LookForTransfers(const Table& table, Clock::TimePoint now,
                                std::vector<Verdict>& verdicts) {
  wanted_.clear();
  size_t watched = 0;
  size_t slow_count = 0;
  std::string example;
  std::vector<Verdict> found;
  for (Index comm = 0; comm < watches_.size(); ++comm) {
    if (!watches_[comm]) continue;
    Watch& watch = *watches_[comm];
    ++watched;
    const auto slow = watch.transfers.slow();
    if (!slow) {
      watch.matrix.reset();
      continue;
    }
    ++slow_count;
    if (!watch.matrix) {
      watch.matrix =
          std::make_unique<DelayMatrix>(kMatrixCellsAMember * table.comm(comm).members.size());
      watch.slow_since = now;
    }
    if (wanted_.size() < kWantedMax) wanted_.push_back(table.comm(comm).id);
    const auto blame = watch.matrix->operations() >= kMatrixOperations
                           ? watch.matrix->Find(options_)
                           : std::nullopt;
    if (blame) {
      found.push_back(SlowTransfer(watch, *slow, *blame, table, comm));
    } else if (now - watch.slow_since > kMatrixWait) {
      Verdict verdict = SlowTransfer(watch, *slow, {}, table, comm);
      verdict.edge.reset();
      verdict.nodes.clear();
      verdict.confidence = 0.5;
      verdict.evidence.back() = "no single connection stands out";
      found.push_back(std::move(verdict));
    }
  }
  if (slow_count >= kFabricCommsLeast && slow_count * 2 >= watched) {
    verdicts.push_back(
        {.fault = FaultClass::kFabric,
         .ranks = {},
         .edge = {},
         .nodes = {},
         .confidence = 0.7,
         .action = Action::kAlert,
         .evidence = {fmt::format("transfers are slow in {} of {} communicators at once: nobody "
                                  "is blamed",
                                  slow_count, watched)}});
    return;
  }
  for (Verdict& verdict : found) verdicts.push_back(std::move(verdict));
}

void Slowness::AddPace(std::vector<Verdict>& verdicts) const {
  const auto shift = pace_.shift();
  if (!shift) return;
  for (Verdict& verdict : verdicts) {
    verdict.confidence = std::min(0.99, verdict.confidence + 0.04);
    verdict.evidence.push_back(
        fmt::format("an iteration takes {} where it took {} (+{:.0f} %), since about step {}",
                    InSeconds(static_cast<uint64_t>(shift->after_ns)),
                    InSeconds(static_cast<uint64_t>(shift->before_ns)),
                    (shift->after_ns / shift->before_ns - 1) * 100, shift->step));
  }
}

std::vector<Verdict> Slowness::Evaluate(Table& table, Clock::TimePoint now) {
  for (Index comm = 0; comm < watches_.size(); ++comm) {
    if (!watches_[comm]) continue;
    while (auto old = watches_[comm]->gatherer.Take(now - kGatherFor)) {
      Finish(*old, comm, table);
    }
  }
  std::vector<Verdict> verdicts;
  LookForLate(table, verdicts);
  LookForTransfers(table, now, verdicts);
  AddPace(verdicts);
  return verdicts;
}

}  // namespace holdfast::detect
