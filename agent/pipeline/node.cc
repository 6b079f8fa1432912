#include "agent/pipeline/node.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "storage/base/log.h"
#include "storage/base/process.h"
#include "storage/format/checksum.h"

namespace holdfast::agent {
namespace {

constexpr size_t kDepartedMax = 4096;
constexpr uint32_t kWorkers = 4;
constexpr uint32_t kRepairs = 2;
// Threads of version readers, which read from memory, disks and peers in parallel.
constexpr uint32_t kReaderThreads = 8;
constexpr size_t kSessionsMax = 512;
/// Limit of one user's connections without a Hello. A trainer sends its Hello at once; silent
/// connections must not use up the places of trainers.
constexpr size_t kSilentMax = 64;
constexpr int kTickMs = 100;
// Interval at which the warning about quarantined files is updated, also after an operator has
// deleted them.
constexpr std::chrono::seconds kQuarantineCheckPause(5);
// Packets handled for one trainer before the other trainers are served.
constexpr int kPacketsPerTurn = 16;

class MemoryReader final : public ShardReader {
 public:
  MemoryReader(std::shared_ptr<RankPipeline> rank, uint32_t slot, ShardSeal seal)
      : rank_(std::move(rank)), slot_(slot), seal_(std::move(seal)) {}
  ~MemoryReader() override { rank_->slots.Unpin(slot_); }
  const ShardSeal& seal() const override { return seal_; }
  Status ReadChunk(uint64_t index, std::vector<std::byte>* into) override {
    if (index >= seal_.chunk_crcs.size()) return NoSuchChunk();
    into->resize(std::min(kChunkBytes, seal_.image_bytes - index * kChunkBytes));
    return CopyChunk(index, *into);
  }
  Status CopyChunk(uint64_t index, std::span<std::byte> into) override {
    if (index >= seal_.chunk_crcs.size()) return NoSuchChunk();
    const uint64_t offset = index * kChunkBytes;
    if (into.size() != std::min(kChunkBytes, seal_.image_bytes - offset)) return NoSuchChunk();
    std::memcpy(into.data(), rank_->segment.slot(slot_).data() + offset, into.size());
    if (Crc32c(into) == seal_.chunk_crcs[index]) return Status::Ok();
    return Status(ErrorCode::kDataLoss,
                  fmt::format("{} in memory: chunk {} does not match its checksum",
                              ToString(seal_.identity.key()), index));
  }

 private:
  static Status NoSuchChunk() {
    return InvalidArgumentError("the index or the length of the chunk is wrong");
  }

