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
constexpr size_t kTrackLeast = 10;       // windows, to know a member's lasting excess
constexpr double kLastingLeast = 0.003;  // robust spread of lasting excesses, at least
constexpr int kOftenLeast = 5;           // very late windows
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

double Slowness::LastingSpread(Role role, const Table& table) const {
  std::vector<double> lasting;
  for (Index comm = 0; comm < watches_.size(); ++comm) {
    if (!watches_[comm] || table.comm(comm).role != role) continue;
    for (const Track& track : watches_[comm]->lateness.tracks()) {
      if (track.excess.size() < kTrackLeast) continue;
      const auto excess = static_cast<double>(track.excess.Median());
      if (excess != 0) lasting.push_back(std::abs(excess));  // 0: it is the measure itself
    }
  }
  return std::max(LowerMedian(std::span<double>(lasting)), kLastingLeast);
}

/// Very late more often than chance gives any of the ranks.
bool Slowness::Often(const Track& track, const RoleUsage& usage, size_t tracks) const {
  const int strong = track.strong_count();
  if (strong < kOftenLeast) return false;
  const uint64_t windows = std::min<uint64_t>(track.windows, 128);
  const auto others = static_cast<double>(
      usage.strong - std::min<uint64_t>(usage.strong, static_cast<uint64_t>(strong)));
  const double p = (others + 1) / static_cast<double>(usage.windows - windows + 1);
  return BinomialTail(static_cast<uint64_t>(strong), windows, p) <
         kOftenByChance / static_cast<double>(tracks);
}

std::optional<Verdict> Slowness::Late(Index comm, uint32_t position, double& lasting_spread,
                                      const Table& table) const {
  const Watch& watch = *watches_[comm];
  const CommInfo& info = table.comm(comm);
  const Track& track = watch.lateness.tracks()[position];
  const RoleUsage& usage = usage_[static_cast<size_t>(info.role)];
  const bool late = static_cast<uint32_t>(track.late_count()) >= options_.windows_late;
  const bool often = Often(track, usage, table.world());
  if (!late && !often) return std::nullopt;
  if (lasting_spread == 0) lasting_spread = LastingSpread(info.role, table);
  const uint32_t rank = info.members[position];
  const auto excess = static_cast<double>(track.excess.Median());
  // In a pair or a triple the measure is the fastest member: two members' differences add up.
  const double spread = lasting_spread * (info.members.size() < 4 ? std::sqrt(2.0) : 1);
  const double z = 0.6745 * excess / spread;
  const bool lasting = late && z > options_.z_min;
  if (!lasting && !often) return std::nullopt;
  Verdict verdict{.fault = FaultClass::kComputeSlow,
                  .ranks = {Rank{rank}},
                  .edge = {},
                  .nodes = {table.NodeNameOf(rank)},
                  .confidence = lasting ? std::min(0.95, 0.6 + z / 50) : 0.7,
                  .action = Action::kAlert,
                  .evidence = {}};
  const double window_ns = watch.lateness.window_ns();
  if (lasting) {
    verdict.evidence.push_back(fmt::format(
        "rank {} needed {} ({:.1f} % of {}) more for itself than its peers in the {}communicator "
        "{:x}, late in {} of the last {} windows, z = {:.0f}",
        rank, InSeconds(static_cast<uint64_t>(excess * window_ns)), excess * 100,
        InSeconds(static_cast<uint64_t>(window_ns)), Word(info.role), info.id.value,
        track.late_count(), track.excess.size(), z));
  } else {
    verdict.evidence.push_back(fmt::format(
        "rank {} came very late in {} of the last {} windows of the {}communicator {:x}; of all "
        "ranks together {} of {} windows were",
        rank, track.strong_count(), std::min<uint32_t>(track.windows, 128), Word(info.role),
        info.id.value, usage.strong, usage.windows));
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
    double& spread = lasting[static_cast<size_t>(info.role)];
    for (uint32_t position = 0; position < info.members.size(); ++position) {
      auto verdict = Late(comm, position, spread, table);
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
