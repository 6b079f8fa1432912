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
constexpr Clock::Duration kMatrixLeast = std::chrono::seconds(5);
constexpr Clock::Duration kSlowLeast = std::chrono::seconds(20);  // that transfers must be slow
constexpr Clock::Duration kSlowMost = std::chrono::seconds(120);
constexpr Clock::Duration kMatrixWait = std::chrono::seconds(60);
constexpr size_t kMatrixCellsAMember = 16;
constexpr size_t kWantedMax = 64;
constexpr Clock::Duration kScanEvery = std::chrono::seconds(60);
constexpr Clock::Duration kScanFor = std::chrono::seconds(10);
constexpr uint64_t kScanOperations = 8;
constexpr uint32_t kScanCells = 4;          // to know what is usual
constexpr double kScanShare = 0.25;         // that a connection must be slower than the others
constexpr size_t kTrackLeast = 10;          // windows, to know a member's lasting excess
constexpr double kLastingLeast = 0.003;     // robust spread of lasting excesses, at least
constexpr double kLastingUsual = 0.0045;    // what it usually is: of few members some show less,
constexpr double kLastingWeight = 8;        // so it counts as much as so many of them
constexpr size_t kRingLeast = 4;            // members: of a pair each may be a stage
constexpr double kLikeIt = 0.5;             // of a rank's excess, to be of its kind
constexpr size_t kKindShare = 64;           // of so many others one may be like it by chance
constexpr size_t kFewOthers = 6;            // show little of what is usual: then it has to be
constexpr double kFewAlways = 0.06;         // this much, to be slow and no slower kind
constexpr double kShiftLeast = 0.0015;      // the same of their changes
constexpr double kLongShiftLeast = 0.0007;  // and of those that are looked at for longer
constexpr double kUpper = 0.6745 / 1.2816;  // the median of |normal| beside its upper fifth
constexpr uint32_t kOftenLeast = 5;         // very late windows
constexpr double kOftenTimes = 3;           // as many as are expected, to be worth a calculation
constexpr double kOftenUnseen = 3;          // that may be usual where none was seen, at 95 %
constexpr uint32_t kOftenWidths[] = {16, 32, 64, 128};
constexpr double kAloneSteps = 3;  // without an operation: ranks do not wait for each other
constexpr double kExplains = 0.5;
constexpr double kDoubtWindows = 25;
constexpr double kDoubtWindowNs = 1e9;
constexpr double kSure = 2;   // times the least z, to be believed at once
constexpr double kDoubt = 2;  // of lateness while transfers are slow: what overlaps is another
constexpr uint32_t kClump = 2;
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

bool IsAlways(const Track& track, double excess) {
  return track.knows_past() && track.usual() >= kLikeIt * excess;
}

}  // namespace

double LastingSpread(std::span<double> excesses) {
  const auto members = static_cast<double>(excesses.size());
  double shown = LowerMedian(excesses);
  if (excesses.size() >= kFewOthers) shown = std::max(shown, Quantile(excesses, 0.8) * kUpper);
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
      // Stalls come in clumps: two of them are one chance.
      if (BinomialTail(strong / kClump, of / kClump, p) < least) {
        return Often{.strong = strong, .of = of, .all_strong = usage.strong[level]};
      }
    }
  }
  return std::nullopt;
}

/// All members meet in it; or each sends as often as the others, and they do nothing else.
bool Slowness::Comparable(Func func, const CommInfo& comm) {
  if (IsSynchronous(func)) return true;
  if (func != Func::kSend) return false;
  for (size_t other = 0; other < kFuncs; ++other) {
    if (IsSynchronous(static_cast<Func>(other)) && comm.completed_most[other] > 0) return false;
  }
  const auto& row = comm.completed[static_cast<size_t>(func)];
  if (row.empty()) return false;
  const auto [least, most] = std::minmax_element(row.begin(), row.end());
  return *least * 10 >= *most * 9;
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
  last_operation_ = now;
  if (!Comparable(record.func, comm) || comm.members.size() < 2) return;
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
  const std::vector<bool> excused = Excused(operation, table.comm(comm).members, table);
  if (excused.empty()) table.NoteDuration(KindOf(role, operation.func, operation.bytes), most);
  if (IsSynchronous(operation.func)) watch.transfers.Add(operation, pace_.iteration_ns());
  if (watch.stages_known != table.pairwise_comms()) {
    watch.stages_known = table.pairwise_comms();
    watch.spans_stages = table.SpansStages(comm);
  }
  const bool alike = !watch.spans_stages || IsRing(comm, table);
  watch.lateness.Add(operation, pace_.iteration_ns(), excused, alike, usage_[ClassOf(comm, table)]);
}

