#include "agent/telemetry/table_reader.h"

#include <algorithm>
#include <limits>
#include <string>

namespace holdfast::agent {
namespace {
constexpr auto kRelaxed = std::memory_order_relaxed;
constexpr auto kAcquire = std::memory_order_acquire;

// Numbers beyond these are implausible.
constexpr uint64_t kDurationMaxNs = 10ULL * 365 * 24 * 3600 * 1'000'000'000;
constexpr uint64_t kBytesMax = 1ULL << 60;
constexpr uint64_t kCountMax = 1ULL << 60;
constexpr uint32_t kRanksMax = 1U << 20;
// The trainer writes during a poll, so its times may be a little later than `now_ns`.
constexpr uint64_t kAheadMaxNs = 1'000'000'000;
constexpr int kProgressAttempts = 8;

uint64_t AddUpTo(uint64_t a, uint64_t b) {
  return a > std::numeric_limits<uint64_t>::max() - b ? std::numeric_limits<uint64_t>::max()
                                                      : a + b;
}

uint64_t AgeOf(uint64_t since_ns, uint64_t now_ns) {
  return std::min(now_ns > since_ns ? now_ns - since_ns : 0, kDurationMaxNs);
}

bool IsPast(uint64_t at_ns, uint64_t now_ns) { return at_ns <= AddUpTo(now_ns, kAheadMaxNs); }

/// Reads an entry's tag again and returns whether it is unchanged. The loads of the values before
/// it have acquire order.
bool IsUnchanged(const std::atomic<uint64_t>& tag, uint64_t expected) {
  return tag.load(kRelaxed) == expected;
}

bool IsValid(const Communicator& communicator, uint32_t member_count) {
  if (communicator.size == 0 || communicator.size > kRanksMax) return false;
  if (communicator.index >= communicator.size) return false;
  if (static_cast<uint32_t>(communicator.role) >= kCommunicatorRoles) return false;
  if (member_count > std::min(communicator.size, kMembersMax)) return false;
  std::vector<Rank> sorted = communicator.members;
  std::sort(sorted.begin(), sorted.end());
  if (std::adjacent_find(sorted.begin(), sorted.end()) != sorted.end()) return false;
  return sorted.empty() || sorted.back().value < kRanksMax;
}

Communicator LoadCommunicator(const CommunicatorEntry& entry, uint32_t* member_count) {
  Communicator communicator;
  communicator.id = {entry.id.load(kAcquire)};
  communicator.size = entry.size.load(kAcquire);
  communicator.index = entry.index.load(kAcquire);
  communicator.role = static_cast<CommunicatorRole>(entry.role.load(kAcquire));
  *member_count = entry.member_count.load(kAcquire);
  if (*member_count != communicator.size || *member_count > kMembersMax) return communicator;
  for (uint32_t i = 0; i < *member_count; ++i) {
    communicator.members.push_back(Rank{entry.members[i].load(kAcquire)});
  }
  return communicator;
}

PeerTransfers SumsOf(const PeerKey& key, CommunicatorId communicator,
                     const std::array<uint64_t, 6>& words) {
  return {.communicator = communicator,
          .peer = key.peer,
          .direction = key.direction,
          .transfers = words[0],
          .bytes = words[1],
          .gpu_wait_ns = words[2],
          .peer_wait_ns = words[3],
          .transfer_ns = words[4],
          .flush_ns = words[5]};
}
}  // namespace

Result<RankTelemetry> TableReader::Read(uint64_t now_ns) {
  const CollectiveTable& table = control_.collectives;
  RankTelemetry out;
  for (uint32_t phase = 1; phase < kPhasesMax; ++phase) {
    if (control_.phases[phase].open.load(kRelaxed) != 0) out.phases |= 1U << phase;
  }
  const uint64_t layout = table.layout.load(kAcquire);
  if (layout == 0) {
    writer_ = 0;
    return out;
  }
  if (layout != (kCollectiveTableMagic | kCollectiveTableVersion)) {
    const bool ours = layout >> 32 == kCollectiveTableMagic >> 32;
    return Fail(UnsupportedError(
        ours ? "the trainer's library writes collective table version " +
                   std::to_string(static_cast<uint32_t>(layout)) + ", this agent reads version " +
                   std::to_string(kCollectiveTableVersion) + ": install the same release of both"
             : "the trainer's memory has no collective table: it is damaged, or another program "
               "wrote to it; the agent reads it again when the trainer reconnects"));
  }
  out.present = true;
  const uint64_t writer = table.writer.load(kRelaxed);
  if (writer != writer_ || writer == 0) {
    Restart(writer);
    out.restarted = true;
  }
  ReadProgress(now_ns, &out);
  ReadSteps(&out);
  ReadCommunicators(&out);
  // In this order: an operation that was counted as begun is in flight afterwards, or has ended.
  ReadBegun();
  ReadInFlight(now_ns, &out);
  CountCompleted(&out);
  ReadRing(now_ns, &out);
  ReadPeers(now_ns, &out);
  ReadDrops(&out);
  out.silent_ns = activity_ns_ == 0 ? 0 : AgeOf(activity_ns_, now_ns);
  return out;
}

void TableReader::Restart(uint64_t writer) {
  writer_ = writer;
  ring_next_ = 0;
  ring_waiting_ = false;
  steps_next_ = 0;
  activity_ns_ = 0;
  dropped_ = 0;
  progress_ = {};
  communicators_ = {};
  begun_ = {};
  sums_ = {};
}

void TableReader::RecordActivity(uint64_t at_ns, uint64_t now_ns) {
  if (IsPast(at_ns, now_ns)) activity_ns_ = std::max(activity_ns_, at_ns);
}

bool TableReader::Plausible(const CollectiveRecord& record, uint64_t now_ns) const {
  const uint64_t begun_ns = std::max(record.enqueued_ns, record.started_ns);
  return static_cast<uint8_t>(record.kind) < kCollectiveKinds &&
         record.algorithm <= CollectiveAlgorithm::kOther &&
         record.protocol <= CollectiveProtocol::kLl128 &&
         record.source <= CollectiveSource::kNccl && record.bytes <= kBytesMax &&
         record.sequence < kCountMax && record.step < kCountMax &&
         record.device_ns <= kDurationMaxNs && record.blocked_ns <= kDurationMaxNs &&
         record.moved_bytes <= kBytesMax && (record.peer == kNoPeer || record.peer < kRanksMax) &&
         record.enqueued_ns != 0 &&
         (record.started_ns == 0 || record.started_ns >= record.enqueued_ns) &&
         (record.ended_ns == 0 || record.ended_ns >= begun_ns) && IsPast(begun_ns, now_ns) &&
         IsPast(record.ended_ns, now_ns);
}

void TableReader::ReadProgress(uint64_t now_ns, RankTelemetry* out) {
  const ProgressEntry& entry = control_.collectives.progress;
  for (int attempt = 0; attempt < kProgressAttempts; ++attempt) {
    const uint64_t version = entry.version.load(kAcquire);
    if (version == 0) return;
    if (version % 2 != 0) continue;
    const Progress seen{.step = entry.step.load(kAcquire),
                        .advanced_ns = entry.advanced_ns.load(kAcquire),
                        .last_step_ns = entry.last_step_ns.load(kAcquire)};
    if (!IsUnchanged(entry.version, version)) continue;
    if (seen.advanced_ns == 0 || !IsPast(seen.advanced_ns, now_ns) || seen.step >= kCountMax ||
        seen.last_step_ns > kDurationMaxNs) {
      ++out->gaps.nonsense;
    } else {
      progress_ = seen;
    }
    break;
  }
  if (progress_.advanced_ns == 0) return;
  out->progress = {.known = true,
                   .step = progress_.step,
                   .age_ns = AgeOf(progress_.advanced_ns, now_ns),
                   .last_step_ns = progress_.last_step_ns};
  RecordActivity(progress_.advanced_ns, now_ns);
}

void TableReader::ReadSteps(RankTelemetry* out) {
  const CollectiveTable& table = control_.collectives;
  const uint64_t head = std::min(table.progress.steps.load(kAcquire), kCountMax);
  if (head < steps_next_) {
    ++out->gaps.nonsense;
    steps_next_ = head;
  }
  if (head - steps_next_ > kStepRecords) {
    out->gaps.lost += head - steps_next_ - kStepRecords;
    steps_next_ = head - kStepRecords;
  }
  for (; steps_next_ < head; ++steps_next_) {
    const StepRecord& record = table.steps[steps_next_ % kStepRecords];
    const uint64_t complete = 2 * steps_next_ + 2;
    if (record.tag.load(kAcquire) != complete) {
      ++out->gaps.lost;
      continue;
    }
    const StepTime step{record.step.load(kAcquire), record.duration_ns.load(kAcquire)};
    if (!IsUnchanged(record.tag, complete)) {
      ++out->gaps.lost;
    } else if (step.step >= kCountMax || step.duration_ns > kDurationMaxNs) {
      ++out->gaps.nonsense;
    } else {
      out->steps.push_back(step);
    }
  }
}

void TableReader::ReadCommunicators(RankTelemetry* out) {
  index_of_.clear();
  for (uint32_t i = 0; i < kCommunicatorsMax; ++i) {
    const CommunicatorEntry& entry = control_.collectives.communicators[i];
    Cached& cached = communicators_[i];
    const uint64_t tag = entry.tag.load(kAcquire);
    if (tag != cached.tag) {
      out->communicators_changed = true;
      cached = {};
      if (tag % 2 != 0) {
        uint32_t member_count = 0;
        Communicator communicator = LoadCommunicator(entry, &member_count);
        if (!IsUnchanged(entry.tag, tag)) continue;  // the next poll reads it
        cached.valid = IsValid(communicator, member_count);
        if (!cached.valid) ++out->gaps.nonsense;
        cached.value = std::move(communicator);
      }
      cached.tag = tag;
    }
    // Two entries with the same ID cannot both be right.
    if (cached.valid && !index_of_.emplace(cached.value.id, i).second) ++out->gaps.nonsense;
  }
  for (const auto& [id, index] : index_of_)
    out->communicators.push_back(communicators_[index].value);
}

void TableReader::ReadBegun() {
  for (const auto& [id, index] : index_of_) {
    for (uint32_t kind = 0; kind < kCollectiveKinds; ++kind) {
      const auto& begun = control_.collectives.communicators[index].begun[kind];
      begun_[index][kind] = std::min(begun.load(kAcquire), kCountMax);
    }
  }
}

void TableReader::ReadInFlight(uint64_t now_ns, RankTelemetry* out) {
  flight_of_.clear();
  for (uint32_t index = 0; index < kInFlightMax; ++index) {
    const CollectiveEntry& entry = control_.collectives.in_flight[index];
    const uint64_t tag = entry.tag.load(kAcquire);
    if (tag % 2 == 0) continue;
    InFlight flight{.record = LoadRecord(entry)};
    if (!IsUnchanged(entry.tag, tag)) continue;  // it has just ended
    flight.record.ended_ns = 0;
    if (!Plausible(flight.record, now_ns)) {
      ++out->gaps.nonsense;
      continue;
    }
    flight.started = flight.record.started_ns != 0;
    const uint64_t since = flight.started ? flight.record.started_ns : flight.record.enqueued_ns;
    flight.age_ns = AgeOf(since, now_ns);
    RecordActivity(since, now_ns);
    flight_of_[OperationName(tag, index)] = out->in_flight.size();
    out->in_flight.push_back(flight);
  }
}

void TableReader::CountCompleted(RankTelemetry* out) {
  for (const InFlight& flight : out->in_flight) {
    auto found = index_of_.find(flight.record.communicator);
    if (found == index_of_.end()) continue;
    uint64_t& count = begun_[found->second][static_cast<uint8_t>(flight.record.kind)];
    count = std::min(count, flight.record.sequence);
  }
  for (const auto& [id, index] : index_of_) {
    for (uint8_t kind = 0; kind < kCollectiveKinds; ++kind) {
      const uint64_t count = begun_[index][kind];
      if (count > 0) out->completed.push_back({id, static_cast<CollectiveKind>(kind), count});
    }
  }
}

void TableReader::ReadRing(uint64_t now_ns, RankTelemetry* out) {
  const CollectiveTable& table = control_.collectives;
  const uint64_t head = std::min(table.ring_head.load(kAcquire), kCountMax);
  if (head < ring_next_) {
    ++out->gaps.nonsense;
    ring_next_ = head;
  }
  if (head - ring_next_ > kRingEntries) {
    if (!out->restarted) out->gaps.lost += head - ring_next_ - kRingEntries;
    ring_next_ = head - kRingEntries;
    ring_waiting_ = false;
  }
  for (; ring_next_ < head; ++ring_next_) {
    const CollectiveEntry& entry = table.ring[ring_next_ % kRingEntries];
    const uint64_t complete = 2 * ring_next_ + 2;
    const uint64_t tag = entry.tag.load(kAcquire);
    if (tag < complete && !ring_waiting_) {
      // The record is being written, or its writer was stopped. Retry it at the next poll.
      ring_waiting_ = true;
      return;
    }
    ring_waiting_ = false;
    const CollectiveRecord record = LoadRecord(entry);
    if (tag != complete || !IsUnchanged(entry.tag, complete)) {
      ++out->gaps.lost;
    } else if (record.ended_ns == 0 || !Plausible(record, now_ns)) {
      ++out->gaps.nonsense;
    } else {
      RecordActivity(record.ended_ns, now_ns);
      out->ended.push_back(record);
    }
  }
}

void TableReader::ReadPeers(uint64_t now_ns, RankTelemetry* out) {
  std::map<CommunicatorId, EdgeWait> oldest;  // by communicator
  for (uint32_t i = 0; i < kPeerCellsMax; ++i) {
    const PeerCell& cell = control_.collectives.peers[i];
    const uint64_t word = cell.key.load(kAcquire);
    const PeerKey key = UnpackPeerKey(word);
    const Cached* communicator = word != 0 && key.communicator < kCommunicatorsMax
                                     ? &communicators_[key.communicator]
                                     : nullptr;
    if (communicator == nullptr || !communicator->valid ||
        (communicator->tag >> 1 & kPeerGenerations) != key.generation ||
        key.peer >= communicator->value.size) {
      sums_[i] = {};
      continue;
    }
    const std::array<uint64_t, 6> words = {
        cell.transfers.load(kRelaxed),   cell.bytes.load(kRelaxed),
        cell.gpu_wait_ns.load(kRelaxed), cell.peer_wait_ns.load(kRelaxed),
        cell.transfer_ns.load(kRelaxed), cell.flush_ns.load(kRelaxed)};
    Sums& before = sums_[i];
    if (before.key != word) before = {.key = word, .words = {}};
    std::array<uint64_t, 6> since = {};
    bool plausible = true;
    for (size_t w = 0; w < words.size(); ++w) {
      since[w] = words[w] - before.words[w];
      plausible = plausible && words[w] >= before.words[w] && words[w] <= kBytesMax;
    }
    before.words = words;
    const CommunicatorId id = communicator->value.id;
    if (!plausible) {
      ++out->gaps.nonsense;
    } else if (since[0] > 0) {
      out->peers.push_back(SumsOf(key, id, since));
    }
    const uint64_t operation = cell.operation.load(kAcquire);
    const uint64_t completed = cell.completed.load(kAcquire);
    const CurrentWait wait = UnpackCurrentWait(cell.now.load(kAcquire));
    if (!IsUnchanged(cell.operation, operation)) continue;  // the next poll reads it
    if (wait.state == EdgeState::kIdle || static_cast<uint8_t>(wait.state) >= kEdgeStates) continue;
    if (!IsPast(wait.since_ns, now_ns)) continue;
    EdgeWait edge{key.peer, key.direction, wait.state, AgeOf(wait.since_ns, now_ns)};
    if (operation != 0) {
      edge.completed = std::min(completed, kCountMax);
      OfferEdge(operation, edge, out);
      continue;
    }
    auto [found, first] = oldest.emplace(id, edge);
    if (!first && edge.age_ns > found->second.age_ns) found->second = edge;
  }
  for (InFlight& flight : out->in_flight) {
    auto found = oldest.find(flight.record.communicator);
    if (found == oldest.end() || !flight.started || found->second.age_ns > flight.age_ns) continue;
    if (!flight.edge) flight.edge = found->second;
  }
}

/// Sets the edge of the operation if it is the least advanced one so far, or as advanced and older.
void TableReader::OfferEdge(uint64_t operation, const EdgeWait& edge, RankTelemetry* out) const {
  const auto found = flight_of_.find(operation);
  if (found == flight_of_.end()) return;
  InFlight& flight = out->in_flight[found->second];
  if (!flight.started || edge.age_ns > flight.age_ns) return;
  const auto better = [](const EdgeWait& a, const EdgeWait& b) {
    return a.completed != b.completed ? a.completed < b.completed : a.age_ns > b.age_ns;
  };
  if (!flight.edge || better(edge, *flight.edge)) flight.edge = edge;
}

void TableReader::ReadDrops(RankTelemetry* out) {
  const DropCounts& drops = control_.collectives.drops;
  uint64_t all = 0;
  for (const auto* count :
       {&drops.in_flight, &drops.ring, &drops.communicators, &drops.peers, &drops.misuse}) {
    all += std::min(count->load(kRelaxed), kCountMax);
  }
  if (all > dropped_) out->gaps.dropped = all - dropped_;
  dropped_ = all;
}

}  // namespace holdfast::agent
