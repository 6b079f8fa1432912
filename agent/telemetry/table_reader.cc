#include "agent/telemetry/table_reader.h"

#include <algorithm>
#include <limits>
#include <string>

namespace holdfast::agent {
namespace {
constexpr auto kRelaxed = std::memory_order_relaxed;
constexpr auto kAcquire = std::memory_order_acquire;

// No number beyond these is believed.
constexpr uint64_t kDurationMaxNs = 10ULL * 365 * 24 * 3600 * 1'000'000'000;
constexpr uint64_t kBytesMax = 1ULL << 60;
constexpr uint64_t kCountMax = 1ULL << 60;
constexpr uint32_t kRanksMax = 1U << 20;
// The trainer writes on while we read; its stamps may be a little after our `now`.
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

/// The second look at the tag of an entry whose values were taken, with acquire, since the first.
bool IsStill(const std::atomic<uint64_t>& tag, uint64_t expected) {
  return tag.load(kRelaxed) == expected;
}

bool IsValid(const CommunicatorView& view, uint32_t member_count) {
  if (view.size == 0 || view.size > kRanksMax || view.index >= view.size) return false;
  if (static_cast<uint32_t>(view.role) >= kCommunicatorRoles) return false;
  if (member_count > std::min(view.size, kMembersMax)) return false;
  std::vector<uint32_t> sorted = view.members;
  std::sort(sorted.begin(), sorted.end());
  if (std::adjacent_find(sorted.begin(), sorted.end()) != sorted.end()) return false;
  return sorted.empty() || sorted.back() < kRanksMax;
}

CommunicatorView LoadCommunicator(const CommunicatorEntry& entry, uint32_t* member_count) {
  CommunicatorView view;
  view.id = entry.id.load(kAcquire);
  view.size = entry.size.load(kAcquire);
  view.index = entry.index.load(kAcquire);
  view.role = static_cast<CommunicatorRole>(entry.role.load(kAcquire));
  *member_count = entry.member_count.load(kAcquire);
  if (*member_count != view.size || *member_count > kMembersMax) return view;
  for (uint32_t i = 0; i < *member_count; ++i) {
    view.members.push_back(entry.members[i].load(kAcquire));
  }
  return view;
}

PeerSumsView ViewOf(const PeerKey& key, uint64_t communicator,
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
             : "what the trainer wrote is no collective table: its memory is damaged, or another "
               "program wrote there; it will be read again when the trainer connects again"));
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
  // In this order: what has begun before the look at what is in flight is there, or has ended.
  ReadBegun();
  ReadInFlight(now_ns, &out);
  CountCompleted(&out);
  ReadRing(now_ns, &out);
  ReadPeers(now_ns, &out);
  ReadDrops(&out);
  out.silent_ns = heard_ns_ == 0 ? 0 : AgeOf(heard_ns_, now_ns);
  return out;
}

void TableReader::Restart(uint64_t writer) {
  writer_ = writer;
  ring_next_ = 0;
  ring_waiting_ = false;
  steps_next_ = 0;
  heard_ns_ = 0;
  dropped_ = 0;
  progress_ = {};
  communicators_ = {};
  begun_ = {};
  sums_ = {};
}

void TableReader::Heard(uint64_t at_ns, uint64_t now_ns) {
  if (IsPast(at_ns, now_ns)) heard_ns_ = std::max(heard_ns_, at_ns);
}