/// Members that do nothing but send to each other, all as often and as much: they have the same
/// work. First and last stages of a pipeline send less than those between them.
bool Slowness::IsRing(Index comm, const Table& table) const {
  const CommInfo& info = table.comm(comm);
  return table.comms().size() == 1 && info.pairwise && info.role != Role::kPipeline &&
         info.members.size() >= kRingLeast && !watches_[comm]->lateness.transfers_differ();
}

/// Members that were in a checkpoint or the like about when the operation's window was.
std::vector<bool> Slowness::Excused(const Gathered& operation, std::span<const uint32_t> members,
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

void Slowness::TellSteps(const Table& table) {
  steps_ = std::make_unique<Steps>(table.world(), options_);
  for (uint32_t rank = 0; rank < table.world(); ++rank) everybody_.push_back(rank);
}

/// Where ranks wait for each other in every step, its length says nothing about one of them.
void Slowness::FinishSteps(const Table& table, Clock::TimePoint now) {
  if (!steps_) return;
  const auto alone = Clock::Duration(static_cast<int64_t>(kAloneSteps * pace_.iteration_ns()));
  while (auto step = steps_->Take(now - kGatherFor)) {
    if (last_operation_ != Clock::TimePoint() && now - last_operation_ < alone) continue;
    steps_->lateness().Add(*step, pace_.iteration_ns(), Excused(*step, everybody_, table), true,
                           usage_[kStepsClass]);
  }
}

void Slowness::Observe(const Digest& digest, Index node, Table& table, Clock::TimePoint now) {
  for (const RankState& state : digest.ranks) {
    if (state.rank.value >= table.world() || table.rank(state.rank.value).node != node) continue;
    for (const StepTime& step : state.steps_done) {
      pace_.Add(step.step, step.duration_ns);
      if (!steps_) TellSteps(table);
      steps_->Add(state.rank.value, step, now);
    }
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
    AddSums(sums, seat->comm, table);
  }
}

const Slowness::Class Slowness::kStepsClass = {Role::kUnknown, true, 0};

Slowness::Class Slowness::ClassOf(Index comm, const Table& table) const {
  return {table.comm(comm).role, !watches_[comm]->spans_stages, table.comm(comm).members.size()};
}

const std::vector<Slowness::Lasting>& Slowness::LastingOf(const Class& of,
                                                          const Table& table) const {
  const auto [found, first] = lasting_.try_emplace(of);
  std::vector<Lasting>& lasting = found->second;
  if (!first) return lasting;
  const auto add = [&lasting](const Lateness& lateness, std::span<const uint32_t> members) {
    for (uint32_t position = 0; position < members.size(); ++position) {
      const Track& track = lateness.tracks()[position];
      const double excess = track.excess();
      if (track.recent() < kTrackLeast || excess == 0) continue;  // 0: it is the measure itself
      lasting.push_back({members[position], excess, IsAlways(track, excess)});
    }
  };
  if (of == kStepsClass) add(steps_->lateness(), everybody_);
  for (Index comm = 0; comm < watches_.size(); ++comm) {
    if (!watches_[comm] || ClassOf(comm, table) != of) continue;
    add(watches_[comm]->lateness, table.comm(comm).members);
  }
  return lasting;
}

/// Later than the others are, by what they show without it. Who always was, is slow only if hardly
/// another rank is like it: else they are a kind of their own, an older GPU for instance.
bool Slowness::LateBesideOthers(const Track& track, uint32_t rank,
                                const std::vector<Lasting>& lasting, double few, double& z) const {
  const double excess = track.excess();
  const bool always = IsAlways(track, excess);
  std::vector<double> others;
  std::set<uint32_t> like_it;
  for (const Lasting& other : lasting) {
    if (other.rank == rank) continue;
    others.push_back(std::abs(other.excess));
    if (other.always && other.excess >= kLikeIt * excess) like_it.insert(other.rank);
  }
  z = 0.6745 * excess / (few * LastingSpread(others));
  if (z <= options_.z_min) return false;
  // Who was not has become so: noise that lasts for a while is no change.
  if (!always) return !track.knows_past() || SlowerZ(track, RoleUsage()) > options_.z_min;
  if (others.size() < kFewOthers && excess < kFewAlways) return false;
  return like_it.size() <= others.size() / kKindShare;
}

/// A change beside those that the role's members are known to have, and those that noise makes.
double Slowness::SlowerZ(const Track& track, const RoleUsage& usage) {
  const double usual = 1.4826 * std::max(usage.shifts.Median(), kShiftLeast);
  const double noise = std::max(usage.noise, track.own_noise());
  return track.shift() / std::max(usual, track.shift_error(noise));
}

/// The same of a small change that lasted long: more windows, less noise.
double Slowness::LastingZ(const Track& track, const RoleUsage& usage) {
  const double usual = 1.4826 * std::max(usage.shifts.Median(), kLongShiftLeast);
  const double noise = std::max(usage.noise, track.own_noise());
  return track.lasting_shift() / std::max(usual, track.lasting_shift_error(noise));
}

std::optional<Verdict> Slowness::Late(Index comm, uint32_t position, const Table& table) const {
  const bool steps = comm == kNone;
  const Lateness& lateness = steps ? steps_->lateness() : watches_[comm]->lateness;
  const std::span<const uint32_t> members =
      steps ? std::span<const uint32_t>(everybody_) : table.comm(comm).members;
  const Track& track = lateness.tracks()[position];
  const bool alike = lateness.alike();
  const Class of = steps ? kStepsClass : ClassOf(comm, table);
  const RoleUsage& usage = usage_.at(of);
  const uint32_t late_count = track.late_count(options_.windows);
  const uint32_t slower_count = track.slower_count(options_.windows);
  const bool late = alike && late_count >= options_.windows_late;
  const bool slower = slower_count >= options_.windows_late;
  const auto often =
      alike && !in_doubt_ ? OftenVeryLate(track, usage, table.world()) : std::optional<Often>();
  const bool small = track.small_change(lateness.small_from());
  if (!late && !slower && !small && !often) return std::nullopt;
  const uint32_t rank = members[position];
  // In a pair or a triple the measure is the fastest member: two members' differences add up.
  const double few = members.size() < 4 ? std::sqrt(2.0) : 1;
  double late_z = 0;
  const double doubt = in_doubt_ ? kDoubt : 1;
  // What noise shows in some windows of thousands it does not show again in the next ones.
  const auto enough = [&](double z, double z_min, uint32_t of_twice) {
    return z > doubt * (of_twice >= 2 * options_.windows_late ? z_min : kSure * z_min);
  };
  const bool is_late = late && LateBesideOthers(track, rank, LastingOf(of, table), few, late_z) &&
                       enough(late_z, options_.z_min, track.late_count(2 * options_.windows));
  const double slower_z = slower ? SlowerZ(track, usage) : 0;
  const double small_z = small ? LastingZ(track, usage) : 0;
  const bool is_slower =
      enough(slower_z, options_.slower_z_min, track.slower_count(2 * options_.windows));
  const bool is_small = small_z > doubt * options_.small_z_min;
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
  const double window_ns = lateness.window_ns();
  const std::string place =
      steps ? "its steps"
            : fmt::format("the {}communicator {:x}", Word(table.comm(comm).role),
                          table.comm(comm).id.value);
  auto lasting = [&](double share, std::string_view than, uint32_t count, double by_z) {
    verdict.evidence.push_back(fmt::format(
        "rank {} needed {} ({:.1f} % of {}) more for itself than {} in {}, late in {} of the last "
        "{} windows, z = {:.0f}",
        rank, InSeconds(static_cast<uint64_t>(share * window_ns)), share * 100,
        InSeconds(static_cast<uint64_t>(window_ns)), than, place, count, track.recent(), by_z));
  };
  if (is_late) lasting(track.excess(), "its peers", late_count, late_z);
  if (is_slower) {
    lasting(track.shift(), "before, relative to its peers,", slower_count, slower_z);
  }
  if (is_small && !is_late && !is_slower) {
    verdict.evidence.push_back(
        fmt::format("rank {} needed {:.1f} % of {} more for itself than before, relative to its "
                    "peers, in {} in "
                    "the last {} windows and as much in the {} before, z = {:.0f}",
                    rank, track.lasting_shift() * 100, InSeconds(static_cast<uint64_t>(window_ns)),
                    place, Track::kRecent, Track::kLong, small_z));
  }
  if (!lasts) {
    verdict.evidence.push_back(fmt::format(
        "rank {} came very late in {} of the last {} windows of {}; of all ranks together {} of "
        "{} windows were as late",
        rank, often->strong, often->of, place, often->all_strong, usage.windows));
  }
  if (lateness.by_waits_only()) {
    verdict.evidence.emplace_back("by waits alone: its blocked time is not told");
  }
  return verdict;
}

void Slowness::LookForLate(const Table& table, std::vector<Verdict>& verdicts) const {
  lasting_.clear();
  std::map<uint32_t, Verdict> late;             // by rank, the surest
  std::set<std::pair<Index, uint32_t>> places;  // communicator and rank
  std::set<uint32_t> by_waits;
  for (Index comm = 0; comm < watches_.size(); ++comm) {
    if (!watches_[comm] || !watches_[comm]->lateness.suspicious()) continue;
    const CommInfo& info = table.comm(comm);
    for (uint32_t position = 0; position < info.members.size(); ++position) {
      auto verdict = Late(comm, position, table);
      if (!verdict) continue;
      const uint32_t rank = info.members[position];
      places.insert({comm, rank});
      if (watches_[comm]->lateness.by_waits_only()) by_waits.insert(rank);
      const auto [at, added] = late.emplace(rank, *verdict);
      if (!added && at->second.confidence < verdict->confidence) at->second = *verdict;
    }
  }
  if (steps_ && steps_->lateness().suspicious()) {
    for (const uint32_t rank : everybody_) {
      if (auto verdict = Late(kNone, rank, table)) late.emplace(rank, std::move(*verdict));
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

Verdict Slowness::SlowTransfer(const std::optional<Transfers::Slow>& slow,
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
        "{} of {} bytes in communicator {:x} takes {} where it took {} (+{:.0f} %), for {:.0f} s, "
        "z = {:.0f}",
        ToString(slow->func), slow->bytes, table.comm(comm).id.value,
        InSeconds(static_cast<uint64_t>(slow->now_ns)),
        InSeconds(static_cast<uint64_t>(slow->usual_ns)), (slow->now_ns / slow->usual_ns - 1) * 100,
        slow->lasting_s, slow->z));
  } else {
    verdict.evidence.emplace_back("connections were compared twice, a while apart");
  }
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
        pool.matrix.operations()));
  }
  return verdict;
}

