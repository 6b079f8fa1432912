#include "coordinator/detect/slow.h"

#include <fmt/format.h>

#include <algorithm>

#include "coordinator/detect/evidence.h"
#include "coordinator/detect/straggler.h"

namespace holdfast::detect {
namespace {

constexpr Clock::Duration kGatherTimeout = std::chrono::seconds(3);
constexpr Clock::Duration kDigestDelay = std::chrono::seconds(2);

constexpr size_t kRingMin = 4;           // members of a ring; two or three may be pipeline stages
constexpr double kIndependentSteps = 3;  // without an operation: ranks do not wait for each other
constexpr double kUnstableWindows = 25;
constexpr double kUnstableWindowNs = 1e9;
constexpr Clock::Duration kLateWhileCongested = std::chrono::seconds(90);

bool IsPlausible(const CollectiveRecord& record) {
  return static_cast<uint8_t>(record.kind) < kCollectiveKinds && record.sequence < kSequenceMax &&
         record.bytes <= kBytesMax && record.ended_ns > record.started_ns &&
         record.ended_ns - record.started_ns <= kDurationNsMax &&
         record.ended_ns < UINT64_MAX / 2 &&
         record.blocked_ns <= record.started_ns + kDurationNsMax;
}

}  // namespace

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
  if (record.kind == CollectiveKind::kReceive && membership->comm < watches_.size() &&
      watches_[membership->comm]) {
    watches_[membership->comm]->ring.Add(membership->position, record.started_ns, record.ended_ns);
  }
  if (!IsComparable(record.kind, comm) || comm.members.size() < 2) return;
  if (watches_.size() <= membership->comm) watches_.resize(membership->comm + 1);
  std::unique_ptr<Watch>& watch = watches_[membership->comm];
  if (!watch) {
    watch = std::make_unique<Watch>(static_cast<uint32_t>(comm.members.size()), options_,
                                    table.world() <= Lateness::kSmallJob);
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
                     baselines_[ClassOf(comm, watches_, table)]);
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
  while (auto step = steps_->Take(now)) {
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
  if (steps_ && !table.any_operation()) step_ends_.Add(digest, node, table, pace_.iteration_ns());
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
    transfers_.Add(transfers, membership->comm, watches_, table);
  }
}

/// Adds stragglers among ranks that wait for each other in operations which are not recorded.
void SlownessDetector::AddStepEnds(const Table& table, std::vector<Verdict>& verdicts) const {
  const auto longer = pace_.shift();
  if (!longer || table.any_operation()) return;
  for (Verdict& late : step_ends_.Find(*longer, table)) {
    const bool known = std::any_of(verdicts.begin(), verdicts.end(), [&](const Verdict& verdict) {
      return verdict.ranks == late.ranks;
    });
    if (!known) verdicts.push_back(std::move(late));
  }
}

/// Removes the stragglers that have not lasted long enough if congestion was seen recently. Ranks
/// look late while transfers of others are slow, which is not always measured.
void SlownessDetector::HoldBack(std::vector<Verdict>& verdicts, Clock::TimePoint now) {
  std::map<uint32_t, Clock::TimePoint> late_since;
  for (const Verdict& verdict : verdicts) {
    const uint32_t rank = verdict.ranks.front().value;
    const auto before = late_since_.find(rank);
    late_since[rank] = before == late_since_.end() ? now : before->second;
  }
  late_since_ = std::move(late_since);
  if (!transfers_.congested(now)) return;
  std::erase_if(verdicts, [&](const Verdict& verdict) {
    return now - late_since_.at(verdict.ranks.front().value) < kLateWhileCongested;
  });
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

std::vector<Verdict> SlownessDetector::Evaluate(Table& table, Clock::TimePoint now, bool probed) {
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
  }
  // The windows measured while transfers were slow stay in the ranks' tracks for some time.
  if (much_slower) {
    const double window_ns = std::max(pace_.iteration_ns(), kUnstableWindowNs);
    unstable_until_ = now + Clock::Duration(static_cast<int64_t>(kUnstableWindows * window_ns));
  }
  std::vector<Verdict> verdicts = FindStragglers({.options = options_,
                                                  .table = table,
                                                  .watches = watches_,
                                                  .steps = steps_.get(),
                                                  .all_ranks = all_ranks_,
                                                  .baselines = baselines_,
                                                  .pace = pace_,
                                                  .transfers_unstable = now < unstable_until_});
  AddStepEnds(table, verdicts);
  HoldBack(verdicts, now);
  for (Verdict& verdict : transfers_.Find(watches_, table, now,
                                          {last_operation_, pace_.shift().has_value(), probed})) {
    verdicts.push_back(std::move(verdict));
  }
  AddPace(verdicts);
  return verdicts;
}

}  // namespace holdfast::detect
