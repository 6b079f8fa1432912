#include "coordinator/detect/table.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <type_traits>

namespace holdfast::detect {
namespace {

constexpr uint64_t kBucketFloorNs = 1000;
/// Digests whose least delay gives the offset of a node's clock: a minute or two of them.
constexpr uint32_t kOffsetsKept = 128;
constexpr size_t kReachMax = 16;

int64_t NanosOf(Clock::TimePoint time) { return time.time_since_epoch().count(); }

bool IsPlausible(const RankState& state) {
  return state.silent_ns <= kDurationNsMax && state.since_step_ns <= kDurationNsMax &&
         state.step <= kSequenceMax;
}

bool IsPlausible(const RankFlight& flight, uint32_t world) {
  const CollectiveRecord& record = flight.record;
  if (static_cast<uint8_t>(record.kind) >= kCollectiveKinds || record.sequence > kSequenceMax ||
      record.bytes > kBytesMax || flight.age_ns > kDurationNsMax) {
    return false;
  }
  return !flight.edge || (flight.edge->peer.value < world && flight.edge->peer != flight.rank &&
                          static_cast<uint8_t>(flight.edge->direction) <= 1 &&
                          static_cast<uint8_t>(flight.edge->state) < kEdgeStates);
}

/// Whether both are the same operation.
bool AreSame(const Flight& a, const Flight& b) {
  return a.comm == b.comm && a.record.kind == b.record.kind &&
         a.record.sequence == b.record.sequence;
}

/// Whether the flights of a later report contain this one.
bool Contains(const std::vector<Flight>& flights, const Flight& before) {
  return std::any_of(flights.begin(), flights.end(), [&](const Flight& flight) {
    return AreSame(flight, before) && flight.age_ns >= before.age_ns;
  });
}

}  // namespace

void DurationHistogram::Add(uint64_t ns) {
  const uint64_t units = std::max<uint64_t>(ns / (kBucketFloorNs / 4), 4);
  const auto octave = static_cast<uint32_t>(std::bit_width(units)) - 3;
  const uint32_t bucket = octave * 4 + static_cast<uint32_t>((units >> octave) & 3U);
  ++buckets_[std::min<size_t>(bucket, buckets_.size() - 1)];
  ++count_;
}

uint64_t DurationHistogram::Quantile(double q) const {
  if (count_ == 0) return 0;
  const auto wanted = static_cast<uint64_t>(q * static_cast<double>(count_ - 1)) + 1;
  uint64_t below = 0;
  size_t bucket = 0;
  while (bucket + 1 < buckets_.size() && (below += buckets_[bucket]) < wanted) ++bucket;
  return (uint64_t{(bucket & 3U) + 5} << (bucket >> 2U)) * (kBucketFloorNs / 4);
}

uint32_t DurationKeyOf(CommunicatorRole role, CollectiveKind kind, uint64_t bytes) {
  return static_cast<uint32_t>(role) << 16U | static_cast<uint32_t>(kind) << 8U |
         static_cast<uint32_t>(std::bit_width(bytes));
}

Table::Table(Incarnation incarnation, uint32_t world, const DetectorOptions& options)
    : incarnation_(incarnation),
      options_(options),
      ranks_(std::min(world, options.ranks_max)),
      longest_pause_ns_(static_cast<uint64_t>(options.longest_pause.count())) {}

const std::string& Table::NodeNameOf(uint32_t rank) const {
  static const std::string kUnknown = "unknown";
  const Index node = ranks_[rank].node;
  return node == kNone ? kUnknown : nodes_[node].name;
}

Index Table::NodeOf(const Digest& digest) {
  if (auto found = node_index_.find(digest.node); found != node_index_.end()) return found->second;
  if (nodes_.size() >= ranks_.size() || !ValidateName("node", digest.node).ok()) return kNone;
  NodeInfo node;
  node.name = digest.node;
  node.agent_start = digest.agent_start;
  node.newest = digest.number;
  node.least_offset_ns = INT64_MAX;
  node.as_of = Clock::TimePoint::min();
  const auto index = static_cast<Index>(nodes_.size());
  nodes_.push_back(std::move(node));
  node_index_.emplace(digest.node, index);
  return index;
}

void Table::NoteOffset(NodeInfo& node, int64_t offset_ns) {
  if (node.offsets++ == kOffsetsKept) {
    node.least_offset_before_ns = node.least_offset_ns;
    node.least_offset_ns = INT64_MAX;
    node.offsets = 1;
  }
  node.least_offset_ns = std::min(node.least_offset_ns, offset_ns);
}

std::optional<Table::Admitted> Table::Admit(const Digest& digest, Clock::TimePoint now) {
  ++counters_.digests;
  const bool fits = digest.incarnation == incarnation_ && digest.world == ranks_.size() &&
                    digest.taken_ns <= static_cast<uint64_t>(INT64_MAX) / 2 &&
                    digest.ranks.size() <= ranks_.size();
  const Index index = fits ? NodeOf(digest) : kNone;
  if (index == kNone) {
    ++counters_.refused_digests;
    return std::nullopt;
  }
  NodeInfo& node = nodes_[index];
  const bool first = node.as_of == Clock::TimePoint::min();
  bool newest = first;
  if (!first && digest.agent_start != node.agent_start) {
    // A restarted agent numbers its digests again, from any number. Only digests of attached agents
    // arrive here.
    node.agent_start = digest.agent_start;
    node.newest = digest.number;
    node.seen_before = 0;
    newest = true;
  } else if (!first) {
    if (digest.number > node.newest) {
      const uint64_t step = digest.number - node.newest;
      node.seen_before = step > 63 ? 0 : (node.seen_before << 1U | 1U) << (step - 1);
      node.newest = digest.number;
      newest = true;
    } else {
      const uint64_t back = node.newest - digest.number;
      const uint64_t bit = back == 0 || back > 64 ? 0 : uint64_t{1} << (back - 1);
      if (bit == 0 || (node.seen_before & bit) != 0) {
        ++counters_.repeated_digests;
        return std::nullopt;
      }
      node.seen_before |= bit;
    }
  }
  const int64_t offset = NanosOf(now) - static_cast<int64_t>(digest.taken_ns);
  NoteOffset(node, offset);
  if (newest) {
    if (first_report_ == Clock::TimePoint::min()) first_report_ = now;
    const int64_t least = std::min(node.least_offset_ns, node.least_offset_before_ns);
    node.as_of_before = node.as_of;
    node.as_of = now - Clock::Duration(offset - least);
  }
  return Admitted{index, newest};
}

void Table::TakeState(const Digest& digest, const Admitted& admitted) {
  counters_.records += digest.ranks.size() + digest.communicators.size() + digest.in_flight.size() +
                       digest.completed.size();
  for (const RankState& state : digest.ranks) {
    const uint32_t rank = state.rank.value;
    const bool ours =
        rank < ranks_.size() && (ranks_[rank].node == kNone || ranks_[rank].node == admitted.node);
    if (!ours || !IsPlausible(state)) {
      RefuseRecord();
      continue;
    }
    if (admitted.newest) TakeRank(state, admitted.node);
  }
  for (const Communicator& communicator : digest.communicators) {
    TakeCommunicator(communicator, digest, admitted.node);
  }
  if (admitted.newest) {
    for (const RankFlight& flight : digest.in_flight) TakeFlight(flight, admitted.node);
    TakeReach(digest, admitted.node);
    for (const RankState& state : digest.ranks) {
      if (state.rank.value < ranks_.size()) NoteMoved(state.rank.value, admitted.node);
    }
  }
  for (const RankCompleted& completed : digest.completed) {
    const CompletedCount& operations = completed.operations;
    const Membership* membership = Find(completed.rank, operations.communicator, admitted.node);
    if (membership == nullptr || static_cast<uint8_t>(operations.kind) >= kCollectiveKinds ||
        operations.count > kSequenceMax) {
      RefuseRecord();
      continue;
    }
    NoteCompleted(*membership, operations.kind, operations.count, nodes_[admitted.node].as_of);
  }
  NoteBegun(digest, admitted.node);
}

void Table::NoteBegun(const Digest& digest, Index node) {
  if (time_to_begin_) return;
  for (const RankState& state : digest.ranks) {
    if (state.rank.value >= ranks_.size()) continue;
    RankInfo& info = ranks_[state.rank.value];
    if (info.node != node || info.counted || !info.has_begun()) continue;
    info.counted = true;
    ++begun_;
  }
  if (begun_ * 2 < ranks_.size()) return;
  time_to_begin_ =
      std::max<Clock::Duration>(nodes_[node].as_of - first_report_, Clock::Duration(0));
}

Clock::Duration Table::FirstPhaseLimit() const {
  constexpr int kTimesOthers = 3;
  if (!time_to_begin_) return Clock::Duration::max();
  return std::max<Clock::Duration>(options_.absent_after, kTimesOthers * *time_to_begin_);
}

bool Table::IsFirstPhaseOver(const RankInfo& info) const {
  return info.phases != 0 && !info.has_begun() && !phase_lengths_.Known(info.phases) &&
         nodes_[info.node].as_of - info.phase_since > FirstPhaseLimit();
}

void Table::TakeRank(const RankState& state, Index node) {
  RankInfo& info = ranks_[state.rank.value];
  const Clock::TimePoint as_of = nodes_[node].as_of;
  info.node = node;
  if (state.step > info.latest.step) info.moved_at = as_of;
  if (state.process_state == 'R' || state.process_state == 0) info.ran_at = as_of;
  const bool stopped = state.process_state == 'T' || state.process_state == 'Z';
  if (!stopped) {
    info.stopped_since = Clock::TimePoint::min();
  } else if (info.stopped_since == Clock::TimePoint::min()) {
    info.stopped_since = as_of;
  }
  for (const StepTime& step : state.steps) {
    if (step.duration_ns <= kDurationNsMax) {
      info.steps_ns.Add(static_cast<float>(step.duration_ns));
    }
  }
  info.latest = state;
  info.latest.steps.clear();
  info.flights_earlier.swap(info.flights_before);
  info.flights_before.swap(info.flights);
  info.flights.clear();
  TakePhases(info, state.phases & kPhasesWithoutSteps, as_of);
}

void Table::TakePhases(RankInfo& info, uint8_t phases, Clock::TimePoint as_of) {
  if (phases != info.phases) {
    if (info.phases != 0) {
      const auto length = as_of - info.phase_since;
      phase_lengths_.Add(info.phases, length);
      info.grace_ns += static_cast<uint64_t>(std::max<int64_t>(0, length.count()));
    }
    info.phases = phases;
    info.phase_since = as_of;
    info.moved_at = as_of;
  }
  if (phases == 0) return;
  info.excused_at = as_of;
  excused_at_ = std::max(excused_at_, as_of);
}

/// Records progress of the rank. An operation that two reports in a row do not contain has
/// completed; a single record may be lost. A new operation has been started.
void Table::NoteMoved(uint32_t rank, Index node) {
  RankInfo& info = ranks_[rank];
  if (info.node != node) return;
  const bool completed = std::any_of(
      info.flights_earlier.begin(), info.flights_earlier.end(), [&](const Flight& earlier) {
        return !Contains(info.flights_before, earlier) && !Contains(info.flights, earlier);
      });
  // Agents report operations from a certain age on.
  constexpr auto kReportedFrom = std::chrono::milliseconds(1500);
  const auto new_below = nodes_[node].as_of_before == Clock::TimePoint::min()
                             ? Clock::Duration(0)
                             : nodes_[node].as_of - nodes_[node].as_of_before + kReportedFrom;
  const bool started =
      std::any_of(info.flights.begin(), info.flights.end(), [&](const Flight& flight) {
        return flight.age_ns < static_cast<uint64_t>(new_below.count()) &&
               std::none_of(info.flights_before.begin(), info.flights_before.end(),
                            [&](const Flight& before) { return AreSame(before, flight); });
      });
  if (completed || started) info.moved_at = nodes_[node].as_of;
}

bool Table::HasLeft(const RankInfo& info) {
  return std::any_of(
      info.flights_before.begin(), info.flights_before.end(),
      [&](const Flight& before) { return before.started && !Contains(info.flights, before); });
}

std::vector<Rank> Table::RanksOn(const std::string& name) const {
  std::vector<Rank> ranks;
  const auto found = node_index_.find(name);
  for (uint32_t rank = 0; found != node_index_.end() && rank < ranks_.size(); ++rank) {
    if (ranks_[rank].node == found->second) ranks.push_back(Rank{rank});
  }
  return ranks;
}

void Table::TakeReach(const Digest& digest, Index node) {
  auto& reach = nodes_[node].reach;
  reach.clear();
  for (const Reach& probe : digest.reach) {
    const auto other = node_index_.find(probe.node);
    // Ignore nodes that host no rank of this job.
    if (other == node_index_.end() || other->second == node) continue;
    if (reach.size() >= kReachMax) return RefuseRecord();
    reach.emplace_back(other->second, probe.reached);
  }
}

Index Table::Introduce(const Communicator& communicator, Index node) {
  const uint64_t size = communicator.members.size();
  // Bounds what one node, and all nodes together, can add to the table.
  if (size == 0 || size > ranks_.size() ||
      nodes_[node].introduced + size > uint64_t{options_.communicators_per_rank_max} * world() ||
      comms_.size() >= uint64_t{options_.communicators_per_rank_max} * world() ||
      static_cast<uint32_t>(communicator.role) >= kCommunicatorRoles) {
    return kNone;
  }
  CommInfo info;
  info.id = communicator.id;
  info.role = communicator.role;
  for (Rank rank : communicator.members) {
    if (rank.value >= ranks_.size()) return kNone;
    info.by_rank.push_back(static_cast<uint32_t>(info.members.size()));
    info.members.push_back(rank.value);
  }
  std::sort(info.by_rank.begin(), info.by_rank.end(),
            [&](uint32_t a, uint32_t b) { return info.members[a] < info.members[b]; });
  for (size_t i = 1; i < info.by_rank.size(); ++i) {
    if (info.members[info.by_rank[i]] == info.members[info.by_rank[i - 1]]) return kNone;
  }
  nodes_[node].introduced += size;
  const auto index = static_cast<Index>(comms_.size());
  comms_.push_back(std::move(info));
  comm_index_.emplace(communicator.id, index);
  return index;
}

void Table::TakeCommunicator(const Communicator& communicator, const Digest& digest, Index node) {
  const auto found = comm_index_.find(communicator.id);
  const Index index = found != comm_index_.end() ? found->second : Introduce(communicator, node);
  static_assert(sizeof(Rank) == sizeof(uint32_t) && std::is_trivially_copyable_v<Rank>);
  const bool same = index != kNone && comms_[index].members.size() == communicator.members.size() &&
                    std::memcmp(comms_[index].members.data(), communicator.members.data(),
                                communicator.members.size() * sizeof(Rank)) == 0;
  if (!same) {
    RefuseRecord();
    return;
  }
  CommInfo& comm = comms_[index];
  for (const RankState& state : digest.ranks) {
    const uint32_t rank = state.rank.value;
    if (rank >= ranks_.size() || ranks_[rank].node != node) continue;
    const auto at = std::lower_bound(
        comm.by_rank.begin(), comm.by_rank.end(), rank,
        [&](uint32_t position, uint32_t wanted) { return comm.members[position] < wanted; });
    if (at == comm.by_rank.end() || comm.members[*at] != rank) continue;
    std::vector<Membership>& memberships = ranks_[rank].memberships;
    const bool known =
        std::any_of(memberships.begin(), memberships.end(),
                    [&](const Membership& membership) { return membership.comm == index; });
    if (known || memberships.size() >= options_.communicators_per_rank_max) continue;
    memberships.push_back({comm.id, index, *at});
    ++comm.confirmed;
  }
}

void Table::TakeFlight(const RankFlight& flight, Index node) {
  const Membership* membership = Find(flight.rank, flight.record.communicator, node);
  if (membership == nullptr || !IsPlausible(flight, world())) return RefuseRecord();
  any_flight_ = true;
  const Flight added{membership->comm, flight.record, flight.started, flight.age_ns, flight.edge};
  std::vector<Flight>& flights = ranks_[flight.rank.value].flights;
  const auto in_same_state =
      static_cast<size_t>(std::count_if(flights.begin(), flights.end(), [&](const Flight& known) {
        return known.started == added.started;
      }));
  if (added.started) {
    if (in_same_state >= kStartedPerRankMax) return RefuseRecord();
    flights.push_back(added);
    return;
  }
  // Keep the oldest enqueued operation of each communicator. It starts next, and the rest follows
  // it.
  const auto same = std::find_if(flights.begin(), flights.end(), [&](const Flight& known) {
    return known.started == added.started && known.comm == added.comm;
  });
  if (same != flights.end()) {
    if (added.age_ns > same->age_ns) *same = added;
  } else if (in_same_state < kEnqueuedPerRankMax) {
    flights.push_back(added);
  } else {
    RefuseRecord();
  }
}

const Membership* Table::Find(Rank rank, CommunicatorId comm, Index node) const {
  if (rank.value >= ranks_.size() || ranks_[rank.value].node != node) return nullptr;
  for (const Membership& membership : ranks_[rank.value].memberships) {
    if (membership.id == comm)
      return comms_[membership.comm].is_confirmed() ? &membership : nullptr;
  }
  return nullptr;
}

void Table::NoteCompleted(const Membership& membership, CollectiveKind kind, uint64_t count,
                          Clock::TimePoint as_of) {
  CommInfo& comm = comms_[membership.comm];
  std::vector<uint64_t>& row = comm.completed[static_cast<size_t>(kind)];
  if (row.empty()) row.resize(comm.members.size());
  if (count <= row[membership.position]) return;
  row[membership.position] = count;
  any_completed_ = true;
  NotePairwise(comm, kind);
  RankInfo& rank = ranks_[comm.members[membership.position]];
  rank.began = true;
  rank.moved_at = std::max(rank.moved_at, as_of);
  if (comm.members.size() > 1) rank.grace_ns = 0;
  NoteAdvance(comm, kind, count, as_of);
}

void Table::NotePairwise(CommInfo& comm, CollectiveKind kind) {
  if (!IsPairwise(kind) || comm.pairwise) return;
  comm.pairwise = true;
  ++pairwise_comms_;
}

bool Table::SpansStages(Index comm) const {
  if (comms_[comm].role == CommunicatorRole::kPipeline || comms_[comm].pairwise) return true;
  std::vector<bool> seen(pairwise_comms_ == 0 ? 0 : comms_.size());
  for (const uint32_t rank : comms_[comm].members) {
    if (seen.empty()) break;
    for (const Membership& membership : ranks_[rank].memberships) {
      if (!comms_[membership.comm].pairwise) continue;
      if (seen[membership.comm]) return true;
      seen[membership.comm] = true;
    }
  }
  return false;
}

/// Records the pause before an operation. Gaps of less than a second, and gaps during marked
/// phases, do not count.
void Table::NoteAdvance(CommInfo& comm, CollectiveKind kind, uint64_t count,
                        Clock::TimePoint as_of) const {
  constexpr auto kPauseLeast = std::chrono::seconds(1);
  uint64_t& most = comm.completed_most[static_cast<size_t>(kind)];
  if (count <= most) return;
  most = count;
  if (comm.advanced_at != Clock::TimePoint::min() && as_of - comm.advanced_at >= kPauseLeast &&
      excused_at_ < comm.advanced_at) {
    comm.pauses_ns.Add(static_cast<float>((as_of - comm.advanced_at).count()));
  }
  comm.advanced_at = std::max(comm.advanced_at, as_of);
}

uint64_t Table::SlowestUsual(uint32_t key) const {
  const auto found = durations_.find(key);
  return found == durations_.end() ? 0 : found->second.Quantile(0.99);
}

}  // namespace holdfast::detect