void Slowness::AddSums(const PeerSums& sums, Index comm, const Table& table) {
  const CommInfo& info = table.comm(comm);
  const bool watched = comm < watches_.size() && watches_[comm];
  const Class of = watched ? ClassOf(comm, table) : Class{info.role, false, info.members.size()};
  if (const auto pool = pools_.find(of); pool != pools_.end()) pool->second.matrix.Add(sums);
  if (scanned_at_ == Clock::TimePoint()) return;
  scans_.try_emplace(of, kMatrixCellsAMember * table.world()).first->second.matrix.Add(sums);
}

Slowness::Pool& Slowness::OpenPool(const Class& of, const Table& table, Clock::TimePoint now) {
  const auto found = pools_.find(of);
  if (found != pools_.end()) return found->second;
  size_t members = 0;
  for (const CommInfo& comm : table.comms()) members += comm.members.size();
  Pool& pool = pools_.try_emplace(of, kMatrixCellsAMember * members).first->second;
  pool.since = now;
  return pool;
}

void Slowness::LookForTransfers(const Table& table, Clock::TimePoint now,
                                std::vector<Verdict>& verdicts) {
  wanted_.clear();
  size_t watched = 0;
  size_t slow_count = 0;
  // Where congestion has come and gone, more of it is no news.
  const auto least = std::clamp<Clock::Duration>(healed_ * 3 / 2, kSlowLeast, kSlowMost);
  std::map<Class, std::pair<Index, Transfers::Slow>> slowest;
  for (Index comm = 0; comm < watches_.size(); ++comm) {
    if (!watches_[comm]) continue;
    ++watched;
    const auto slow = watches_[comm]->transfers.slow(least);
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
        pool.matrix.operations() >= kMatrixOperations && now - pool.since >= kMatrixLeast;
    const auto blame = enough ? pool.matrix.Find(options_) : std::nullopt;
    pool.widespread |= blame && blame->widespread;
    // A connection that is hardly slower does not explain an operation that is much slower.
    const bool explains =
        blame && blame->ratio - 1 >= kExplains * (slow.now_ns / slow.usual_ns - 1);
    if (explains && !pool.widespread) {
      found.push_back(SlowTransfer(slow, *blame, pool, table, comm));
    } else if (pool.widespread || now - pool.since > kMatrixWait) {
      Verdict verdict = SlowTransfer(slow, {}, pool, table, comm);
      verdict.edge.reset();
      verdict.nodes.clear();
      verdict.confidence = 0.5;
      verdict.evidence.back() = "no single connection stands out";
      if (!pool.widespread) {
        found.push_back(std::move(verdict));
        continue;
      }
      verdict.fault = FaultClass::kFabric;
      verdict.evidence.back() = "connections are slow that have no end in common: nobody is blamed";
      if (!widespread) widespread = std::move(verdict);
    }
  }
  if (!widespread && slow_count >= kFabricCommsLeast && slow_count * 2 >= watched &&
      found.empty()) {
    widespread = {.fault = FaultClass::kFabric,
                  .ranks = {},
                  .edge = {},
                  .nodes = {},
                  .confidence = 0.7,
                  .action = Action::kAlert,
                  .evidence = {fmt::format(
                      "transfers are slow in {} of {} communicators at once: nobody is blamed",
                      slow_count, watched)}};
  }
  if (widespread) {
    verdicts.push_back(std::move(*widespread));
    return;
  }
  for (Verdict& verdict : found) verdicts.push_back(std::move(verdict));
  if (slowest.empty()) Scan(table, now, verdicts);
}

