#include "tests/agent/pipeline/harness.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>

#include "agent/arena/keeper_client.h"
#include "base/clock.h"
#include "base/process.h"
#include "storage/format/checksum.h"
#include "storage/format/image.h"

namespace holdfast::agent {

std::string MakeTempDir() {
  const char* base = ::getenv("TMPDIR");
  std::string path = std::string(base != nullptr ? base : "/tmp") + "/holdfast-pipeline-XXXXXX";
  return ::mkdtemp(path.data()) != nullptr ? path : "";
}

void RemoveTree(const std::string& path) {
  std::error_code error;
  std::filesystem::remove_all(path, error);
}

bool Eventually(const std::function<bool()>& condition, int timeout_ms) {
  const auto deadline = Clock::Real().Now() + std::chrono::milliseconds(timeout_ms);
  while (!condition()) {
    if (Clock::Real().Now() >= deadline) return false;
    Clock::Real().SleepFor(std::chrono::milliseconds(2));
  }
  return true;
}

std::vector<std::byte> MakeImage(const ShardIdentity& identity, uint64_t tensor_bytes,
                                 const std::string& samples) {
  TensorSpec spec;
  spec.name = "weights";
  spec.dtype = DType::kU8;
  spec.shape = {tensor_bytes};
  spec.global_shape = {tensor_bytes};
  spec.offset = {0};
  auto layout = ImageLayout::Plan({spec});
  std::vector<ExtraSize> extras;
  if (!samples.empty()) extras.push_back({kReplicaSamplesExtra, samples.size()});
  const std::string header = layout->RenderHeader(identity, extras).value();
  std::vector<std::byte> image(header.size() + tensor_bytes + samples.size());
  if (!samples.empty()) {
    std::memcpy(image.data() + header.size() + tensor_bytes, samples.data(), samples.size());
  }
  std::memcpy(image.data(), header.data(), header.size());
  // splitmix64 of position and version: each byte depends on both.
  uint64_t state = identity.version.incarnation.value * 1'000'003 + identity.version.step.value +
                   identity.rank.value * 7919;
  for (uint64_t i = 0; i < tensor_bytes; ++i) {
    if (i % 8 == 0) {
      state += 0x9e3779b97f4a7c15;
    }
    uint64_t z = (state ^ (state >> 30)) * 0xbf58476d1ce4e5b9;
    image[header.size() + i] = static_cast<std::byte>((z >> (8 * (i % 8))) & 0xff);
  }
  return image;
}

// ---- the coordinator ----

void FakeCoordinator::SetHandler(DirectiveHandler* handler) {
  MutexLock lock(mutex_);
  handler_ = handler;
  if (handler_ == nullptr) return;
  for (const auto& [name, state] : jobs_) Send(state);
}

void FakeCoordinator::Send(const JobState& state) {
  if (handler_ != nullptr && reachable_) handler_->OnJobState(state);
}

void FakeCoordinator::Report(StoredReplica report) {
  MutexLock lock(mutex_);
  const Place place{report.identity.key(), report.tier};
  removed_.erase(place);
  replicas_[place] = report;
  TryCommit(report);
}

void FakeCoordinator::TryCommit(const StoredReplica& report) {
  if (!commits_) return;
  JobState& state = jobs_[report.identity.job];
  state.job = report.identity.job;
  for (uint32_t rank = 0; rank < report.identity.world; ++rank) {
    const ShardKey key{report.identity.job, report.identity.version, Rank{rank}};
    if (!replicas_.contains({key, report.tier})) return;
  }
  auto& committed = state.committed[report.tier];
  if (committed && *committed >= report.identity.version) return;
  committed = report.identity.version;
  if (report.tier == Tier::kDisk)
    state.target_step[Tier::kDisk].value = report.identity.version.step.value + 1;
  Send(state);
}

void FakeCoordinator::Report(FailedReplica failed) {
  MutexLock lock(mutex_);
  failed_[{failed.key, failed.tier}] = failed;
  // A step that was not saved at all may be saved again.
  if (failed.tier != Tier::kDisk || failed_.contains({failed.key, Tier::kMemory})) return;
  JobState& state = jobs_[failed.key.job];
  state.target_step[Tier::kDisk].value =
      std::max(state.target_step[Tier::kDisk].value, failed.key.version.step.value + 1);
  Send(state);
}

void FakeCoordinator::Report(RemovedReplica removed) {
  MutexLock lock(mutex_);
  replicas_.erase({removed.key, removed.tier});
  removed_.insert({removed.key, removed.tier});
}

void FakeCoordinator::Report(Prepared prepared) {
  MutexLock lock(mutex_);
  prepared_[prepared.request] = prepared.outcome;
}

void FakeCoordinator::SetWarnings(std::vector<std::string> warnings) {
  MutexLock lock(mutex_);
  warnings_ = std::move(warnings);
}

void FakeCoordinator::Report(TierWanted wanted) {
  MutexLock lock(mutex_);
  wanted_.push_back(std::move(wanted));
}

void FakeCoordinator::SetRanks(std::vector<LocalRank> ranks) {
  MutexLock lock(mutex_);
  ranks_ = std::move(ranks);
}

void FakeCoordinator::UpdateJob(const std::string& job,
                                const std::function<void(JobState&)>& change) {
  MutexLock lock(mutex_);
  JobState& state = jobs_[job];
  state.job = job;
  change(state);
  Send(state);
}

std::vector<LocalRank> FakeCoordinator::ranks() {
  MutexLock lock(mutex_);
  return ranks_;
}

std::vector<TierWanted> FakeCoordinator::wanted() {
  MutexLock lock(mutex_);
  return wanted_;
}

std::vector<JoinRequest> FakeCoordinator::joins() {
  MutexLock lock(mutex_);
  return joins_;
}

void FakeCoordinator::Join(const JoinRequest& request,
                           std::function<void(Result<Incarnation>)> done) {
  Result<Incarnation> answer = Incarnation{};
  {
    MutexLock lock(mutex_);
    if (!reachable_) {
      answer = Fail(UnavailableError("the coordinator cannot be reached"));
    } else {
      joins_.push_back(request);
      JobState& state = jobs_[request.job];
      state.job = request.job;
      if (run_ids_[request.job] != request.run_id) {
        run_ids_[request.job] = request.run_id;
        ++state.incarnation.value;
        state.restore.reset();
        state.target_step[Tier::kDisk] = Step{0};
      }
      answer = state.incarnation;
      Send(state);
    }
  }
  done(answer);
}

void FakeCoordinator::DecideRestore(const RestoreRequest& /*request*/,
                                    std::function<void(Result<RestoreDecision>)> done) {
  Result<RestoreDecision> answer = RestoreDecision{};
  {
    MutexLock lock(mutex_);
    if (!reachable_) {
      answer = Fail(UnavailableError("the coordinator cannot be reached"));
    } else if (decision_) {
      answer = *decision_;
    } else {
      answer = Fail(NotFoundError("no restorable version"));
    }
  }
  done(answer);
}

void FakeCoordinator::FindPlaces(const std::string& job, VersionId version,
                                 std::function<void(Result<VersionPlaces>)> done) {
  VersionPlaces places;
  {
    MutexLock lock(mutex_);
    ++place_requests_;
    for (const auto& [place, report] : replicas_) {
      const ShardIdentity& identity = report.identity;
      if (identity.job != job || identity.version != version) continue;
      places.shards.resize(identity.world);
      VersionPlaces::Shard& shard = places.shards[identity.rank.value];
      shard.digest = report.digest;
      shard.places.push_back({"node-0", "node-0", report.tier});
    }
  }
  done(places);
}

uint64_t FakeCoordinator::place_requests() {
  MutexLock lock(mutex_);
  return place_requests_;
}

void FakeCoordinator::SetReachable(bool reachable) {
  MutexLock lock(mutex_);
  reachable_ = reachable;
}

void FakeCoordinator::SetDecision(std::optional<RestoreDecision> decision) {
  MutexLock lock(mutex_);
  decision_ = decision;
}

void FakeCoordinator::SetAborted(VersionId version) {
  MutexLock lock(mutex_);
  for (auto& [name, state] : jobs_) {
    state.aborted.push_back(version);
    Send(state);
  }
}

void FakeCoordinator::SetDiskTarget(Step step) {
  MutexLock lock(mutex_);
  for (auto& [name, state] : jobs_) {
    state.target_step[Tier::kDisk] = step;
    Send(state);
  }
}

void FakeCoordinator::SetCommits(bool on) {
  MutexLock lock(mutex_);
  commits_ = on;
  if (!on) return;
  const std::map<Place, StoredReplica> replicas = replicas_;
  for (const auto& [place, report] : replicas) TryCommit(report);
}

void FakeCoordinator::Broadcast(const std::string& job) {
  MutexLock lock(mutex_);
  Send(jobs_[job]);
}

uint64_t FakeCoordinator::Prepare(PrepareShard prepare) {
  MutexLock lock(mutex_);
  const uint64_t request = next_request_++;
  prepare.request = request;
  handler_->OnPrepareShard(prepare);
  return request;
}

void FakeCoordinator::Forget(Tier tier) {
  MutexLock lock(mutex_);
  std::erase_if(replicas_, [tier](const auto& entry) { return entry.first.second == tier; });
}

JobState FakeCoordinator::state(const std::string& job) {
  MutexLock lock(mutex_);
  return jobs_[job];
}

bool FakeCoordinator::Holds(const ShardKey& key, Tier tier) {
  return report(key, tier).has_value();
}

std::optional<StoredReplica> FakeCoordinator::report(const ShardKey& key, Tier tier) {
  MutexLock lock(mutex_);
  auto found = replicas_.find({key, tier});
  return found == replicas_.end() ? std::nullopt : std::optional(found->second);
}

std::optional<FailedReplica> FakeCoordinator::failed(const ShardKey& key, Tier tier) {
  MutexLock lock(mutex_);
  auto found = failed_.find({key, tier});
  return found == failed_.end() ? std::nullopt : std::optional(found->second);
}

bool FakeCoordinator::WasRemoved(const ShardKey& key, Tier tier) {
  MutexLock lock(mutex_);
  return removed_.contains({key, tier});
}

std::optional<Status> FakeCoordinator::prepared(uint64_t request) {
  MutexLock lock(mutex_);
  auto found = prepared_.find(request);
  return found == prepared_.end() ? std::nullopt : std::optional(found->second);
}

std::vector<std::string> FakeCoordinator::warnings() {
  MutexLock lock(mutex_);
  return warnings_;
}

// ---- other nodes ----

namespace {
class BytesStream : public PeerStream {
 public:
  explicit BytesStream(std::span<const std::byte> bytes) : bytes_(bytes.begin(), bytes.end()) {}
  Result<size_t> Read(std::span<std::byte> into, Clock::TimePoint /*deadline*/) override {
    const size_t got = std::min({into.size(), bytes_.size() - at_, size_t{kPeerUnitBytes}});
    std::copy_n(bytes_.begin() + static_cast<ptrdiff_t>(at_), got, into.begin());
    at_ += got;
    return got;
  }
  void Cancel() override {}

