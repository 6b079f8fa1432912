#include "agent/arena/arena.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "agent/arena/keeper_client.h"
#include "agent/arena/segment.h"
#include "base/clock.h"
#include "base/config.h"
#include "base/crash_point.h"
#include "base/log.h"
#include "base/process.h"
#include "base/random.h"

namespace holdfast::agent {
namespace {
constexpr auto kPredecessorWait = std::chrono::seconds(2);
// How long to wait for a keeper that another process starts: at the agent's start, and later when a
// service manager replaces a keeper.
constexpr auto kFirstKeeperWait = std::chrono::seconds(10);
constexpr auto kNextKeeperWait = std::chrono::seconds(2);

/// Job, rank, and the ID of a retained segment or 0.
using RankKey = std::tuple<std::string, uint32_t, uint64_t>;
RankKey KeyOf(const SegmentOwner& owner) { return {owner.job, owner.rank.value, 0}; }
RankKey RetainedKeyOf(const Segment& segment) {
  return {segment.owner().job, segment.owner().rank.value, segment.id()};
}

Result<UniqueFd> LockRunDir(const std::string& run_dir, Clock& clock) {
  std::string path = run_dir + "/arena.lock";
  UniqueFd fd(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!fd.valid() && errno == ENOENT) {
    return Fail(NotFoundError(
        fmt::format("the run directory {} does not exist: create it or change run_dir", run_dir)));
  }
  if (!fd.valid()) return Fail(ErrnoStatus(errno, "open " + path));
  const auto deadline = clock.Now() + kPredecessorWait;
  while (::flock(fd.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno == EINTR) continue;
    if (errno != EWOULDBLOCK) return Fail(ErrnoStatus(errno, "flock " + path));
    if (clock.Now() >= deadline) {
      return Fail(AlreadyExistsError(fmt::format(
          "another agent uses {}: stop it, or give this one another run_dir", run_dir)));
    }
    clock.SleepFor(std::chrono::milliseconds(5));
  }
  return fd;
}

/// Connects to the keeper. If none answers, starts one, or waits `patience` for it.
Result<KeeperClient> ReachKeeper(const ArenaOptions& options, std::chrono::milliseconds patience,
                                 Clock& clock) {
  if (!options.start_keeper) return KeeperClient::Await(options.run_dir, patience, clock);
  return KeeperClient::ConnectOrStart(options.run_dir, options.keeper_binary, clock);
}

/// The bytes of all segments, also of those being made.
struct ReservedBytes {
  uint64_t all = 0;
  std::map<uid_t, uint64_t> of_users;
  std::map<std::string, uint64_t> of_jobs;

  void Add(const SegmentOwner& owner, uint64_t bytes) {
    all += bytes;
    of_users[owner.uid] += bytes;
    of_jobs[owner.job] += bytes;
  }
  void Remove(const SegmentOwner& owner, uint64_t bytes) {
    all -= bytes;
    if ((of_users[owner.uid] -= bytes) == 0) of_users.erase(owner.uid);
    if ((of_jobs[owner.job] -= bytes) == 0) of_jobs.erase(owner.job);
  }
};

template <typename Key>
uint64_t BytesOf(const std::map<Key, uint64_t>& reserved, const Key& key) {
  const auto found = reserved.find(key);
  return found == reserved.end() ? 0 : found->second;
}

bool Exceeds(uint64_t limit, uint64_t reserved, uint64_t wanted) {
  return reserved > limit || wanted > limit - reserved;
}

class NodeArena : public Arena {
 public:
  NodeArena(ArenaOptions options, UniqueFd lock, KeeperClient keeper, Clock& clock)
      : options_(std::move(options)),
        lock_(std::move(lock)),
        clock_(clock),
        keeper_(std::move(keeper)) {}

  Status AdoptAll();

