#include "client/core/collectives.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstring>
#include <ctime>
#include <memory>
#include <new>
#include <string>
#include <thread>

#include "base/mutex.h"

namespace holdfast::client {
namespace {
using agent::CollectiveEntry;
using agent::CollectiveTable;
using agent::CommunicatorEntry;
using agent::PeerCell;

constexpr auto kRelaxed = std::memory_order_relaxed;
constexpr auto kAcquire = std::memory_order_acquire;
constexpr auto kRelease = std::memory_order_release;
constexpr uint32_t kIndexBits = 16;
static_assert(agent::OperationName(1, 0) == 1U << kIndexBits);
constexpr uint32_t kSampledOperationsMax = 10'000;
constexpr uint32_t kPeerProbesMax = 64;
constexpr uint32_t kLanes = agent::kInFlightMax / 64;
static_assert(agent::kInFlightMax <= 1U << kIndexBits && agent::kInFlightMax % 64 == 0);
static_assert(agent::kCommunicatorsMax <= 256);

/// Hashes ids and keys that differ in few bits.
uint64_t Mix(uint64_t value) {
  value ^= value >> 32;
  value *= 0x9E37'79B9'7F4A'7C15;
  return value ^ value >> 29;
}

bool IsOdd(uint64_t tag) { return (tag & 1) != 0; }

void Copy(const CommunicatorEntry& from, CommunicatorEntry& to) {
  to.id.store(from.id.load(kAcquire), kRelease);
  to.size.store(from.size.load(kAcquire), kRelease);
  to.index.store(from.index.load(kAcquire), kRelease);
  to.role.store(from.role.load(kAcquire), kRelease);
  to.member_count.store(from.member_count.load(kAcquire), kRelease);
  for (uint32_t kind = 0; kind < kCollectiveKinds; ++kind) {
    to.begun[kind].store(from.begun[kind].load(kAcquire), kRelease);
  }
  for (uint32_t i = 0; i < agent::kMembersMax; ++i) {
    to.members[i].store(from.members[i].load(kAcquire), kRelease);
  }
}

Status Check(const Communicator& communicator) {
  const std::string name = "communicator " + std::to_string(communicator.id.value);
  if (communicator.size == 0 || communicator.index >= communicator.size) {
    return InvalidArgumentError(name + ": index " + std::to_string(communicator.index) +
                                " of a size of " + std::to_string(communicator.size));
  }
  if (!communicator.members.empty() && communicator.members.size() != communicator.size) {
    return InvalidArgumentError(name + ": " + std::to_string(communicator.members.size()) +
                                " members for a size of " + std::to_string(communicator.size));
  }
  if (static_cast<uint32_t>(communicator.role) >= kCommunicatorRoles) {
    return InvalidArgumentError(name + ": role " +
                                std::to_string(static_cast<uint32_t>(communicator.role)) +
                                " does not exist");
  }
  return Status::Ok();
}

void RaiseTo(std::atomic<uint64_t>& word, uint64_t value) {
  uint64_t now = word.load(kRelaxed);
  while (now < value && !word.compare_exchange_weak(now, value, kRelaxed)) {
  }
}

/// Skips an atomic addition of zero: most sums of a transfer do not change, and one locked addition
/// costs as much as the rest.
void AddTo(std::atomic<uint64_t>& sum, uint64_t more) {
  if (more != 0) sum.fetch_add(more, kRelaxed);
}

/// Returns the difference; 0 when two threads stored their times in the opposite order.
uint64_t Since(uint64_t earlier_ns, uint64_t later_ns) {
  return later_ns > earlier_ns ? later_ns - earlier_ns : 0;
}

/// Returns a number that no other process's table has.
uint64_t WriterNumber() { return Mix(MonotonicNs() ^ static_cast<uint64_t>(::getpid()) << 48) | 1; }

/// Returns this thread's lane. Threads share lanes only when there are more than kLanes of them.
uint32_t LaneOfThread() {
  static std::atomic<uint32_t> threads{0};
  thread_local uint32_t number = 0;  // 0: none yet
  if (number == 0) number = threads.fetch_add(1, kRelaxed) + 1;
  return (number - 1) % kLanes;
}

/// Clears what another process has left. Stores words instead of calling memset, since the agent
/// may read concurrently.
void Wipe(CollectiveTable& table) {
  auto* words = reinterpret_cast<std::atomic<uint64_t>*>(&table);
  for (size_t i = 0; i < sizeof table / sizeof *words; ++i) words[i].store(0, kRelaxed);
}
}  // namespace

uint64_t MonotonicNs() {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(now.tv_nsec);
}

/// Lives in memory that is zeroed in a forked child, where the segment is not mapped. This is the
/// authoritative state of the operations in flight; the table is a published copy of it.
struct CollectiveRecorder::State {
  // Every event reads these, few write them: they share no cache line with fields that events
  // write.
  std::atomic<CollectiveTable*> table;
  std::atomic<bool> claimed;
  uint64_t writer;
  std::atomic<uint64_t> dropped;
  std::atomic<uint64_t> sampling_seen;
  std::atomic<int64_t> sampling_left;