 private:
  const std::vector<std::byte> bytes_;
  size_t at_ = 0;
};
}  // namespace

void FakePeer::Serve(const ShardIdentity& identity, std::vector<std::byte> bytes) {
  image = std::move(bytes);
  seal = {};
  seal.identity = identity;
  seal.image_bytes = image.size();
  seal.chunk_crcs = ChunkCrcs(image);
}

std::vector<PeerRequest> FakePeer::Requests() {
  MutexLock lock(mutex_);
  return requests_;
}

Result<std::unique_ptr<PeerStream>> FakePeer::Open(const std::string& address,
                                                   const PeerRequest& request,
                                                   Clock::TimePoint /*deadline*/) {
  {
    MutexLock lock(mutex_);
    requests_.push_back(request);
  }
  if (image.empty()) return Fail(UnavailableError(address + " cannot be reached"));
  if (seal.identity.key() != ShardKey{request.job, request.version, request.rank}) {
    return Fail(NotFoundError("no such shard"));
  }
  const std::string record = EncodeSeal(seal);
  const auto object = request.kind == PeerRequestKind::kSeal ? std::as_bytes(std::span(record))
                                                             : std::span<const std::byte>(image);
  const auto rest = object.subspan(std::min<uint64_t>(request.offset, object.size()));
  return std::make_unique<BytesStream>(rest.first(std::min<uint64_t>(request.bytes, rest.size())));
}

// ---- the trainer ----

Result<TestTrainer> TestTrainer::ConnectSilently(const std::string& socket) {
  TestTrainer trainer;
  HOLDFAST_ASSIGN_OR_RETURN(trainer.socket_, ConnectUnix(socket));
  return trainer;
}

Result<TestTrainer> TestTrainer::Connect(const std::string& socket, const Options& options) {
  HOLDFAST_ASSIGN_OR_RETURN(TestTrainer trainer, ConnectSilently(socket));
  trainer.options_ = options;
  HelloMessage hello;
  hello.protocol = options.protocol;
  hello.rank = options.rank;
  hello.world = options.world;
  hello.slots = options.slots;
  hello.slot_bytes = options.slot_bytes;
  PutText(hello.job, options.job);
  PutText(hello.run_id, options.run_id);
  HOLDFAST_RETURN_IF_ERROR(trainer.SendRaw(hello));
  ReceivedPacket packet;
  MessageHeader header{};
  do {  // while memory is being reserved, progress notices come first
    HOLDFAST_ASSIGN_OR_RETURN(
        packet, AwaitPacket(trainer.socket_.get(), kMessageBytesMax, 20'000, Clock::Real()));
    HOLDFAST_ASSIGN_OR_RETURN(header, CheckPacket(packet.bytes));
  } while (header.type == MessageType::kNotice);
  if (header.type == MessageType::kReply) {
    ReplyMessage reply;
    std::memcpy(&reply, packet.bytes.data(), sizeof(reply));
    return Fail(Status(ErrorFromNumber(reply.code), GetText(reply.text)));
  }
  if (header.type != MessageType::kWelcome || packet.fds.size() != 1) {
    return Fail(InternalError("expected a Welcome with one descriptor"));
  }
  std::memcpy(&trainer.welcome_, packet.bytes.data(), sizeof(trainer.welcome_));
  trainer.memory_fd_ = std::move(packet.fds[0]);
  void* memory = ::mmap(nullptr, trainer.welcome_.segment_bytes, PROT_READ | PROT_WRITE, MAP_SHARED,
                        trainer.memory_fd_.get(), 0);
  if (memory == MAP_FAILED) return Fail(ErrnoStatus(errno, "mmap"));
  trainer.memory_ = static_cast<std::byte*>(memory);
  return trainer;
}

TestTrainer::~TestTrainer() {
  // A moved-from trainer has no descriptor.
  if (memory_fd_.valid()) ::munmap(memory_, welcome_.segment_bytes);
}

ShardIdentity TestTrainer::Identity(uint64_t step) const {
  return {options_.job, Version(step), Rank{options_.rank}, options_.world};
}

std::span<std::byte> TestTrainer::slot(uint32_t index) {
  return {memory_ + welcome_.control_bytes + index * welcome_.slot_bytes, welcome_.slot_bytes};
}

SlotProgress& TestTrainer::progress(uint32_t index) {
  return reinterpret_cast<SegmentControl*>(memory_)->slots[index];
}

Result<std::vector<std::byte>> TestTrainer::Receive(int timeout_ms) {
  HOLDFAST_ASSIGN_OR_RETURN(ReceivedPacket packet, AwaitPacket(socket_.get(), kMessageBytesMax,
                                                               timeout_ms, Clock::Real()));
  if (packet.bytes.empty()) return Fail(UnavailableError("the agent closed the connection"));
  HOLDFAST_ASSIGN_OR_RETURN(const MessageHeader header, CheckPacket(packet.bytes));
  if (!packet.fds.empty()) last_fd_ = std::move(packet.fds[0]);
  if (header.type == MessageType::kNotice) {
    NoticeMessage notice;
    std::memcpy(&notice, packet.bytes.data(), sizeof(notice));
    notices_.push_back(notice);
  } else if (header.type == MessageType::kReply) {
    ReplyMessage reply;
    std::memcpy(&reply, packet.bytes.data(), sizeof(reply));
    replies_[header.ticket] = reply;
  }
  return std::move(packet.bytes);
}

Result<ReplyMessage> TestTrainer::AwaitReply(uint64_t ticket, int timeout_ms) {
  while (!replies_.contains(ticket))
    HOLDFAST_RETURN_IF_ERROR([&] {
      auto got = Receive(timeout_ms);
      return got ? Status::Ok() : got.error();
    }());
  ReplyMessage reply = replies_.at(ticket);
  replies_.erase(ticket);
  return reply;
}

Result<NoticeMessage> TestTrainer::AwaitNotice(NoticeKind kind, uint64_t step, Tier tier,
                                               int timeout_ms) {
  for (size_t i = 0;;) {
    for (; i < notices_.size(); ++i) {
      const NoticeMessage& notice = notices_[i];
      if (notice.kind == kind && notice.step == step &&
          notice.tier == static_cast<uint32_t>(tier)) {
        return notice;
      }
    }
    auto got = Receive(timeout_ms);
    if (!got) return Fail(got.error());
  }
}

Result<ReplyMessage> TestTrainer::BeginSave(uint64_t step, uint64_t image_bytes, int wait_ms,
                                            bool skipping) {
  BeginSaveMessage message;
  message.header.ticket = next_ticket_++;
  message.step = step;
  message.image_bytes = image_bytes;
  message.wait = wait_ms > 0 ? 1 : 0;
  message.wait_ms = static_cast<uint32_t>(wait_ms);
  message.skipping = skipping ? 1 : 0;
  HOLDFAST_RETURN_IF_ERROR(SendRaw(message));
  return AwaitReply(message.header.ticket);
}

void TestTrainer::Copy(uint32_t slot_index, std::span<const std::byte> image, uint64_t up_to) {
  const uint64_t from = progress(slot_index).copied.load();
  std::memcpy(slot(slot_index).data() + from, image.data() + from, up_to - from);
  PublishProgress(progress(slot_index), up_to);
}

Status TestTrainer::EndSave(uint32_t slot_index, uint64_t step, MessageType type) {
  EndSaveMessage message;
  message.header.type = type;
  message.slot = slot_index;
  message.step = step;
  return SendRaw(message);
}

Result<uint32_t> TestTrainer::Save(uint64_t step, uint64_t tensor_bytes, int wait_ms) {
  const std::vector<std::byte> image = MakeImage(Identity(step), tensor_bytes);
  HOLDFAST_ASSIGN_OR_RETURN(const ReplyMessage reply, BeginSave(step, image.size(), wait_ms));
  if (reply.code != 0) return Fail(Status(ErrorFromNumber(reply.code), GetText(reply.text)));
  for (uint64_t done = 0; done < image.size();) {
    done = std::min<uint64_t>(image.size(), done + 300'000);
    Copy(reply.slot, image, done);
  }
  HOLDFAST_RETURN_IF_ERROR(EndSave(reply.slot, step));
  return reply.slot;
}

Result<ReplyMessage> TestTrainer::OpenReader(UniqueFd* memory, MessageType type) {
  FindRestoreMessage message;
  message.header.type = type;
  message.header.ticket = next_ticket_++;
  message.timeout_ms = 10'000;
  HOLDFAST_RETURN_IF_ERROR(SendRaw(message));
  auto reply = AwaitReply(message.header.ticket);
  *memory = std::move(last_fd_);
  return reply;
}

Result<ReplyMessage> TestTrainer::ReadIndex(uint32_t reader, UniqueFd* index) {
  CloseReaderMessage message;
  message.header.type = MessageType::kReadIndex;
  message.header.ticket = next_ticket_++;
  message.reader = reader;
  HOLDFAST_RETURN_IF_ERROR(SendRaw(message));
  auto reply = AwaitReply(message.header.ticket);
  *index = std::move(last_fd_);
  return reply;
}

Result<ReplyMessage> TestTrainer::ReadRange(const ReadRangeMessage& message) {
  ReadRangeMessage read = message;
  read.header.ticket = next_ticket_++;
  HOLDFAST_RETURN_IF_ERROR(SendRaw(read));
  return AwaitReply(read.header.ticket);
}

Result<ReplyMessage> TestTrainer::FindRestore(VersionId wanted, uint64_t timeout_ms) {
  FindRestoreMessage message;
  message.header.ticket = next_ticket_++;
  message.wanted_incarnation = wanted.incarnation.value;
  message.wanted_step = wanted.step.value;
  message.timeout_ms = timeout_ms;
  HOLDFAST_RETURN_IF_ERROR(SendRaw(message));
  return AwaitReply(message.header.ticket);
}

bool TestTrainer::AwaitClosed(int timeout_ms) {
  for (;;) {
    auto got = Receive(timeout_ms);
    if (!got) return got.error().code() == ErrorCode::kUnavailable;
  }
}

// ---- the node ----

TestNode::TestNode(const TestNodeOptions& options) : options_(options), dir_(MakeTempDir()) {}

TestNode::~TestNode() {
  Stop();
  KillKeeper();
  RemoveTree(dir_);
}

void TestNode::KillKeeper() { KillKeeperIn(dir_); }

void KillKeeperIn(const std::string& run_dir) {
  auto keeper = KeeperClient::Connect(run_dir, Clock::Real());
  if (!keeper) return;
  auto usage = keeper->Usage();
  if (!usage || usage->pid <= 1) return;
  auto pid_fd = PidFdOf(usage->pid);
  if (!pid_fd) return;
  ::kill(usage->pid, SIGKILL);
  Eventually([&] { return ProcessGone(pid_fd->get()); });
}

Status TestNode::Start() {
  std::vector<std::unique_ptr<Directory>> dirs;
  if (options_.simulated_disk) {
    dirs.push_back(disk.Open("data"));
  } else {
    HOLDFAST_ASSIGN_OR_RETURN(auto dir, OpenDirectory(data_dir(), {}));
    dirs.push_back(std::move(dir));
  }
  HOLDFAST_ASSIGN_OR_RETURN(volume,
                            Volume::Open(std::move(dirs), {"test", "node-0", {}}, Clock::Real()));
  ArenaOptions arena_options;
  arena_options.budget_bytes = options_.arena_bytes;
  arena_options.run_dir = dir_;
  const char* bin = ::getenv("HOLDFAST_BIN_DIR");
  arena_options.keeper_binary = std::string(bin != nullptr ? bin : ".") + "/holdfast-keeper";
  HOLDFAST_ASSIGN_OR_RETURN(arena, Arena::Open(arena_options, Clock::Real()));
  NodeOptions node_options;
  node_options.node = "node-0";
  node_options.trainers_file = dir_ + "/trainers";
  node_options.disk_every_steps = options_.disk_every_steps;
  node_options.prepare_wait_ms = options_.prepare_wait_ms;
  node_options.scrub = options_.scrub;
  node_options.shared_tiers = options_.shared_tiers;
  node_options.before_reserve = options_.before_reserve;
  node = std::make_unique<Node>(node_options, *arena, *volume, coordinator, peers, Clock::Real());
  node->Adopt();
  HOLDFAST_ASSIGN_OR_RETURN(UniqueFd listener, ListenUnix(socket(), 0666, Clock::Real()));
  HOLDFAST_RETURN_IF_ERROR(node->Serve(std::move(listener)));
  if (!node->AwaitAdopted(20'000)) return DeadlineExceededError("adoption");
  coordinator.SetHandler(node.get());
  return Status::Ok();
}

void TestNode::Stop() {
  coordinator.SetHandler(nullptr);
  node.reset();
  arena.reset();
  volume.reset();
}

std::vector<std::string> TestNode::DataFiles() const {
  std::vector<std::string> files;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(data_dir())) {
    if (entry.is_regular_file()) files.push_back(entry.path().string());
  }
  return files;
}

}  // namespace holdfast::agent