  Result<Segment*> Reserve(const SegmentOwner& owner, uint32_t slots, uint64_t slot_bytes) override;
  Segment* Find(const std::string& job, Rank rank) override;
  Status RetainSegment(Segment* segment) override {
    return Rekey(segment, RetainedKeyOf(*segment));
  }
  Status ReinstateSegment(Segment* segment) override {
    return Rekey(segment, KeyOf(segment->owner()));
  }
  bool IsRetained(const Segment* segment) const override;
  std::vector<Segment*> segments() override;
  Status Release(Segment* segment) override;
  ArenaUsage usage() const override;
  ArenaShortage ShortageOf(const SegmentOwner& owner, uint32_t slots,
                           uint64_t slot_bytes) const override;
  bool HasPriority(const std::string& job) const override {
    return options_.priority_jobs.contains(job);
  }
  Status EnsureKeeper() override;

 private:
  using Segments = std::map<RankKey, std::unique_ptr<MappedSegment>>;

  Status AdoptOne(KeptEntry entry);
  Status Rekey(const Segment* segment, const RankKey& to);
  /// The next two functions require that the caller has put the owner's key into busy_.
  Result<Segment*> ReserveFor(const SegmentOwner& owner, uint32_t slots, uint64_t slot_bytes);
  Status ReleaseBusy(const RankKey& key);
  std::optional<RankKey> KeyOfSegment(const Segment* segment) const HOLDFAST_REQUIRES(mutex_);
  Result<Segment*> CreateFor(const SegmentShape& shape);
  Status TakeBudget(const SegmentShape& shape);
  ArenaShortage Shortage(const SegmentShape& shape) const HOLDFAST_REQUIRES(mutex_);
  std::string DescribeShortage(const SegmentShape& shape, ArenaShortage shortage) const
      HOLDFAST_REQUIRES(mutex_);
  /// What the jobs without priority may have together, and what they have.
  uint64_t OrdinaryBytesMax() const {
    return options_.budget_bytes - std::min(options_.budget_bytes, options_.priority_bytes);
  }
  uint64_t OrdinaryBytes() const HOLDFAST_REQUIRES(mutex_);
  Status PutWithKeeper(const MappedSegment& segment) HOLDFAST_REQUIRES(keeper_mutex_);
  Status ReconcileKeeper() HOLDFAST_REQUIRES(keeper_mutex_);
  Status DropAtKeeper(const std::string& name);

  const ArenaOptions options_;
  const UniqueFd lock_;
  Clock& clock_;

  // Locked before mutex_ where both are needed. Held during requests to the keeper and while a
  // segment leaves segments_, so that ReconcileKeeper() works on a stable set.
  Mutex keeper_mutex_;
  KeeperClient keeper_ HOLDFAST_GUARDED_BY(keeper_mutex_);