  // Time during which at least one operation runs: the number that run, since when at least one
  // runs, and the sum of the earlier intervals.
  alignas(64) std::atomic<uint64_t> running;
  std::atomic<uint64_t> running_since_ns;
  std::atomic<uint64_t> blocked_ns;
  std::atomic<uint64_t> moved_bytes;

  /// Fields that one thread changes with every event, and other threads seldom.
  struct alignas(64) Lane {
    std::atomic<uint64_t> accesses;  // TableAccess objects of this lane
    std::atomic<uint64_t> used;      // one bit per entry of in_flight
  };
  Lane lanes[kLanes];
  CollectiveEntry in_flight[agent::kInFlightMax];

  Mutex describing;
  CommunicatorEntry communicators[agent::kCommunicatorsMax];

  std::atomic<bool> stepping;  // a lock of `progress`
  agent::ProgressEntry progress;

  static State* Map() {
    void* memory =
        ::mmap(nullptr, sizeof(State), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return nullptr;
    if (::madvise(memory, sizeof(State), MADV_WIPEONFORK) != 0) {
      ::munmap(memory, sizeof(State));
      return nullptr;
    }
    auto* state = new (memory) State{};
    state->writer = WriterNumber();
    return state;
  }

  void Drop(CollectiveTable* shared, std::atomic<uint64_t> agent::DropCounts::*why) {
    dropped.fetch_add(1, kRelaxed);
    if (shared != nullptr) (shared->drops.*why).fetch_add(1, kRelaxed);
  }

  /// Takes a free entry. Threads search from different places, so that entries stay in the caches
  /// of their cores.
  uint32_t TakeEntry() {
    const uint32_t first = LaneOfThread();
    for (uint32_t i = 0; i < kLanes; ++i) {
      const uint32_t word = (first + i) % kLanes;
      std::atomic<uint64_t>& used = lanes[word].used;
      uint64_t bits = used.load(kRelaxed);
      while (bits != ~uint64_t{0}) {
        const auto bit = static_cast<uint32_t>(std::countr_one(bits));
        if (used.compare_exchange_weak(bits, bits | 1ULL << bit, std::memory_order_acquire)) {
          return word * 64 + bit;
        }
      }
    }
    return agent::kInFlightMax;
  }
  void ReturnEntry(uint32_t index) {
    lanes[index / 64].used.fetch_and(~(1ULL << index % 64), std::memory_order_release);
  }

  /// Returns the entry that `handle` names while it is in flight; null for any other number.
  CollectiveEntry* Find(uint64_t handle, uint32_t* index) {
    *index = static_cast<uint32_t>(handle & ((1U << kIndexBits) - 1));
    if (*index >= agent::kInFlightMax || !IsOdd(handle >> kIndexBits)) return nullptr;
    CollectiveEntry& entry = in_flight[*index];
    return entry.tag.load(std::memory_order_acquire) == handle >> kIndexBits ? &entry : nullptr;
  }

  /// Returns the index of the communicator `id`; kCommunicatorsMax when it is not described.
  uint32_t FindCommunicator(CommunicatorId id) const {
    uint32_t index = id.value % agent::kCommunicatorsMax;
    for (uint32_t probe = 0; probe < agent::kCommunicatorsMax; ++probe) {
      const CommunicatorEntry& entry = communicators[index];
      const uint64_t tag = entry.tag.load(std::memory_order_acquire);
      if (IsOdd(tag) && entry.id.load(kRelaxed) == id.value) return index;
      if (tag == 0) break;
      index = (index + 1) % agent::kCommunicatorsMax;
    }
    return agent::kCommunicatorsMax;
  }

  /// Publishes the count of begun operations, after the operation itself: otherwise an operation
  /// could seem complete before it began.
  static void PublishBegun(CommunicatorEntry& shared, const CollectiveRecord& record);

  // Each of these functions stores until the private tag is unchanged afterwards, so that the last
  // store of concurrent calls is the current state.
  void PublishEntry(CollectiveTable& shared, uint32_t index);
  /// Called by the thread that has just changed the entry to `tag`. No other thread may change the
  /// entry now.
  void PublishOwnEntry(CollectiveTable& shared, uint32_t index, uint64_t tag);
  void PublishCommunicator(CollectiveTable& shared, uint32_t index);
  void PublishProgress(CollectiveTable& shared);

  void PushRecord(CollectiveTable& shared, const CollectiveEntry& ended);
  static void PushStep(CollectiveTable& shared, uint64_t number, uint64_t step,
                       uint64_t duration_ns);
  void DropCells(CollectiveTable& shared, uint32_t communicator, uint64_t generation);
  void Number(uint32_t communicator, bool numbered, CollectiveRecord* record);
  void EnterOperation(CollectiveEntry& entry, uint64_t now_ns);
  void LeaveOperation(uint64_t now_ns);
  PeerCell* CellOf(CollectiveTable& shared, CommunicatorId communicator, uint32_t peer,
                   Direction direction);
  void TakeRequest(CollectiveTable& shared);
};

void CollectiveRecorder::State::PublishOwnEntry(CollectiveTable& shared, uint32_t index,
                                                uint64_t tag) {
  CollectiveEntry& published = shared.in_flight[index];
  if (IsOdd(tag)) {
    published.tag.store(tag - 1, kRelaxed);
    agent::CopyRecord(in_flight[index], published);
  }
  published.tag.store(tag, std::memory_order_release);
}

void CollectiveRecorder::State::PublishEntry(CollectiveTable& shared, uint32_t index) {
  const std::atomic<uint64_t>& mine = in_flight[index].tag;
  uint64_t tag = 0;
  do {
    tag = mine.load();
    PublishOwnEntry(shared, index, tag);
    shared.in_flight[index].tag.store(tag);
  } while (mine.load() != tag);
}

void CollectiveRecorder::State::PublishCommunicator(CollectiveTable& shared, uint32_t index) {
  const CommunicatorEntry& mine = communicators[index];
  CommunicatorEntry& published = shared.communicators[index];
  uint64_t tag = 0;
  do {
    tag = mine.tag.load();
    if (IsOdd(tag)) {
      published.tag.store(tag - 1, kRelaxed);
      Copy(mine, published);
    }
    published.tag.store(tag);
  } while (mine.tag.load() != tag);
}

void CollectiveRecorder::State::PublishBegun(CommunicatorEntry& shared,
                                             const CollectiveRecord& record) {
  // Threads that begin at the same time may leave the smaller number; the next operation corrects
  // it.
  std::atomic<uint64_t>& begun = shared.begun[static_cast<uint8_t>(record.kind)];
  if (begun.load(kRelaxed) <= record.sequence) {
    begun.store(record.sequence + 1, std::memory_order_release);
  }
}

void CollectiveRecorder::State::PublishProgress(CollectiveTable& shared) {
  agent::ProgressEntry& published = shared.progress;
  uint64_t version = 0;
  do {
    version = progress.version.load();
    published.version.store(version - 1, kRelaxed);
    published.step.store(progress.step.load(kAcquire), kRelease);
    published.advanced_ns.store(progress.advanced_ns.load(kAcquire), kRelease);
    published.last_step_ns.store(progress.last_step_ns.load(kAcquire), kRelease);
    published.steps.store(progress.steps.load(kAcquire), kRelease);
    published.version.store(version);
  } while (progress.version.load() != version);
}

/// Entries of the ring have no owner. A writer that reaches an entry which a slower writer still
/// writes drops its own record.
void CollectiveRecorder::State::PushRecord(CollectiveTable& shared, const CollectiveEntry& ended) {
  const uint64_t ticket = shared.ring_head.fetch_add(1, kRelaxed);
  CollectiveEntry& entry = shared.ring[ticket % agent::kRingEntries];
  const uint64_t writing = 2 * ticket + 1;
  uint64_t before = entry.tag.load(kRelaxed);
  if (IsOdd(before) || before > writing ||
      !entry.tag.compare_exchange_strong(before, writing, std::memory_order_acquire, kRelaxed)) {
    Drop(&shared, &agent::DropCounts::ring);
    return;
  }
  agent::CopyRecord(ended, entry);
  entry.tag.store(writing + 1, std::memory_order_release);
}

void CollectiveRecorder::State::PushStep(CollectiveTable& shared, uint64_t number, uint64_t step,
                                         uint64_t duration_ns) {
  agent::StepRecord& record = shared.steps[number % agent::kStepRecords];
  record.tag.store(2 * number + 1, kRelaxed);
  record.step.store(step, kRelease);
  record.duration_ns.store(duration_ns, kRelease);
  record.tag.store(2 * number + 2, std::memory_order_release);
}

/// Sets the operation's sequence number.
void CollectiveRecorder::State::Number(uint32_t communicator, bool numbered,
                                       CollectiveRecord* record) {
  std::atomic<uint64_t>& begun =
      communicators[communicator].begun[static_cast<uint8_t>(record->kind)];
  if (numbered) {
    RaiseTo(begun, record->sequence + 1);
  } else {
    record->sequence = begun.fetch_add(1, kRelaxed);
  }
}

void CollectiveRecorder::State::EnterOperation(CollectiveEntry& entry, uint64_t now_ns) {
  uint64_t blocked = blocked_ns.load(kRelaxed);
  if (running.fetch_add(1, kRelaxed) == 0) {
    running_since_ns.store(now_ns, kRelaxed);
  } else {
    blocked += Since(running_since_ns.load(kRelaxed), now_ns);
  }
  entry.blocked_ns.store(blocked, kRelaxed);
  const uint64_t bytes = entry.bytes.load(kRelaxed);
  const uint64_t moved = moved_bytes.load(kRelaxed);
  entry.moved_bytes.store(moved, kRelaxed);
  moved_bytes.store(moved + bytes, kRelaxed);
}

void CollectiveRecorder::State::LeaveOperation(uint64_t now_ns) {
  const uint64_t since = running_since_ns.load(kRelaxed);
  if (running.fetch_sub(1, kRelease) != 1) return;
  blocked_ns.store(blocked_ns.load(kRelaxed) + Since(since, now_ns), kRelaxed);
}

/// Clears the sums of a communicator that no thread adds to any more, to make room.
void CollectiveRecorder::State::DropCells(CollectiveTable& shared, uint32_t communicator,
                                          uint64_t generation) {
  for (PeerCell& cell : shared.peers) {
    const uint64_t word = cell.key.load(kRelaxed);
    const agent::PeerKey key = agent::UnpackPeerKey(word);
    if (word == 0 || key.communicator != communicator ||
        key.generation != (generation & agent::kPeerGenerations)) {
      continue;
    }
    for (auto* sum :
         {&cell.transfers, &cell.bytes, &cell.gpu_wait_ns, &cell.peer_wait_ns, &cell.transfer_ns,
          &cell.flush_ns, &cell.now, &cell.operation, &cell.completed}) {
      sum->store(0, kRelaxed);
    }
    cell.key.store(0, std::memory_order_release);
  }
}

PeerCell* CollectiveRecorder::State::CellOf(CollectiveTable& shared, CommunicatorId communicator,
                                            uint32_t peer, Direction direction) {
  const uint32_t index = FindCommunicator(communicator);
  if (index == agent::kCommunicatorsMax) {
    Drop(&shared, &agent::DropCounts::communicators);
    return nullptr;
  }
  const uint64_t tag = communicators[index].tag.load(kRelaxed);
  const uint64_t key = agent::PackPeerKey({.communicator = index,
                                           .generation = static_cast<uint32_t>(tag >> 1),
                                           .peer = peer,
                                           .direction = direction});
  const uint64_t start = Mix(key);
  for (uint32_t probe = 0; probe < kPeerProbesMax; ++probe) {
    PeerCell& cell = shared.peers[(start + probe) % agent::kPeerCellsMax];
    uint64_t found = cell.key.load(std::memory_order_acquire);
    if (found == 0 && cell.key.compare_exchange_strong(found, key)) return &cell;
    if (found == key) return &cell;
  }
  Drop(&shared, &agent::DropCounts::peers);
  return nullptr;
}

/// A changed sampling word is a new request of the agent. Its count is not trusted, but bounded.
void CollectiveRecorder::State::TakeRequest(CollectiveTable& shared) {
  uint64_t seen = sampling_seen.load(kRelaxed);
  const uint64_t request = shared.sampling.load(kRelaxed);
  if (request == seen || !sampling_seen.compare_exchange_strong(seen, request)) return;
  const auto count = static_cast<uint32_t>(request);
  sampling_left.store(std::min(count, kSampledOperationsMax), kRelaxed);
}

/// Access to the table, which stays mapped while this object exists.
class CollectiveRecorder::TableAccess {
 public:
  explicit TableAccess(State& state)
      : state_(state), accesses_(state.lanes[LaneOfThread()].accesses) {
    accesses_.fetch_add(1);
  }
  ~TableAccess() { accesses_.fetch_sub(1, kRelease); }
  TableAccess(const TableAccess&) = delete;
  TableAccess& operator=(const TableAccess&) = delete;