bool TableReader::Plausible(const CollectiveValues& values, uint64_t now_ns) const {
  const uint64_t begun_ns = std::max(values.enqueued_ns, values.started_ns);
  return static_cast<uint8_t>(values.kind) < kCollectiveKinds &&
         values.algorithm <= CollectiveAlgorithm::kOther &&
         values.protocol <= CollectiveProtocol::kLl128 &&
         values.source <= CollectiveSource::kNccl && values.bytes <= kBytesMax &&
         values.sequence < kCountMax && values.step < kCountMax &&
         values.device_ns <= kDurationMaxNs && values.blocked_ns <= kDurationMaxNs &&
         values.moved_bytes <= kBytesMax && (values.peer == kNoPeer || values.peer < kRanksMax) &&
         values.enqueued_ns != 0 &&
         (values.started_ns == 0 || values.started_ns >= values.enqueued_ns) &&
         (values.ended_ns == 0 || values.ended_ns >= begun_ns) && IsPast(begun_ns, now_ns) &&
         IsPast(values.ended_ns, now_ns);
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
    if (!IsStill(entry.version, version)) continue;
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
  Heard(progress_.advanced_ns, now_ns);
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
    const uint64_t whole = 2 * steps_next_ + 2;
    if (record.tag.load(kAcquire) != whole) {
      ++out->gaps.lost;
      continue;
    }
    const StepView step{record.step.load(kAcquire), record.duration_ns.load(kAcquire)};
    if (!IsStill(record.tag, whole)) {
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
        CommunicatorView view = LoadCommunicator(entry, &member_count);
        if (!IsStill(entry.tag, tag)) continue;  // the next look will find it
        cached.valid = IsValid(view, member_count);
        if (!cached.valid) ++out->gaps.nonsense;
        cached.view = std::move(view);
      }
      cached.tag = tag;
    }
    // Two that claim the same id cannot both be right.
    if (cached.valid && !index_of_.emplace(cached.view.id, i).second) ++out->gaps.nonsense;
  }
  for (const auto& [id, index] : index_of_)
    out->communicators.push_back(communicators_[index].view);
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
  for (const CollectiveRecord& entry : control_.collectives.in_flight) {
    const uint64_t tag = entry.tag.load(kAcquire);
    if (tag % 2 == 0) continue;
    InFlightView view{.values = LoadValues(entry), .edge = {}};
    if (!IsStill(entry.tag, tag)) continue;  // it ended just now
    view.values.ended_ns = 0;
    if (!Plausible(view.values, now_ns)) {
      ++out->gaps.nonsense;
      continue;
    }
    view.started = view.values.started_ns != 0;
    const uint64_t since = view.started ? view.values.started_ns : view.values.enqueued_ns;
    view.age_ns = AgeOf(since, now_ns);
    Heard(since, now_ns);
    out->in_flight.push_back(view);
  }
}

void TableReader::CountCompleted(RankTelemetry* out) {
  for (const InFlightView& view : out->in_flight) {
    auto found = index_of_.find(view.values.communicator);
    if (found == index_of_.end()) continue;
    uint64_t& count = begun_[found->second][static_cast<uint8_t>(view.values.kind)];
    count = std::min(count, view.values.sequence);
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
    const CollectiveRecord& record = table.ring[ring_next_ % kRingEntries];
    const uint64_t whole = 2 * ring_next_ + 2;
    const uint64_t tag = record.tag.load(kAcquire);
    if (tag < whole && !ring_waiting_) {
      ring_waiting_ = true;  // it is being written, or its writer gave it up: the next look tells
      return;
    }
    ring_waiting_ = false;
    const CollectiveValues values = LoadValues(record);
    if (tag != whole || !IsStill(record.tag, whole)) {
      ++out->gaps.lost;
    } else if (values.ended_ns == 0 || !Plausible(values, now_ns)) {
      ++out->gaps.nonsense;
    } else {
      Heard(values.ended_ns, now_ns);
      out->ended.push_back(values);
    }
  }
}

void TableReader::ReadPeers(uint64_t now_ns, RankTelemetry* out) {
  std::map<uint64_t, EdgeView> oldest;  // by communicator
  for (uint32_t i = 0; i < kPeerCellsMax; ++i) {
    const PeerCell& cell = control_.collectives.peers[i];
    const uint64_t word = cell.key.load(kAcquire);
    const PeerKey key = UnpackPeerKey(word);
    const Cached* communicator = word != 0 && key.communicator < kCommunicatorsMax
                                     ? &communicators_[key.communicator]
                                     : nullptr;
    if (communicator == nullptr || !communicator->valid ||
        (communicator->tag >> 1 & kPeerGenerations) != key.generation ||
        key.peer >= communicator->view.size) {
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
    bool believed = true;
    for (size_t w = 0; w < words.size(); ++w) {
      since[w] = words[w] - before.words[w];
      believed = believed && words[w] >= before.words[w] && words[w] <= kBytesMax;
    }
    before.words = words;
    const uint64_t id = communicator->view.id;
    if (!believed) {
      ++out->gaps.nonsense;
    } else if (since[0] > 0) {
      out->peers.push_back(ViewOf(key, id, since));
    }
    const uint64_t now_word = cell.now.load(kRelaxed);
    const auto state = static_cast<EdgeState>(now_word >> 56);
    const uint64_t since_ns = now_word & ~(0xFFULL << 56);
    if (state == EdgeState::kIdle || static_cast<uint8_t>(state) >= kEdgeStates) continue;
    if (!IsPast(since_ns, now_ns)) continue;
    const EdgeView edge{key.peer, key.direction, state, AgeOf(since_ns, now_ns)};
    auto [found, first] = oldest.emplace(id, edge);
    if (!first && edge.age_ns > found->second.age_ns) found->second = edge;
  }
  for (InFlightView& view : out->in_flight) {
    auto found = oldest.find(view.values.communicator);
    if (found == oldest.end() || !view.started || found->second.age_ns > view.age_ns) continue;
    view.edge = found->second;
  }
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