  mutable Mutex mutex_;
  CondVar idle_;
  std::set<RankKey> busy_ HOLDFAST_GUARDED_BY(mutex_);  // being reserved or released
  Segments segments_ HOLDFAST_GUARDED_BY(mutex_);
  ReservedBytes reserved_ HOLDFAST_GUARDED_BY(mutex_);
};

Status NodeArena::AdoptAll() {
  std::string last;
  for (;;) {
    Result<std::optional<KeptEntry>> entry = Fail(InternalError("no request was sent"));
    {
      MutexLock lock(keeper_mutex_);
      entry = keeper_.Next(last);
    }
    HOLDFAST_RETURN_IF_ERROR(entry ? Status::Ok() : entry.error());
    if (!entry->has_value()) break;
    last = (*entry)->name;
    HOLDFAST_RETURN_IF_ERROR(AdoptOne(**std::move(entry)));
  }
  ArenaUsage now = usage();
  if (now.reserved_bytes > now.budget_bytes) {
    Log(LogLevel::kWarn, "ArenaOverBudget",
        {Kv("reserved", FormatBytes(now.reserved_bytes)),
         Kv("budget", FormatBytes(now.budget_bytes))});
  }
  return Status::Ok();
}

Status NodeArena::AdoptOne(KeptEntry entry) {
  std::string name = entry.name;
  std::string note = entry.note;
  auto adopted = MappedSegment::Adopt(std::move(entry));
  if (!adopted && adopted.error().code() == ErrorCode::kUnsupported) {
    // Never deleted: the newer release that made the segment can still use it.
    return adopted.error().WithContext(fmt::format(
        "the keeper holds the memory of {}: start the newer release that made it, or end the "
        "keeper to free that memory",
        note));
  }
  Status status = adopted ? Status::Ok() : adopted.error();
  if (status.ok()) {
    MutexLock lock(mutex_);
    reserved_.Add((*adopted)->owner(), (*adopted)->bytes());
    Log(LogLevel::kInfo, "SegmentAdopted",
        {Kv("segment", note), Kv("bytes", (*adopted)->bytes()),
         Kv("holds", (*adopted)->DescribeHeld())});
    std::unique_ptr<MappedSegment>& place = segments_[KeyOf((*adopted)->owner())];
    if (place == nullptr || place->bytes() < (*adopted)->bytes()) place.swap(*adopted);
    // The smaller one is a retained segment.
    if (*adopted != nullptr) {
      const RankKey retained = RetainedKeyOf(**adopted);
      segments_[retained] = *std::move(adopted);
    }
    return Status::Ok();
  }
  Log(LogLevel::kError, "SegmentReleased",
      {Kv("segment", note), Kv("name", name), Kv("error", status.ToString())});
  return DropAtKeeper(name);
}

Result<Segment*> NodeArena::Reserve(const SegmentOwner& owner, uint32_t slots,
                                    uint64_t slot_bytes) {
  HOLDFAST_RETURN_IF_ERROR(ValidateName("the job's name", owner.job));
  if (slots == 0 || slots > kSlotsMax || slot_bytes == 0 || slot_bytes > kSlotBytesMax) {
    return Fail(InvalidArgumentError(
        fmt::format("{} slots of {} bytes; there may be 1 to {} of 1 to {} bytes", slots,
                    slot_bytes, kSlotsMax, kSlotBytesMax)));
  }
  RankKey key = KeyOf(owner);
  {
    MutexLock lock(mutex_);
    while (busy_.count(key) != 0) idle_.Wait(mutex_);
    busy_.insert(key);
  }
  Result<Segment*> segment = ReserveFor(owner, slots, RoundUp(slot_bytes, kSlotAlign));
  MutexLock lock(mutex_);
  busy_.erase(key);
  idle_.NotifyAll();
  return segment;
}

Result<Segment*> NodeArena::ReserveFor(const SegmentOwner& owner, uint32_t slots,
                                       uint64_t slot_bytes) {
  MappedSegment* existing = nullptr;
  {
    MutexLock lock(mutex_);
    auto found = segments_.find(KeyOf(owner));
    if (found != segments_.end()) existing = found->second.get();
  }
  if (existing != nullptr) {
    if (existing->owner().uid != owner.uid) {
      return Fail(
          PermissionDeniedError(fmt::format("{} belongs to user {}, not to user {}",
                                            existing->note(), existing->owner().uid, owner.uid)));
    }
    if (existing->slot_count() >= slots && existing->slot_bytes() >= slot_bytes) return existing;
    std::string held = existing->DescribeHeld();
    if (!held.empty()) {
      return Fail(FailedPreconditionError(
          fmt::format("{} has {} slots of {} and needs {} of {}, but still holds {}",
                      existing->note(), existing->slot_count(), FormatBytes(existing->slot_bytes()),
                      slots, FormatBytes(slot_bytes), held)));
    }
    HOLDFAST_RETURN_IF_ERROR(ReleaseBusy(KeyOf(owner)));
  }
  uint64_t id = RandomSeed();
  return CreateFor({.id = id, .owner = owner, .slots = slots, .slot_bytes = slot_bytes});
}

uint64_t NodeArena::OrdinaryBytes() const {
  uint64_t bytes = reserved_.all;
  for (const std::string& job : options_.priority_jobs) bytes -= BytesOf(reserved_.of_jobs, job);
  return bytes;
}

ArenaShortage NodeArena::Shortage(const SegmentShape& shape) const {
  const auto& [job, rank, uid] = shape.owner;
  const uint64_t wanted = shape.segment_bytes();
  const auto of_job = BytesOf(reserved_.of_jobs, job);
  if (options_.job_bytes != 0 && Exceeds(options_.job_bytes, of_job, wanted)) {
    return ArenaShortage::kJob;
  }
  const uint64_t of_user = BytesOf(reserved_.of_users, uid);
  if (uid != 0 && options_.user_bytes != 0 && Exceeds(options_.user_bytes, of_user, wanted)) {
    return ArenaShortage::kUser;
  }
  if (options_.priority_bytes != 0 && !HasPriority(job) &&
      Exceeds(OrdinaryBytesMax(), OrdinaryBytes(), wanted)) {
    return ArenaShortage::kOrdinary;
  }
  return Exceeds(options_.budget_bytes, reserved_.all, wanted) ? ArenaShortage::kArena
                                                               : ArenaShortage::kNone;
}

std::string NodeArena::DescribeShortage(const SegmentShape& shape, ArenaShortage shortage) const {
  const auto& [job, rank, uid] = shape.owner;
  const uint64_t wanted = shape.segment_bytes();
  const std::string needs = fmt::format("{}/{} needs {} ({} slots of {} and {} of control)", job,
                                        ShardName(rank), FormatBytes(wanted), shape.slots,
                                        FormatBytes(shape.slot_bytes), FormatBytes(kControlBytes));
  if (shortage == ArenaShortage::kJob) {
    return fmt::format(
        "{}, but the job has {} of the {} that one job may have of this node's arena: use fewer "
        "slots or fewer ranks on the node, or raise limits.arena_bytes_per_job",
        needs, FormatBytes(BytesOf(reserved_.of_jobs, job)), FormatBytes(options_.job_bytes));
  }
  if (shortage == ArenaShortage::kUser) {
    return fmt::format(
        "{}, but uid {} has {} of the {} that one user may have of the arena: end another job, use "
        "fewer slots, or raise limits.arena_percent_per_user",
        needs, uid, FormatBytes(BytesOf(reserved_.of_users, uid)),
        FormatBytes(options_.user_bytes));
  }
  if (shortage == ArenaShortage::kOrdinary) {
    return fmt::format(
        "{}, but jobs without priority have reserved {} of the {} that they may have of the "
        "arena's "
        "{}: end another job, use fewer slots, or change limits.arena_priority_percent or "
        "limits.arena_priority_jobs",
        needs, FormatBytes(OrdinaryBytes()), FormatBytes(OrdinaryBytesMax()),
        FormatBytes(options_.budget_bytes));
  }
  return fmt::format(
      "{}, but other ranks have reserved {} of the arena's {}: raise [arena] bytes to at least {}, "
      "or use fewer slots",
      needs, FormatBytes(reserved_.all), FormatBytes(options_.budget_bytes),
      reserved_.all + wanted);
}

Status NodeArena::TakeBudget(const SegmentShape& shape) {
  MutexLock lock(mutex_);
  const ArenaShortage shortage = Shortage(shape);
  if (shortage != ArenaShortage::kNone) {
    return ResourceExhaustedError(DescribeShortage(shape, shortage));
  }
  reserved_.Add(shape.owner, shape.segment_bytes());
  return Status::Ok();
}

ArenaShortage NodeArena::ShortageOf(const SegmentOwner& owner, uint32_t slots,
                                    uint64_t slot_bytes) const {
  MutexLock lock(mutex_);
  return Shortage({.owner = owner, .slots = slots, .slot_bytes = RoundUp(slot_bytes, kSlotAlign)});
}

Result<Segment*> NodeArena::CreateFor(const SegmentShape& shape) {
  HOLDFAST_RETURN_IF_ERROR(TakeBudget(shape));
  auto created = MappedSegment::Create(shape);
  Status status = created ? Status::Ok() : created.error();
  MutexLock keeper_lock(keeper_mutex_);
  if (status.ok()) status = PutWithKeeper(**created);
  if (status.ok()) HOLDFAST_CRASH_POINT("arena.after_reserve");
  MutexLock lock(mutex_);
  if (!status.ok()) {
    reserved_.Remove(shape.owner, shape.segment_bytes());
    return Fail(std::move(status));
  }
  Segment* segment = created->get();
  Log(LogLevel::kInfo, "SegmentReserved",
      {Kv("segment", (*created)->note()), Kv("slots", shape.slots),
       Kv("slot_bytes", shape.slot_bytes), Kv("reserved_bytes", reserved_.all)});
  segments_[KeyOf(shape.owner)] = *std::move(created);
  return segment;
}

Segment* NodeArena::Find(const std::string& job, Rank rank) {
  MutexLock lock(mutex_);
  auto found = segments_.find({job, rank.value, 0});
  return found == segments_.end() ? nullptr : found->second.get();
}

Status NodeArena::Rekey(const Segment* segment, const RankKey& to) {
  MutexLock lock(mutex_);
  for (;;) {
    const std::optional<RankKey> key = KeyOfSegment(segment);
    if (!key) return NotFoundError("this arena has no such segment");
    if (*key == to) return Status::Ok();
    if (busy_.count(*key) != 0 || busy_.count(to) != 0) {
      idle_.Wait(mutex_);
      continue;
    }
    if (segments_.count(to) != 0) return AlreadyExistsError("the rank has another segment now");
    auto node = segments_.extract(*key);
    node.key() = to;
    segments_.insert(std::move(node));
    return Status::Ok();
  }
}

bool NodeArena::IsRetained(const Segment* segment) const {
  MutexLock lock(mutex_);
  const std::optional<RankKey> key = KeyOfSegment(segment);
  return key && std::get<2>(*key) != 0;
}

std::vector<Segment*> NodeArena::segments() {
  MutexLock lock(mutex_);
  std::vector<Segment*> all;
  for (const auto& [key, segment] : segments_) all.push_back(segment.get());
  return all;
}

std::optional<RankKey> NodeArena::KeyOfSegment(const Segment* segment) const {
  for (const auto& [key, each] : segments_) {
    if (each.get() == segment) return key;
  }
  return std::nullopt;
}

Status NodeArena::Release(Segment* segment) {
  RankKey key;
  {
    MutexLock lock(mutex_);
    for (;;) {
      auto found = KeyOfSegment(segment);
      if (!found) return NotFoundError("this arena has no such segment");
      key = *std::move(found);
      if (busy_.insert(key).second) break;
      idle_.Wait(mutex_);
    }
  }
  Status status = ReleaseBusy(key);
  MutexLock lock(mutex_);
  busy_.erase(key);
  idle_.NotifyAll();
  return status;
}

Status NodeArena::ReleaseBusy(const RankKey& key) {
  MutexLock keeper_lock(keeper_mutex_);
  std::string name;
  {
    MutexLock lock(mutex_);
    name = segments_.at(key)->kept_name();
  }
  // The keeper drops the segment first: while it holds the descriptors, the memory is in use and
  // the budget must not count it as free.
  Status status = keeper_.Drop(name);
  if (!status.ok()) {
    HOLDFAST_RETURN_IF_ERROR(ReconcileKeeper());
    HOLDFAST_RETURN_IF_ERROR(keeper_.Drop(name));
  }
  std::unique_ptr<MappedSegment> released;
  {
    MutexLock lock(mutex_);
    released = std::move(segments_.at(key));
    segments_.erase(key);
  }
  const uint64_t bytes = released->bytes();
  const SegmentOwner owner = released->owner();
  std::string note = released->note();
  released.reset();  // unmaps, which is slow: without the mutex, and before the budget is free
  MutexLock lock(mutex_);
  reserved_.Remove(owner, bytes);
  Log(LogLevel::kInfo, "SegmentFreed", {Kv("segment", note), Kv("reserved_bytes", reserved_.all)});
  return Status::Ok();
}

ArenaUsage NodeArena::usage() const {
  MutexLock lock(mutex_);
  return {.budget_bytes = options_.budget_bytes,
          .reserved_bytes = reserved_.all,
          .segments = static_cast<uint32_t>(segments_.size()),
          .of_jobs = reserved_.of_jobs};
}

Status NodeArena::PutWithKeeper(const MappedSegment& segment) {
  int fds[2] = {segment.fd(), segment.ledger_fd()};
  Status status = keeper_.Put(segment.kept_name(), segment.note(), fds);
  if (status.ok()) return status;
  HOLDFAST_RETURN_IF_ERROR(ReconcileKeeper());
  return keeper_.Put(segment.kept_name(), segment.note(), fds);
}

Status NodeArena::DropAtKeeper(const std::string& name) {
  MutexLock lock(keeper_mutex_);
  return keeper_.Drop(name);
}

Status NodeArena::EnsureKeeper() {
  MutexLock lock(keeper_mutex_);
  return ReconcileKeeper();
}

// Always opens a new connection: only that shows that the next agent, too, would find this keeper.
Status NodeArena::ReconcileKeeper() {
  HOLDFAST_ASSIGN_OR_RETURN(KeeperClient keeper, ReachKeeper(options_, kNextKeeperWait, clock_));
  keeper_ = std::move(keeper);
  std::set<std::string> kept;
  for (std::string last;;) {
    HOLDFAST_ASSIGN_OR_RETURN(std::optional<KeptEntry> entry, keeper_.Next(last));
    if (!entry) break;
    last = entry->name;
    kept.insert(last);
  }
  std::vector<MappedSegment*> all;
  {
    MutexLock lock(mutex_);
    for (const auto& [key, segment] : segments_) all.push_back(segment.get());
  }
  for (const MappedSegment* segment : all) {
    if (kept.erase(segment->kept_name()) != 0) continue;
    int fds[2] = {segment->fd(), segment->ledger_fd()};
    HOLDFAST_RETURN_IF_ERROR(keeper_.Put(segment->kept_name(), segment->note(), fds));
    Log(LogLevel::kWarn, "SegmentHandedToNewKeeper", {Kv("segment", segment->note())});
  }
  // The remaining entries belong to no segment: the reply to a Drop(), or to a Put() that failed
  // here, got lost. No other process uses this run directory, so dropping them is safe.
  for (const std::string& name : kept) HOLDFAST_RETURN_IF_ERROR(keeper_.Drop(name));
  return Status::Ok();
}
}  // namespace

Result<std::unique_ptr<Arena>> Arena::Open(const ArenaOptions& options, Clock& clock) {
  ArenaOptions chosen = options;
  if (chosen.run_dir.empty() || chosen.run_dir[0] != '/') {
    return Fail(InvalidArgumentError(
        fmt::format("run_dir must be an absolute path, not \"{}\"", chosen.run_dir)));
  }
  if (chosen.start_keeper && chosen.keeper_binary.empty()) {
    HOLDFAST_ASSIGN_OR_RETURN(chosen.keeper_binary, SiblingProgram("holdfast-keeper"));
  }
  HOLDFAST_ASSIGN_OR_RETURN(UniqueFd lock, LockRunDir(chosen.run_dir, clock));
  HOLDFAST_ASSIGN_OR_RETURN(KeeperClient keeper, ReachKeeper(chosen, kFirstKeeperWait, clock));
  auto arena =
      std::make_unique<NodeArena>(std::move(chosen), std::move(lock), std::move(keeper), clock);
  HOLDFAST_RETURN_IF_ERROR(arena->AdoptAll());
  return arena;
}

}  // namespace holdfast::agent