  /// Returns the attached table, or null. Null is possible at any time; a table returned earlier
  /// stays mapped. Call it after a change of the state: Attach() sets the table before it reads the
  /// state, so either this call returns the table, or Attach() publishes the change.
  CollectiveTable* table() const { return state_.table.load(); }

 private:
  State& state_;
  std::atomic<uint64_t>& accesses_;
};

CollectiveRecorder::CollectiveRecorder() : state_(State::Map()) {}

CollectiveRecorder::~CollectiveRecorder() {
  if (state_ == nullptr) return;
  std::destroy_at(state_);
  ::munmap(state_, sizeof(State));
}

CollectiveRecorder& CollectiveRecorder::OfProcess() {
  static CollectiveRecorder& recorder = *std::make_unique<CollectiveRecorder>().release();
  return recorder;
}

bool CollectiveRecorder::Claim() { return state_ != nullptr && !state_->claimed.exchange(true); }

void CollectiveRecorder::Release() {
  if (state_ == nullptr) return;
  Forget(CommunicatorId{0});
  while (state_->stepping.exchange(true)) std::this_thread::yield();
  state_->progress.step.store(0);
  state_->progress.advanced_ns.store(0);
  state_->progress.version.store(0);
  state_->progress.steps.store(0);
  state_->stepping.store(false);
  state_->writer = WriterNumber();
  state_->claimed.store(false);
}

// ---- communicators -----------------------------------------------------------------------------

Status CollectiveRecorder::Describe(const Communicator& communicator) {
  HOLDFAST_RETURN_IF_ERROR(Check(communicator));
  if (state_ == nullptr) return ResourceExhaustedError("no memory for collective records");
  MutexLock lock(state_->describing);
  uint32_t index = state_->FindCommunicator(communicator.id);
  for (uint32_t probe = 0; index == agent::kCommunicatorsMax; ++probe) {
    if (probe == agent::kCommunicatorsMax) {
      return ResourceExhaustedError("this process has " + std::to_string(probe) +
                                    " communicators already; forget those that are not used");
    }
    const uint32_t at = (communicator.id.value + probe) % agent::kCommunicatorsMax;
    if (!IsOdd(state_->communicators[at].tag.load())) index = at;
  }
  CommunicatorEntry& entry = state_->communicators[index];
  const uint64_t tag = entry.tag.load() & ~uint64_t{1};
  if (entry.tag.load() == tag) {  // new: not described again
    for (std::atomic<uint64_t>& begun : entry.begun) begun.store(0, kRelaxed);
  }
  entry.tag.store(tag + 2);
  entry.id.store(communicator.id.value, kRelease);
  entry.size.store(communicator.size, kRelease);
  entry.index.store(communicator.index, kRelease);
  entry.role.store(static_cast<uint32_t>(communicator.role), kRelease);
  const size_t members = std::min<size_t>(communicator.members.size(), agent::kMembersMax);
  entry.member_count.store(static_cast<uint32_t>(members), kRelease);
  for (size_t i = 0; i < members; ++i)
    entry.members[i].store(communicator.members[i].value, kRelease);
  entry.tag.store(tag + 3);
  const TableAccess access(*state_);
  if (CollectiveTable* table = access.table()) {
    state_->PublishCommunicator(*table, index);
    state_->DropCells(*table, index, tag >> 1);
  }
  return Status::Ok();
}

void CollectiveRecorder::Forget(CommunicatorId communicator) {
  if (state_ == nullptr) return;
  MutexLock lock(state_->describing);
  const uint32_t index = state_->FindCommunicator(communicator);
  if (index == agent::kCommunicatorsMax) return;
  const uint64_t tag = state_->communicators[index].tag.fetch_add(1);
  const TableAccess access(*state_);
  CollectiveTable* table = access.table();
  if (table == nullptr) return;
  state_->PublishCommunicator(*table, index);
  state_->DropCells(*table, index, tag >> 1);
}

// ---- operations --------------------------------------------------------------------------------

uint64_t CollectiveRecorder::Begin(CollectiveRecord record, const BeginOptions& options) {
  if (state_ == nullptr) return 0;
  const TableAccess access(*state_);
  CollectiveTable* table = access.table();
  if (static_cast<uint8_t>(record.kind) >= kCollectiveKinds) {
    record.kind = CollectiveKind::kOther;
  }
  const uint32_t communicator = state_->FindCommunicator(record.communicator);
  const bool described = communicator < agent::kCommunicatorsMax;
  if (described) {
    state_->Number(communicator, options.numbered, &record);
  } else {
    state_->Drop(table, &agent::DropCounts::communicators);
  }
  if (table != nullptr) state_->TakeRequest(*table);
  if (state_->sampling_left.load(kRelaxed) > 0) {
    record.flags |= kSampled;
    state_->sampling_left.fetch_sub(1, kRelaxed);
  }
  const uint32_t index = state_->TakeEntry();
  if (index == agent::kInFlightMax) {
    state_->Drop(table, &agent::DropCounts::in_flight);
    return 0;
  }
  record.step = state_->progress.step.load(kRelaxed);
  record.enqueued_ns = MonotonicNs();
  record.started_ns = options.deferred ? 0 : record.enqueued_ns;
  CollectiveEntry& entry = state_->in_flight[index];
  agent::StoreRecord(entry, record);
  if (!options.deferred) state_->EnterOperation(entry, record.enqueued_ns);
  const uint64_t tag = entry.tag.load(kRelaxed) + 1;
  if (table != nullptr) {
    // No other table can be attached before this access ends, so a release store is enough.
    entry.tag.store(tag, kRelease);
  } else {
    entry.tag.store(tag);
    table = access.table();
  }
  if (table != nullptr) state_->PublishOwnEntry(*table, index, tag);
  if (table != nullptr && described) {
    State::PublishBegun(table->communicators[communicator], record);
  }
  return agent::OperationName(tag, index);
}

void CollectiveRecorder::Started(uint64_t handle) {
  if (state_ == nullptr || handle == 0) return;
  const TableAccess access(*state_);
  uint32_t index = 0;
  CollectiveEntry* entry = state_->Find(handle, &index);
  uint64_t never = 0;
  const uint64_t now = MonotonicNs();
  if (entry == nullptr || !entry->started_ns.compare_exchange_strong(never, now)) return;
  state_->EnterOperation(*entry, now);
  // A single word: the tag need not change.
  if (CollectiveTable* table = access.table()) table->in_flight[index].started_ns.store(now);
}

void CollectiveRecorder::DeviceTime(uint64_t handle, uint64_t ns) {
  uint32_t index = 0;
  CollectiveEntry* entry =
      state_ == nullptr || handle == 0 ? nullptr : state_->Find(handle, &index);
  if (entry != nullptr) entry->device_ns.store(ns, kRelaxed);
}

void CollectiveRecorder::Flag(uint64_t handle, uint16_t flags) {
  uint32_t index = 0;
  CollectiveEntry* entry =
      state_ == nullptr || handle == 0 ? nullptr : state_->Find(handle, &index);
  if (entry != nullptr) agent::AddFlags(*entry, flags);
}

void CollectiveRecorder::End(uint64_t handle) {
  if (state_ == nullptr || handle == 0) return;
  const TableAccess access(*state_);
  uint32_t index = 0;
  CollectiveEntry* entry = state_->Find(handle, &index);
  uint64_t tag = handle >> kIndexBits;
  // Of two calls for one operation the first counts. This thread owns the entry until
  // ReturnEntry().
  if (entry == nullptr || !entry->tag.compare_exchange_strong(tag, tag + 1)) {
    state_->Drop(access.table(), &agent::DropCounts::misuse);
    return;
  }
  CollectiveTable* table = access.table();
  const uint64_t now = MonotonicNs();
  entry->ended_ns.store(now, kRelaxed);
  const bool ran = entry->started_ns.load(kRelaxed) != 0;
  if (table != nullptr) {
    state_->PushRecord(*table, *entry);
    state_->PublishOwnEntry(*table, index, tag + 1);
  }
  state_->ReturnEntry(index);
  if (ran) state_->LeaveOperation(now);
}

// ---- peers, progress, sampling -----------------------------------------------------------------

void CollectiveRecorder::Add(const PeerTransfers& transfers) {
  if (state_ == nullptr) return;
  const TableAccess access(*state_);
  CollectiveTable* table = access.table();
  if (table == nullptr) return;
  PeerCell* cell =
      state_->CellOf(*table, transfers.communicator, transfers.peer, transfers.direction);
  if (cell == nullptr) return;
  cell->transfers.fetch_add(transfers.transfers, kRelaxed);
  cell->bytes.fetch_add(transfers.bytes, kRelaxed);
  AddTo(cell->gpu_wait_ns, transfers.gpu_wait_ns);
  AddTo(cell->peer_wait_ns, transfers.peer_wait_ns);
  AddTo(cell->transfer_ns, transfers.transfer_ns);
  AddTo(cell->flush_ns, transfers.flush_ns);
  // Within an operation, the caller sets what the next transfer waits for.
  if (cell->operation.load(kRelaxed) == 0) cell->now.store(0, kRelaxed);
}

void CollectiveRecorder::Edge(CommunicatorId communicator, uint32_t peer, Direction direction,
                              EdgeState state) {
  if (state_ == nullptr) return;
  const TableAccess access(*state_);
  CollectiveTable* table = access.table();
  if (table == nullptr) return;
  PeerCell* cell = state_->CellOf(*table, communicator, peer, direction);
  if (cell == nullptr) return;
  cell->operation.store(0, kRelaxed);
  cell->now.store(agent::PackCurrentWait({.state = state, .since_ns = MonotonicNs()}), kRelaxed);
}

void CollectiveRecorder::Edge(uint64_t handle, uint32_t peer, Direction direction, EdgeState state,
                              uint64_t completed) {
  if (state_ == nullptr || handle == 0) return;
  const TableAccess access(*state_);
  CollectiveTable* table = access.table();
  uint32_t index = 0;
  const CollectiveEntry* entry = state_->Find(handle, &index);
  if (table == nullptr || entry == nullptr) return;
  const CommunicatorId communicator{entry->communicator.load(kRelaxed)};
  PeerCell* cell = state_->CellOf(*table, communicator, peer, direction);
  if (cell == nullptr) return;
  const uint64_t now = agent::PackCurrentWait({.state = state, .since_ns = MonotonicNs()});
  cell->operation.store(0, kRelaxed);
  cell->completed.store(completed, kRelease);
  cell->now.store(now, kRelease);
  cell->operation.store(handle, kRelease);
}

void CollectiveRecorder::Step(uint64_t step, bool forward_only) {
  // Two threads that step at the same time record the same step, so the second one returns.
  if (state_ == nullptr || state_->stepping.exchange(true, std::memory_order_acquire)) return;
  const uint64_t before = state_->progress.step.load(kRelaxed);
  const bool first = state_->progress.advanced_ns.load(kRelaxed) == 0;
  if (first || step > before || (step < before && !forward_only)) Advance(step, before, first);
  state_->stepping.store(false, std::memory_order_release);
}

void CollectiveRecorder::Advance(uint64_t step, uint64_t before, bool first) {
  agent::ProgressEntry& progress = state_->progress;
  const uint64_t now = MonotonicNs();
  const uint64_t duration = first ? 0 : Since(progress.advanced_ns.load(kRelaxed), now);
  const TableAccess access(*state_);
  if (!first) {
    const uint64_t number = progress.steps.load(kRelaxed);
    CollectiveTable* table = access.table();
    if (table != nullptr) State::PushStep(*table, number, before, duration);
    progress.steps.store(number + 1, kRelaxed);
  }
  progress.step.store(step, kRelease);
  progress.advanced_ns.store(now, kRelease);
  progress.last_step_ns.store(duration, kRelease);
  progress.version.fetch_add(2);
  if (CollectiveTable* table = access.table()) state_->PublishProgress(*table);
}

uint64_t CollectiveRecorder::dropped() const {
  return state_ == nullptr ? 0 : state_->dropped.load(kRelaxed);
}

bool CollectiveRecorder::Sampling() const {
  return state_ != nullptr && state_->sampling_left.load(kRelaxed) > 0;
}

// ---- the link ----------------------------------------------------------------------------------

void CollectiveRecorder::Attach(agent::SegmentControl& control) {
  if (state_ == nullptr) return;
  CollectiveTable& table = control.collectives;
  if (state_->writer == 0) state_->writer = WriterNumber();  // zeroed in a forked child
  if (table.writer.load() != state_->writer) {
    table.layout.store(0);
    Wipe(table);
    table.writer.store(state_->writer);
  }
  state_->table.store(&table);
  Republish();
}

void CollectiveRecorder::Detach() {
  if (state_ == nullptr) return;
  state_->table.store(nullptr);
  for (const State::Lane& lane : state_->lanes) {
    while (lane.accesses.load() > 0) std::this_thread::yield();
  }
}

void CollectiveRecorder::Republish() {
  CollectiveTable* table = state_ == nullptr ? nullptr : state_->table.load();
  if (table == nullptr) return;
  for (uint32_t i = 0; i < agent::kCommunicatorsMax; ++i) {
    if (state_->communicators[i].tag.load() != 0) state_->PublishCommunicator(*table, i);
  }
  for (uint32_t i = 0; i < agent::kInFlightMax; ++i) {
    if (state_->in_flight[i].tag.load() != 0) state_->PublishEntry(*table, i);
  }
  if (state_->progress.version.load() != 0) state_->PublishProgress(*table);
  table->layout.store(agent::kCollectiveTableMagic | agent::kCollectiveTableVersion);
}

}  // namespace holdfast::client