  std::shared_ptr<RankPipeline> rank_;  // keeps the mapping alive while it is read
  uint32_t slot_;
  ShardSeal seal_;
};

}  // namespace

Node::Node(NodeOptions options, Arena& arena, Volume& volume, CoordinatorLink& link,
           ShardFetcher& fetcher, PeerTransport& peers, Clock& clock)
    : options_(std::move(options)),
      arena_(arena),
      volume_(volume),
      link_(link),
      clock_(clock),
      peers_(peers),
      peer_source_(
          options_.node, [this](const ShardKey& key) { return FindHolder(key); },
          [this](const ShardKey& key, Tier tier, const Status& how) { OnDamaged(key, tier, how); },
          volume, peers),
      restore_tools_(MakeRestoreTools(fetcher)),
      reach_(peers, options_.node, clock),
      life_(options_.seen_life.life.value),
      unlabeled_(options_.seen_life.unlabeled.value),
      wake_fd_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      workers_(kWorkers),
      repairs_(kRepairs),
      retention_(1),
      reader_threads_(kReaderThreads) {}

RestoreTools Node::MakeRestoreTools(ShardFetcher& fetcher) {
  return {volume_,
          fetcher,
          link_,
          clock_,
          peers_,
          peer_source_,
          options_.node,
          [this] { return workers_.stopping(); },
          [this](const ShardKey& key, Tier tier, const Status& how) { OnDamaged(key, tier, how); },
          [this](const ShardKey& key, Tier tier, const Status& how) { OnLost(key, tier, how); },
          [this](const ShardIdentity& identity, Tier tier, const ShardSeal& seal) {
            OnVerified(identity, tier, seal);
          },
          [this](const ShardKey& key) { return OpenInMemory(key); }};
}

Node::~Node() { Stop(); }

void Node::Stop() {
  {
    MutexLock lock(posted_mutex_);
    stopping_ = true;
    posted_.clear();
  }
  const uint64_t one = 1;
  [[maybe_unused]] ssize_t written = ::write(wake_fd_.get(), &one, sizeof(one));
  if (loop_.joinable()) loop_.join();
  parity_keepers_.clear();
  scrubber_.reset();
  workers_.Stop();
  repairs_.Stop();
  retention_.Stop();
  reader_threads_.Stop();
  sessions_.clear();
  std::vector<std::shared_ptr<RankPipeline>> ranks = Ranks();
  {
    MutexLock lock(ranks_mutex_);
    ranks_.clear();
    retained_.clear();
  }
  for (std::shared_ptr<RankPipeline>& rank : ranks) {
    volume_.UnregisterMemory(rank->segment.memory());
    rank.reset();
  }
}

// ---- adoption ----

void Node::Adopt() {
  for (const StoredShard& shard : volume_.recovery().shards) {
    link_.Report(StoredReplica{shard.identity, Tier::kDisk, shard.digest, shard.image_bytes, "",
                               shard.life});
  }
  struct Found {
    VersionId version;
    std::shared_ptr<RankPipeline> rank;
  };
  std::vector<Found> found;
  for (Segment* segment : arena_.segments()) {
    std::shared_ptr<RankPipeline> rank = MakeRank(*segment);
    for (const auto& [version, verified] : rank->slots.SealedVersions()) {
      found.push_back({version, rank});
    }
  }
  std::stable_sort(found.begin(), found.end(),
                   [](const Found& a, const Found& b) { return a.version > b.version; });
  {
    MutexLock lock(adopt_mutex_);
    adopting_ = static_cast<uint32_t>(found.size());
  }
  for (const Found& one : found) {
    const bool posted = workers_.Post([this, one] { VerifyAdopted(one.rank, one.version); });
    if (!posted) VerifyAdopted(one.rank, one.version);
  }
}

void Node::VerifyAdopted(const std::shared_ptr<RankPipeline>& rank, VersionId version) {
  const SegmentOwner& owner = rank->segment.owner();
  const ShardKey key{owner.job, version, owner.rank};
  auto slot = rank->slots.Pin(version, RankSlots::Find::kIncludeUnchecked);
  if (slot) {
    Status status = VerifySlot(rank->segment, *slot);
    auto seal = rank->segment.seal(*slot);
    if (status.ok() && seal) {
      auto stored = volume_.ReadSeal(key);
      rank->slots.Verified(*slot, stored && stored->digest() == seal->digest());
      link_.Report(StoredReplica{seal->identity, Tier::kMemory, seal->digest(), seal->image_bytes,
                                 "", seal->life});
      Log(LogLevel::kInfo, "SlotAdopted",
          {Kv("shard", ToString(key)), Kv("bytes", seal->image_bytes)});
    } else {
      OnDamaged(key, Tier::kMemory, status.ok() ? seal.error() : status);
    }
    rank->slots.Unpin(*slot);
    OnSlotsChanged(owner.job, owner.rank);
  }
  MutexLock lock(adopt_mutex_);
  --adopting_;
  adopted_.NotifyAll();
}

bool Node::AwaitAdopted(int64_t timeout_ms) {
  const Clock::TimePoint deadline = clock_.Now() + std::chrono::milliseconds(timeout_ms);
  MutexLock lock(adopt_mutex_);
  while (adopting_ > 0) {
    const auto left = deadline - clock_.Now();
    if (left <= Clock::Duration::zero()) return false;
    adopted_.WaitFor(adopt_mutex_, left);
  }
  return true;
}

std::shared_ptr<RankPipeline> Node::FindRank(const std::string& job, Rank rank) {
  MutexLock lock(ranks_mutex_);
  auto found = ranks_.find({job, rank});
  return found == ranks_.end() ? nullptr : found->second;
}

std::shared_ptr<RankPipeline> Node::FindHolder(const ShardKey& key) {
  std::shared_ptr<RankPipeline> rank = FindRank(key.job, key.rank);
  if (rank != nullptr && rank->slots.Has(key.version)) return rank;
  MutexLock lock(ranks_mutex_);
  for (const auto& former : retained_) {
    const SegmentOwner& owner = former->segment.owner();
    if (owner.job == key.job && owner.rank == key.rank && former->slots.Has(key.version)) {
      return former;
    }
  }
  return rank;
}

std::vector<std::shared_ptr<RankPipeline>> Node::Ranks(const std::string* job) {
  MutexLock lock(ranks_mutex_);
  std::vector<std::shared_ptr<RankPipeline>> ranks;
  for (const auto& [key, rank] : ranks_) {
    if (job == nullptr || key.first == *job) ranks.push_back(rank);
  }
  for (const auto& rank : retained_) {
    if (job == nullptr || rank->segment.owner().job == *job) ranks.push_back(rank);
  }
  return ranks;
}

std::shared_ptr<RankPipeline> Node::MakeRank(Segment& segment) {
  volume_.RegisterMemory(segment.memory());
  RankEvents& events = *this;
  auto rank = std::make_shared<RankPipeline>(segment, options_.disk_every_steps,
                                             options_.peer_every_steps, volume_, events, clock_);
  rank->slots.SetLife(LifeId{life_.load()}, LifeId{unlabeled_.load()});
  MutexLock lock(ranks_mutex_);
  if (arena_.IsRetained(&segment)) {
    retained_.push_back(rank);
  } else {
    ranks_[{segment.owner().job, segment.owner().rank}] = rank;
  }
  return rank;
}

// ---- the loop ----

Status Node::Serve(UniqueFd listener) {
  if (!wake_fd_.valid()) return ErrnoStatus(errno, "eventfd");
  listener_ = std::move(listener);
  if (!options_.trainers_file.empty()) LoadTrainers();
  loop_ = std::thread([this] { RunLoop(); });
  scrubber_ = std::make_unique<Scrubber>(
      options_.scrub, ScrubTools{[this] { return KeptInMemory(); },
                                 [this](const ShardKey& key, uint64_t chunk) {
                                   return CheckChunkInMemory(key, chunk);
                                 },
                                 volume_,
                                 [this](const ShardKey& key, Tier tier, const Status& how) {
                                   return OnDamaged(key, tier, how);
                                 }});
  return Status::Ok();
}

void Node::Post(std::function<void()> task) {
  {
    MutexLock lock(posted_mutex_);
    if (stopping_) return;
    posted_.push_back(std::move(task));
  }
  const uint64_t one = 1;
  [[maybe_unused]] ssize_t written = ::write(wake_fd_.get(), &one, sizeof(one));
}

void Node::RunPosted() {
  uint64_t count = 0;
  [[maybe_unused]] ssize_t got = ::read(wake_fd_.get(), &count, sizeof(count));
  std::vector<std::function<void()>> tasks;
  {
    MutexLock lock(posted_mutex_);
    tasks.swap(posted_);
  }
  for (const std::function<void()>& task : tasks) task();
}

void Node::RunLoop() {
  Clock::TimePoint next_tick = clock_.Now();
  for (;;) {
    {
      MutexLock lock(posted_mutex_);
      if (stopping_) return;
    }
    std::vector<pollfd> polled;
    std::vector<uint64_t> ids;
    polled.push_back({wake_fd_.get(), POLLIN, 0});
    polled.push_back({sessions_.size() < kSessionsMax ? listener_.get() : -1, POLLIN, 0});
    for (const auto& [id, session] : sessions_) {
      // The loop does not read packets of a trainer that is joining. It only detects the trainer's
      // end.
      const bool reads = session->state != Session::State::kJoining;
      const int events = (reads ? POLLIN : 0) | (session->has_backlog() ? POLLOUT : 0);
      ids.push_back(id);
      polled.push_back({session->socket(), static_cast<int16_t>(events), 0});
      polled.push_back({session->pid_fd(), POLLIN, 0});
    }
    ::poll(polled.data(), polled.size(), kTickMs);
    RunPosted();
    if (polled[1].revents != 0) AcceptTrainers();
    for (size_t i = 0; i < ids.size(); ++i) {
      Session* session = FindSession(ids[i]);
      if (session == nullptr || session->state == Session::State::kClosing) continue;
      const int16_t on_socket = polled[2 + 2 * i].revents;
      if ((on_socket & POLLOUT) != 0 && !session->FlushBacklog()) {
        EndSession(*session, "the trainer does not read its packets");
        continue;
      }
      const bool dead = (polled[3 + 2 * i].revents & POLLIN) != 0;
      const bool hung_up = (on_socket & (POLLHUP | POLLERR)) != 0;
      // Packets sent before the end still count.
      if ((on_socket & POLLIN) != 0 || dead || hung_up) ReadPackets(*session);
      if ((dead || hung_up) && session->state != Session::State::kClosing) {
        EndSession(*session, dead ? "its process has ended" : "it closed the connection");
      }
    }
    if (clock_.Now() >= next_tick) {
      next_tick = clock_.Now() + std::chrono::milliseconds(kTickMs);
      TickLoop();
    }
    SweepClosed();
  }
}

void Node::AcceptTrainers() {
  while (sessions_.size() < kSessionsMax) {
    auto accepted = AcceptUnix(listener_.get());
    if (!accepted) {
      Log(LogLevel::kWarn, "AcceptFailed", {Kv("error", accepted.error().ToString())});
      return;
    }
    if (!accepted->has_value()) return;
    UniqueFd socket = std::move(**accepted);
    auto peer = CredentialsOf(socket.get());
    if (!peer) continue;
    auto pid_fd = PidFdOfPeer(socket.get());
    // A process that the agent cannot see is refused after its Hello: it can neither be identified
    // nor watched.
    const bool visible = peer->pid > 0;
    if (!pid_fd && visible) continue;  // the process has ended already
    DropSilent(peer->uid);
    const uint64_t id = next_session_++;
    sessions_[id] = std::make_unique<Session>(
        id, std::move(socket), pid_fd ? std::move(*pid_fd) : UniqueFd(), *peer,
        clock_.Now() + std::chrono::milliseconds(options_.hello_timeout_ms));
  }
}

/// Makes room for one more connection of this user: ends the oldest one without a Hello.
void Node::DropSilent(uid_t uid) {
  size_t silent = 0;
  Session* oldest = nullptr;
  for (const auto& [id, session] : sessions_) {
    if (session->state != Session::State::kHello || session->peer().uid != uid) continue;
    if (oldest == nullptr) oldest = session.get();
    ++silent;
  }
  if (silent < kSilentMax) return;
  ReadPackets(*oldest);  // many ranks start at once: its Hello may be waiting to be read
  if (oldest->state != Session::State::kHello) return;
  Log(LogLevel::kDebug, "IdleConnectionDropped", {Kv("uid", uid), Kv("pid", oldest->peer().pid)});
  EndSession(*oldest,
             fmt::format("its user has more than {} connections without a Hello", kSilentMax));
  sessions_.erase(oldest->id());
}

void Node::ReadPackets(Session& session) {
  const bool ending = ProcessGone(session.pid_fd());
  for (int i = 0; ending || i < kPacketsPerTurn; ++i) {
    if (session.state == Session::State::kJoining || session.state == Session::State::kClosing) {
      return;
    }
    auto packet = ReceivePacket(session.socket(), kMessageBytesMax, 0);
    if (!packet) {
      if (packet.error().code() == ErrorCode::kDeadlineExceeded) return;
      if (packet.error().code() == ErrorCode::kInvalidArgument) {
        Refuse(session, packet.error());
        return;
      }
      EndSession(session, packet.error().message());
      return;
    }
    if (packet->bytes.empty()) {
      EndSession(session, "it closed the connection");
      return;
    }
    HandlePacket(session, packet->bytes);
  }
}

void Node::TickLoop() {
  const Clock::TimePoint now = clock_.Now();
  for (const auto& [id, session] : sessions_) {
    if (session->state == Session::State::kHello && now >= session->deadline) {
      EndSession(*session, "it sent no Hello in time");
    }
    if (session->state == Session::State::kReady) RetryWaitingRequests(*session);
    if (session->state == Session::State::kJoining) SendReservationProgress(*session);
  }
  std::vector<ParkedPrepare> expired;
  for (size_t i = 0; i < parked_.size();) {
    if (now < parked_[i].deadline) {
      ++i;
      continue;
    }
    expired.push_back(std::move(parked_[i]));
    parked_.erase(parked_.begin() + static_cast<ptrdiff_t>(i));
  }
  // The coordinator waits for the outcome of each request.
  for (const ParkedPrepare& parked : expired) {
    const ShardIdentity& identity = parked.prepare.identity;
    link_.Report(Prepared{
        parked.prepare.request,
        {ErrorCode::kUnavailable, fmt::format("rank {} of {} has not connected to node {}",
                                              identity.rank.value, identity.job, options_.node)}});
  }
  ReleaseRetained();
  AdvanceReleases();
  ReportRanks();
  if (now >= next_quarantine_check_) {
    next_quarantine_check_ = now + kQuarantineCheckPause;
    static_cast<void>(retention_.Post([this] { WarnOfQuarantine(); }));
  }
  std::erase_if(trainers_,
                [](const auto& trainer) { return ProcessGone(trainer.second.pid_fd.get()); });
}

void Node::EndSession(Session& session, std::string_view why) {
  if (session.state == Session::State::kClosing) return;
  session.state = Session::State::kClosing;
  if (session.job.empty()) return;
  Log(LogLevel::kInfo, "TrainerLeft",
      {Kv("job", session.job), Kv("rank", session.rank.value), Kv("pid", session.peer().pid),
       Kv("why", why)});
  if (session.goodbye) {
    // The process may connect again, and must then join as the same start.
    auto trainer = trainers_.extract({session.job, session.rank});
    if (!trainer.empty() &&
        (departed_.size() < kDepartedMax || departed_.contains(trainer.key()))) {
      const Trainer& one = trainer.mapped();
      departed_[trainer.key()] = {one.pid, one.start_ticks, one.incarnation};
    }
    StoreTrainers();
  }
  if (session.pipeline == nullptr) return;
  session.pipeline->connected.store(false);
  watched_.Leave(session.job, session.rank, session.goodbye);
  if (session.goodbye) RememberGoodbye(session);
  RankSlots& slots = session.pipeline->slots;
  for (uint32_t slot : session.pins) slots.Unpin(slot);
  session.pins.clear();
  for (const auto& [number, reader] : session.readers) {
    if (reader.own_slot) slots.Unpin(*reader.own_slot);
  }
  session.readers.clear();
  const std::string reason = fmt::format("the trainer left before its copy was complete: {}", why);
  for (VersionId version : slots.AbortUnended({ErrorCode::kAborted, reason})) {
    ReportNotSaved({session.job, version, session.rank}, reason);
  }
}

void Node::SweepClosed() {
  std::erase_if(sessions_,
                [](const auto& entry) { return entry.second->state == Session::State::kClosing; });
  session_count_.store(static_cast<uint32_t>(sessions_.size()), std::memory_order_relaxed);
}

Session* Node::FindSession(uint64_t id) {
  auto found = sessions_.find(id);
  return found == sessions_.end() ? nullptr : found->second.get();
}

Session* Node::FindSession(const std::string& job, Rank rank) {
  for (const auto& [id, session] : sessions_) {
    if (session->state != Session::State::kJoining && session->state != Session::State::kReady) {
      continue;
    }
    if (session->job == job && session->rank == rank) return session.get();
  }
  return nullptr;
}

// ---- the data service ----

Result<std::unique_ptr<ShardReader>> Node::OpenInMemory(const ShardKey& key) {
  std::shared_ptr<RankPipeline> rank = FindHolder(key);
  if (rank == nullptr) {
    return Fail({ErrorCode::kNotFound, fmt::format("node {} has no memory of rank {} of {}",
                                                   options_.node, key.rank.value, key.job)});
  }
  HOLDFAST_ASSIGN_OR_RETURN(const uint32_t slot, rank->slots.Pin(key.version));
  auto seal = rank->segment.seal(slot);
  if (!seal) {
    rank->slots.Unpin(slot);
    return Fail(seal.error());
  }
  return std::make_unique<MemoryReader>(std::move(rank), slot, *std::move(seal));
}

// ---- scrubbing ----

std::vector<ShardKey> Node::KeptInMemory() {
  std::vector<ShardKey> kept;
  for (const auto& rank : Ranks()) {
    const SegmentOwner& owner = rank->segment.owner();
    for (VersionId version : rank->slots.Kept()) kept.push_back({owner.job, version, owner.rank});
  }
  return kept;
}

Result<uint64_t> Node::CheckChunkInMemory(const ShardKey& key, uint64_t chunk) {
  HOLDFAST_ASSIGN_OR_RETURN(auto reader, OpenInMemory(key));
  if (chunk >= reader->seal().chunk_crcs.size()) return 0;
  std::vector<std::byte> bytes;
  HOLDFAST_RETURN_IF_ERROR(reader->ReadChunk(chunk, &bytes));
  return bytes.size();
}

Scrubber::Counts Node::scrub_counts() const {
  return scrubber_ == nullptr ? Scrubber::Counts() : scrubber_->counts();
}

/// A node that keeps parity of a version is a member of a group that protects the version.
Result<ShardSeal> Node::SealOfProtected(const ShardKey& key, Tier tier) {
  bool is_protected = IsParity(key.rank);
  for (const auto& rank : Ranks(&key.job)) {
    if (!IsParity(rank->segment.owner().rank)) continue;
    for (const auto& [version, verified] : rank->slots.SealedVersions()) {
      is_protected = is_protected || version == key.version;
    }
  }
  for (const StoredShard& shard : volume_.List()) {
    const ShardIdentity& identity = shard.identity;
    is_protected = is_protected || (IsParity(identity.rank) && identity.job == key.job &&
                                    identity.version == key.version);
  }
  if (!is_protected) {
    return Fail(NotFoundError("no parity group protects " + ToString(key)));
  }
  if (tier == Tier::kDisk) {
    HOLDFAST_ASSIGN_OR_RETURN(const auto chunks, volume_.OpenChunks(key));
    return chunks->seal();
  }
  const std::shared_ptr<RankPipeline> rank = FindHolder(key);
  if (rank == nullptr) return Fail(NotFoundError(ToString(key) + " is not in memory"));
  HOLDFAST_ASSIGN_OR_RETURN(const uint32_t slot,
                            rank->slots.Pin(key.version, RankSlots::Find::kIncludeUnchecked));
  auto seal = rank->segment.seal(slot);
  rank->slots.Unpin(slot);
  return seal;
}

bool Node::OnDamaged(const ShardKey& key, Tier tier, const Status& how) {
  const auto seal = SealOfProtected(key, tier);
  if (!seal) {
    OnLost(key, tier, how);
    return true;
  }
  if (tier == Tier::kMemory) {
    const std::shared_ptr<RankPipeline> rank = FindHolder(key);
    if (rank == nullptr || !rank->slots.MarkDamaged(key.version).ok()) return false;
  } else {
    MutexLock lock(damaged_mutex_);
    if (!damaged_on_disk_.insert(key).second) return false;
  }
  Log(LogLevel::kError, "ShardDamaged",
      {Kv("shard", ToString(key)), Kv("tier", ToString(tier)), Kv("error", how.message())});
  link_.Report(StoredReplica{seal->identity, tier, seal->digest(), seal->image_bytes, how.message(),
                             seal->life});
  return true;
}

void Node::OnLost(const ShardKey& key, Tier tier, const Status& how) {
  if (tier == Tier::kMemory) {
    const std::shared_ptr<RankPipeline> rank = FindHolder(key);
    if (rank == nullptr || !rank->slots.Discard(key.version).ok()) return;  // known already
  } else {
    const Status moved = volume_.Quarantine(key, how.message());
    {
      MutexLock lock(damaged_mutex_);
      damaged_on_disk_.erase(key);
    }
    if (moved.code() == ErrorCode::kNotFound) return;
    if (!moved.ok()) Log(LogLevel::kError, "QuarantineFailed", {Kv("error", moved.ToString())});
  }
  Log(LogLevel::kError, "ShardLost",
      {Kv("shard", ToString(key)), Kv("tier", ToString(tier)), Kv("error", how.message())});
  link_.Report(RemovedReplica{key, tier, how.message()});
  if (tier == Tier::kMemory) OnSlotsChanged(key.job, key.rank);
}

void Node::OnVerified(const ShardIdentity& identity, Tier tier, const ShardSeal& seal) {
  if (tier == Tier::kDisk) {
    MutexLock lock(damaged_mutex_);
    damaged_on_disk_.erase(identity.key());
  }
  link_.Report(StoredReplica{identity, tier, seal.digest(), seal.image_bytes, "", seal.life});
}

Status Node::VerifyInMemory(const ShardKey& key, bool deep, ShardSeal* seal) {
  HOLDFAST_ASSIGN_OR_RETURN(auto reader, OpenInMemory(key));
  *seal = reader->seal();
  std::vector<std::byte> chunk;
  for (uint64_t i = 0; deep && i < seal->chunk_crcs.size(); ++i) {
    Status status = reader->ReadChunk(i, &chunk);
    if (status.code() == ErrorCode::kDataLoss) OnDamaged(key, Tier::kMemory, status);
    HOLDFAST_RETURN_IF_ERROR(status);
  }
  return Status::Ok();
}

namespace {
bool ReportsCollective(RankPipeline& rank) {
  return rank.connected.load() && rank.segment.control().phase(Phase::kCollective).open.load() != 0;
}
}  // namespace

bool Node::InCollective() {
  MutexLock lock(ranks_mutex_);
  return std::any_of(ranks_.begin(), ranks_.end(),
                     [](const auto& entry) { return ReportsCollective(*entry.second); });
}

std::vector<Node::RankStatus> Node::Snapshot() {
  std::vector<RankStatus> result;
  for (const auto& rank : Ranks()) {
    result.push_back({rank->segment.owner(), rank->segment.slot_bytes(), ReportsCollective(*rank),
                      rank->segment.control().phase(Phase::kCollective).begun.load(),
                      rank->slots.Snapshot()});
  }
  return result;
}

}  // namespace holdfast::agent