/// What was slow from the start has no past, and what only sends and receives has no operations of
/// all: now and then all connections are compared.
void Slowness::Scan(const Table& table, Clock::TimePoint now, std::vector<Verdict>& verdicts) {
  verdicts.insert(verdicts.end(), scan_verdicts_.begin(), scan_verdicts_.end());
  if (scanned_at_ == Clock::TimePoint()) scanned_at_ = now;
  const Clock::Duration since = now - scanned_at_;
  if (since < kScanEvery) return;
  if (since < kScanEvery + kScanFor) {
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
        pool.matrix.operations() >= kScanOperations ? pool.matrix.Find(strict) : std::nullopt;
    if (!blame || blame->widespread || blame->of < kScanCells) continue;
    worst = blame->edge;
    if (scan_found_ != worst) continue;
    scan_verdicts_.push_back(SlowTransfer(std::nullopt, *blame, pool, table, 0));
  }
  scan_found_ = worst;
  scans_.clear();
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
  FinishSteps(table, now);
  bool hot = false;
  for (const auto& watch : watches_) {
    if (!watch) continue;
    hot |= watch->transfers.hot();
    healed_ = std::max(healed_, watch->transfers.healed());
  }
  // Their windows stay in the ranks' records for a while.
  if (hot) {
    in_doubt_until_ = now + Clock::Duration(static_cast<int64_t>(
                                kDoubtWindows * std::max(pace_.iteration_ns(), kDoubtWindowNs)));
  }
  in_doubt_ = now < in_doubt_until_;
  std::vector<Verdict> verdicts;
  LookForLate(table, verdicts);
  LookForTransfers(table, now, verdicts);
  AddPace(verdicts);
  return verdicts;
}

}  // namespace holdfast::detect
