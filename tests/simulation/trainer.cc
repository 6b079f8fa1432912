#include "tests/simulation/trainer.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstring>

#include "agent/api/version_listing.h"
#include "base/poll.h"
#include "storage/format/image.h"
#include "tests/simulation/node_host.h"

namespace holdfast::simulation {
namespace {
using agent::MessageHeader;
using agent::MessageType;
using agent::NoticeMessage;
using agent::ReplyMessage;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr int kTurnMs = 20;  // how late a killed trainer ends
constexpr uint32_t kSlots = 3;

/// The first bytes of the tensor identify the save; all others follow from them.
struct Stamp {
  uint64_t run = 0;
  uint64_t incarnation = 0;
  uint64_t step = 0;
  uint64_t rank = 0;
};

void FillTensor(std::span<std::byte> bytes, const std::string& job, const Stamp& stamp) {
  std::memcpy(bytes.data(), &stamp, sizeof(stamp));
  Random random(std::hash<std::string>()(job) ^ (stamp.run * 1'000'003 + stamp.incarnation) ^
                (stamp.step << 32) ^ (stamp.rank * 7919));
  for (size_t at = sizeof(stamp); at < bytes.size(); at += 8) {
    const uint64_t word = random.Next();
    std::memcpy(bytes.data() + at, &word, std::min<size_t>(8, bytes.size() - at));
  }
}
}  // namespace

std::vector<std::byte> MakeImage(const ShardIdentity& identity, uint64_t run,
                                 uint64_t tensor_bytes) {
  TensorSpec spec;
  spec.name = "weights";
  spec.shape = spec.global_shape = {tensor_bytes};
  spec.offset = {0};
  const auto layout = ImageLayout::Plan({spec});
  const std::string header = layout->RenderHeader(identity, {}).value();
  std::vector<std::byte> image(header.size() + tensor_bytes);
  std::memcpy(image.data(), header.data(), header.size());
  FillTensor(
      std::span(image).subspan(header.size()), identity.job,
      {run, identity.version.incarnation.value, identity.version.step.value, identity.rank.value});
  return image;
}

std::optional<uint64_t> RunOfImage(std::span<const std::byte> image, const ShardKey& expected) {
  const auto parsed = ParseImage(image, image.size());
  if (!parsed || parsed->identity.key() != expected) return std::nullopt;
  const auto tensor = image.subspan(parsed->data_offset);
  Stamp stamp;
  if (tensor.size() < sizeof(stamp)) return std::nullopt;
  std::memcpy(&stamp, tensor.data(), sizeof(stamp));
  const std::vector<std::byte> saved = MakeImage(parsed->identity, stamp.run, tensor.size());
  if (!std::equal(image.begin(), image.end(), saved.begin(), saved.end())) return std::nullopt;
  return stamp.run;
}

Trainer::Trainer(World& world, std::shared_ptr<Run> run, NodeHost& host, uint32_t rank)
    : world_(world),
      run_(std::move(run)),
      host_(host),
      rank_(rank),
      process_{fmt::format("{}/{}/rank-{}", run_->job, run_->number, rank)},
      pid_(world.processes.Start()) {}

Trainer::~Trainer() { Unmap(); }

void Trainer::Unmap() {
  if (!memory_.empty()) ::munmap(memory_.data(), memory_.size());
  memory_ = {};
}

void Trainer::Start() {
  host_.trainers().insert(this);
  world_.scheduler.Spawn(process_, [this] {
    Main();
    socket_.Reset();
    Unmap();
    if (!killed_) {
      world_.processes.End(pid_);
      host_.trainers().erase(this);
    }
    ended_ = true;
    ++run_->ended;
    WakePolls();
  });
}

void Trainer::Kill() {
  if (killed_ || ended_) return;
  killed_ = true;
  process_.paused_until = {};
  Disconnect();
  world_.processes.End(pid_);
  host_.trainers().erase(this);
}

void Trainer::Disconnect() {
  if (socket_.valid()) ::shutdown(socket_.get(), SHUT_RDWR);
  WakePolls();
}

void Trainer::Sleep(uint64_t us_max) {
  world_.clock.SleepFor(std::chrono::microseconds(1 + world_.random.Below(us_max)));
}

void Trainer::Main() {
  Sleep(50'000);
  if (!Join() || !Restore()) return;
  ++run_->restored;
  for (uint64_t step = base_step_ + 1; step <= base_step_ + run_->steps; ++step) {
    Sleep(step < base_step_ + 40 ? 20'000 : 1'000'000);
    if (!AwaitOthers(step)) return;
    if (step % run_->save_every == 0) Save(step);
    ReadNotices();
    if (Gone() || fenced_) return;
    if (!socket_.valid() && !Join()) return;
  }
  MessageHeader goodbye{.type = MessageType::kGoodbye};
  std::ignore = SendMessage(goodbye);
  Sleep(5'000);
}

bool Trainer::AwaitOthers(uint64_t step) {
  if (++run_->arrived[step] == run_->world) world_.scheduler.Wake(&run_->arrived[step], true);
  while (run_->arrived[step] < run_->world) {
    if (Gone()) return false;
    world_.scheduler.Wait(&run_->arrived[step], world_.scheduler.Now() + milliseconds(kTurnMs));
  }
  return !Gone();
}

// ---- packets ----

Status Trainer::Send(std::span<const std::byte> packet) {
  if (killed_) return CancelledError("killed");
  if (!socket_.valid()) return UnavailableError("not connected");
  const Status sent = agent::SendPacket(socket_.get(), packet);
  if (!sent.ok()) socket_.Reset();
  return sent;
}

Result<std::vector<std::byte>> Trainer::Receive(int timeout_ms, UniqueFd* fd) {
  if (killed_) return Fail(CancelledError("killed"));
  if (!socket_.valid()) return Fail(UnavailableError("not connected"));
  auto packet =
      agent::AwaitPacket(socket_.get(), agent::kMessageBytesMax, timeout_ms, world_.clock);
  if (killed_) return Fail(CancelledError("killed"));
  if (!packet && packet.error().code() == ErrorCode::kDeadlineExceeded) {
    return Fail(packet.error());
  }
  if (!packet || packet->bytes.empty()) {
    socket_.Reset();
    return Fail(UnavailableError("the agent closed the connection"));
  }
  if (fd != nullptr && !packet->fds.empty()) *fd = std::move(packet->fds[0]);
  const auto header = agent::CheckPacket(packet->bytes);
  if (!header) return Fail(header.error());
  if (header->type == MessageType::kNotice) {
    NoticeMessage notice;
    std::memcpy(&notice, packet->bytes.data(), sizeof(notice));
    const VersionId version{Incarnation{notice.incarnation}, Step{notice.step}};
    // After a restore of an older version, the newest one of earlier starts is another.
    const bool own = notice.incarnation == incarnation_;
    if (own && notice.kind == agent::NoticeKind::kCommitted) {
      world_.checker.OnNotified(pid_, version, static_cast<Tier>(notice.tier));
    }
    if (notice.kind == agent::NoticeKind::kFenced) fenced_ = true;
  }
  return std::move(packet->bytes);
}

void Trainer::ReadNotices() {
  while (Receive(0)) {
  }
}

Result<ReplyMessage> Trainer::AwaitReply(uint64_t ticket, Clock::Duration timeout, UniqueFd* fd) {
  const auto deadline = world_.scheduler.Now() + timeout;
  for (;;) {
    if (Gone()) return Fail(CancelledError("the run is over"));
    auto packet = Receive(kTurnMs, fd);
    if (!packet && packet.error().code() != ErrorCode::kDeadlineExceeded) {
      return Fail(packet.error());
    }
    if (packet) {
      const auto header = agent::CheckPacket(*packet);
      if (header->type == MessageType::kReply && header->ticket == ticket) {
        ReplyMessage reply;
        std::memcpy(&reply, packet->data(), sizeof(reply));
        return reply;
      }
    }
    if (world_.scheduler.Now() >= deadline) return Fail(DeadlineExceededError("no reply"));
  }
}

// ---- join ----

bool Trainer::Join() {
  for (;;) {
    if (Gone()) return false;
    const Status joined = TryJoin();
    if (joined.ok()) return true;
    socket_.Reset();
    if (joined.code() == ErrorCode::kFenced) fenced_ = true;
    if (fenced_) return false;
    Sleep(200'000);
  }
}

Status Trainer::TryJoin() {
  if (!host_.up()) return UnavailableError("no agent");
  HOLDFAST_ASSIGN_OR_RETURN(socket_, world_.processes.Connect(pid_, host_.life()->socket));
  agent::HelloMessage hello;
  hello.rank = rank_;
  hello.world = run_->world;
  hello.slots = kSlots;
  hello.slot_bytes = run_->tensor_bytes + 16'384;
  agent::PutText(hello.job, run_->job);
  agent::PutText(hello.run_id, run_->id);
  hello.SetJoinedBefore(incarnation_);
  HOLDFAST_RETURN_IF_ERROR(SendMessage(hello));
  UniqueFd fd;
  for (const auto deadline = world_.scheduler.Now() + seconds(20);;) {
    if (Gone()) return CancelledError("the run is over");
    if (world_.scheduler.Now() >= deadline) return DeadlineExceededError("no Welcome");
    const auto packet = Receive(kTurnMs, &fd);
    if (!packet && packet.error().code() == ErrorCode::kDeadlineExceeded) continue;
    if (!packet) return packet.error();
    const auto type = agent::CheckPacket(*packet)->type;
    if (type == MessageType::kReply) {
      ReplyMessage reply;
      std::memcpy(&reply, packet->data(), sizeof(reply));
      return {ErrorFromNumber(reply.code), agent::GetText(reply.text)};
    }
    if (type != MessageType::kWelcome) continue;
    std::memcpy(&welcome_, packet->data(), sizeof(welcome_));
    break;
  }
  Unmap();
  void* at =
      ::mmap(nullptr, welcome_.segment_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  if (at == MAP_FAILED) return ErrnoStatus(errno, "mmap");
  memory_ = {static_cast<std::byte*>(at), welcome_.segment_bytes};
  if (incarnation_ != 0 && incarnation_ != welcome_.incarnation) {
    return FencedError("the run has another incarnation now");
  }
  incarnation_ = welcome_.incarnation;
  world_.checker.OnJoined(run_->job, run_->number, Incarnation{incarnation_});
  return Status::Ok();
}

// ---- restore ----

bool Trainer::Restore() {
  bool reshards = run_->reshards;
  for (;;) {
    if (Gone() || fenced_) return false;
    if (!socket_.valid() && !Join()) return false;
    bool fresh = false;
    life_ = world_.checker.store_life();
    const Status restored = reshards ? TryReshard(&fresh) : TryRestore(&fresh);
    if (fresh) {
      world_.checker.OnRestored(run_->job, run_->number, life_, rank_, std::nullopt, std::nullopt);
      return true;
    }
    if (restored.ok()) return true;
    if (restored.code() == ErrorCode::kFenced) return false;
    if (restored.code() == ErrorCode::kFailedPrecondition) {
      ++run_->refusals;
    }
    run_->refusal = restored.ToString();
    // A version of another world can only be resharded.
    if (restored.code() == ErrorCode::kFailedPrecondition ||
        restored.code() == ErrorCode::kInvalidArgument) {
      reshards = true;
    }
    Sleep(300'000);
  }
}

Status Trainer::TryRestore(bool* fresh) {
  agent::FindRestoreMessage message;
  message.header.ticket = next_ticket_++;
  message.timeout_ms = 20'000;
  HOLDFAST_RETURN_IF_ERROR(SendMessage(message));
  HOLDFAST_ASSIGN_OR_RETURN(const ReplyMessage reply,
                            AwaitReply(message.header.ticket, seconds(60)));
  *fresh = reply.code == static_cast<uint32_t>(ErrorCode::kNotFound);
  if (*fresh) return Status::Ok();
  if (reply.code != 0) return {ErrorFromNumber(reply.code), agent::GetText(reply.text)};
  const VersionId version{Incarnation{reply.incarnation}, Step{reply.step}};
  Sleep(3'000);  // the copy to the GPU takes time
  const auto image =
      memory_.subspan(welcome_.control_bytes + reply.slot * welcome_.slot_bytes, reply.image_bytes);
  const auto run = RunOfImage(image, {run_->job, version, Rank{rank_}});
  if (killed_ || !socket_.valid()) return UnavailableError("not connected");
  if (!run) {
    // Only the agent that answered protects the slot.
    ReadNotices();
    if (!socket_.valid()) return UnavailableError("the agent has ended");
    world_.checker.Fail(fmt::format("{}: rank {} of run {} got wrong bytes of {}", run_->job, rank_,
                                    run_->number, ToString(version)));
    return DataLossError("wrong bytes");
  }
  world_.checker.OnRestored(run_->job, run_->number, life_, rank_, version, run);
  base_step_ = version.step.value;
  agent::EndSaveMessage end;
  end.header.type = MessageType::kEndRestore;
  end.slot = reply.slot;
  end.step = reply.step;
  std::ignore = SendMessage(end);
  return Status::Ok();
}

Status Trainer::TryReshard(bool* fresh) {
  agent::FindRestoreMessage message;
  message.header.type = MessageType::kOpenReader;
  message.header.ticket = next_ticket_++;
  message.timeout_ms = 20'000;
  HOLDFAST_RETURN_IF_ERROR(SendMessage(message));
  UniqueFd fd;
  HOLDFAST_ASSIGN_OR_RETURN(const ReplyMessage reply,
                            AwaitReply(message.header.ticket, seconds(60), &fd));
  *fresh = reply.code == static_cast<uint32_t>(ErrorCode::kNotFound);
  if (*fresh) return Status::Ok();
  if (reply.code != 0) return {ErrorFromNumber(reply.code), agent::GetText(reply.text)};
  const Status read = ReadAllShards(reply, std::move(fd));
  agent::CloseReaderMessage close;
  close.reader = reply.slot;
  std::ignore = SendMessage(close);
  return read;
}

Status Trainer::ReadAllShards(const ReplyMessage& opened, UniqueFd memory) {
  const VersionId version{Incarnation{opened.incarnation}, Step{opened.step}};
  const uint64_t bytes = agent::kReadWindowBytes + opened.image_bytes;
  void* at = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, memory.get(), 0);
  if (at == MAP_FAILED) return ErrnoStatus(errno, "mmap of a reader");
  const std::span<std::byte> window{static_cast<std::byte*>(at), bytes};
  const auto read = [&]() -> Status {
    HOLDFAST_ASSIGN_OR_RETURN(const auto listing,
                              agent::ParseListing(window.subspan(agent::kReadWindowBytes)));
    std::optional<uint64_t> saved_by;
    for (const agent::ListedShard& shard : listing) {
      agent::ReadRangeMessage message;
      message.header.ticket = next_ticket_++;
      message.reader = opened.slot;
      message.rank = shard.rank;
      message.bytes = shard.image_bytes;
      HOLDFAST_RETURN_IF_ERROR(SendMessage(message));
      HOLDFAST_ASSIGN_OR_RETURN(const ReplyMessage reply,
                                AwaitReply(message.header.ticket, seconds(90)));
      if (reply.code != 0) return {ErrorFromNumber(reply.code), agent::GetText(reply.text)};
      const auto run =
          RunOfImage(window.first(shard.image_bytes), {run_->job, version, Rank{shard.rank}});
      if (!run || (saved_by && saved_by != run)) {
        world_.checker.Fail(fmt::format("{}: run {} read wrong bytes of rank {} of {}", run_->job,
                                        run_->number, shard.rank, ToString(version)));
        return DataLossError("wrong bytes");
      }
      saved_by = run;
    }
    world_.checker.OnRestored(run_->job, run_->number, life_, rank_, version, saved_by);
    base_step_ = version.step.value;
    return Status::Ok();
  };
  const Status status = read();
  ::munmap(at, bytes);
  return status;
}

// ---- save ----

void Trainer::Save(uint64_t step) {
  const VersionId version{Incarnation{incarnation_}, Step{step}};
  const std::vector<std::byte> image =
      MakeImage({run_->job, version, Rank{rank_}, run_->world}, run_->number, run_->tensor_bytes);
  agent::BeginSaveMessage begin;
  begin.header.ticket = next_ticket_++;
  begin.step = step;
  begin.image_bytes = image.size();
  const bool waits = !world_.random.OneIn(4);
  begin.wait = waits ? 1 : 0;
  begin.wait_ms = waits ? static_cast<uint32_t>(100 + world_.random.Below(2'000)) : 0;
  begin.skipping = 1;
  if (!SendMessage(begin).ok()) return;
  const auto reply = AwaitReply(begin.header.ticket, seconds(20));
  if (!reply || reply->code != 0) return;
  agent::SlotProgress& progress =
      reinterpret_cast<agent::SegmentControl*>(memory_.data())->slots[reply->slot];
  const auto slot =
      memory_.subspan(welcome_.control_bytes + reply->slot * welcome_.slot_bytes, image.size());
  const bool abandons = world_.random.OneIn(40);
  for (uint64_t done = 0; done < image.size();) {
    Sleep(4'000);
    // After a hang-up the slot may have another user.
    if (Gone() || !socket_.valid()) return;
    ReadNotices();
    if (Gone() || !socket_.valid()) return;
    if (abandons && done != 0) break;
    const uint64_t piece = std::min<uint64_t>(image.size() - done, 1 + image.size() / 3);
    std::memcpy(slot.data() + done, image.data() + done, piece);
    done += piece;
    agent::PublishProgress(progress, done);
  }
  agent::EndSaveMessage end;
  end.header.type = abandons ? MessageType::kAbandonSave : MessageType::kEndSave;
  end.slot = reply->slot;
  end.step = step;
  std::ignore = SendMessage(end);
}

}  // namespace holdfast::simulation
