#include "tests/client/core/scripted_agent.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <functional>

namespace holdfast::client {
namespace {
template <typename Message>
Message As(std::span<const std::byte> bytes) {
  Message message;
  std::memcpy(&message, bytes.data(), sizeof message);
  return message;
}
}  // namespace

TestSegment::TestSegment(uint32_t slots, uint64_t slot_bytes, bool sealed)
    : fd_(::memfd_create("test-segment", MFD_CLOEXEC | MFD_ALLOW_SEALING)),
      slots_(slots),
      slot_bytes_(agent::RoundUp(slot_bytes, agent::kSlotAlign)) {
  EXPECT_EQ(::ftruncate(fd_.get(), static_cast<off_t>(bytes())), 0);
  int seals = sealed ? F_SEAL_SHRINK | F_SEAL_GROW : 0;
  EXPECT_EQ(::fcntl(fd_.get(), F_ADD_SEALS, seals), 0);
  void* base = ::mmap(nullptr, bytes(), PROT_READ | PROT_WRITE, MAP_SHARED, fd_.get(), 0);
  EXPECT_NE(base, MAP_FAILED);
  base_ = static_cast<std::byte*>(base);
}

TestSegment::~TestSegment() { ::munmap(base_, bytes()); }

void ScriptedAgent::Start() {
  stop_ = false;
  thread_ = std::thread([this] { Serve(); });
  for (int i = 0; i < 500 && ::access(path_.c_str(), F_OK) != 0; ++i) ::usleep(10'000);
}

void ScriptedAgent::Stop() {
  stop_ = true;
  if (thread_.joinable()) thread_.join();
  ::unlink(path_.c_str());
}

void ScriptedAgent::ForgetSegment() {
  std::lock_guard lock(mutex_);
  shown_segment_ = nullptr;
  segment_.reset();
}

void ScriptedAgent::Edit(const std::function<void(Script&)>& edit) {
  std::lock_guard lock(mutex_);
  edit(script_);
}

void ScriptedAgent::Send(const agent::NoticeMessage& notice) {
  std::lock_guard lock(mutex_);
  SendMessage(notice);
}

void ScriptedAgent::OfferRestore(VersionId version, const std::string& image, Tier tier) {
  std::lock_guard lock(mutex_);
  restore_version_ = version;
  restore_image_ = image;
  restore_tier_ = tier;
}

std::map<uint64_t, ScriptedAgent::SavedImage> ScriptedAgent::images() {
  std::lock_guard lock(mutex_);
  return images_;
}

std::string ScriptedAgent::image(uint64_t step) {
  std::lock_guard lock(mutex_);
  auto found = images_.find(step);
  return found == images_.end() ? "" : found->second.image;
}

std::vector<agent::MessageType> ScriptedAgent::received() {
  std::lock_guard lock(mutex_);
  return received_;
}

size_t ScriptedAgent::Count(agent::MessageType type) {
  size_t count = 0;
  for (agent::MessageType one : received()) count += one == type ? 1 : 0;
  return count;
}

agent::HelloMessage ScriptedAgent::hello() {
  std::lock_guard lock(mutex_);
  return hello_;
}

template <typename Message>
bool ScriptedAgent::SendMessage(const Message& message, std::span<const int> fds) {
  return connection_.valid() &&
         agent::SendPacket(connection_.get(), std::as_bytes(std::span(&message, 1)), fds).ok();
}

void ScriptedAgent::Serve() {
  auto listener = agent::ListenUnix(path_, 0600, Clock::Real());
  ASSERT_TRUE(listener) << listener.error().ToString();
  while (!stop_) {
    int fd = -1;
    {
      std::lock_guard lock(mutex_);
      auto accepted = agent::AcceptUnix(listener->get());
      if (accepted && accepted->has_value()) {
        connection_ = std::move(**accepted);
        leases_.clear();
        unanswered_.clear();
      }
      fd = connection_.get();
    }
    if (fd < 0) {
      ::usleep(1000);
      continue;
    }
    auto packet = agent::AwaitPacket(fd, agent::kMessageBytesMax, 1, Clock::Real());
    std::lock_guard lock(mutex_);
    while (!script_.silent && !unanswered_.empty()) {
      auto bytes = std::move(unanswered_.front());
      unanswered_.pop_front();
      if (!Handle(bytes)) connection_.Reset();
    }
    if (!packet) {
      if (packet.error().code() != ErrorCode::kDeadlineExceeded) connection_.Reset();
      continue;
    }
    if (packet->bytes.empty()) {
      connection_.Reset();
      continue;
    }
    auto header = agent::CheckPacket(packet->bytes);
    ASSERT_TRUE(header) << header.error().ToString();
    received_.push_back(header->type);
    if (script_.silent) {
      unanswered_.push_back(std::move(packet->bytes));
    } else if (!Handle(packet->bytes)) {
      connection_.Reset();
    }
  }
  std::lock_guard lock(mutex_);
  connection_.Reset();
}

bool ScriptedAgent::Handle(std::span<const std::byte> packet) {
  switch (agent::CheckPacket(packet)->type) {
    case agent::MessageType::kHello:
      return OnHello(As<agent::HelloMessage>(packet));
    case agent::MessageType::kBeginSave:
      return OnBegin(As<agent::BeginSaveMessage>(packet));
    case agent::MessageType::kEndSave:
      return OnEnd(As<agent::EndSaveMessage>(packet));
    case agent::MessageType::kAbandonSave:
      leases_.erase(As<agent::EndSaveMessage>(packet).slot);
      return true;
    case agent::MessageType::kFindRestore:
      return OnFind(As<agent::FindRestoreMessage>(packet));
    case agent::MessageType::kEndRestore:
    case agent::MessageType::kWantTier:
      return true;
    case agent::MessageType::kOpenReader:
    case agent::MessageType::kReadRange:
    case agent::MessageType::kCloseReader:
      return script_.on_reader && script_.on_reader(connection_.get(), packet);
    default:
      return false;
  }
}

bool ScriptedAgent::OnHello(const agent::HelloMessage& hello) {
  hello_ = hello;
  if (script_.refuse_hello) {
    agent::ReplyMessage reply;
    reply.code = static_cast<uint32_t>(script_.refuse_hello->code());
    agent::PutText(reply.text, script_.refuse_hello->message());
    SendMessage(reply);
    return false;
  }
  if (script_.raw_welcome) {
    static_cast<void>(agent::SendPacket(connection_.get(), *script_.raw_welcome));
    return true;
  }
  if (!segment_) segment_ = std::make_unique<TestSegment>(hello.slots, hello.slot_bytes);
  shown_segment_ = segment_.get();
  agent::WelcomeMessage welcome;
  welcome.slots = segment_->slots();
  welcome.incarnation = script_.incarnation;
  welcome.segment_bytes = segment_->bytes();
  welcome.control_bytes = agent::kControlBytes;
  welcome.slot_bytes = segment_->slot_bytes();
  welcome.segment_id = 1;
  if (script_.welcome) welcome = *script_.welcome;
  int fd = segment_->fd();
  return SendMessage(welcome, std::span(&fd, script_.without_descriptor ? 0 : 1));
}

bool ScriptedAgent::OnBegin(const agent::BeginSaveMessage& message) {
  if (script_.hang_up_on_begin) return false;
  agent::ReplyMessage reply;
  reply.header.ticket = message.header.ticket;
  reply.step = message.step;
  Status status = script_.begin_save.value_or(Status::Ok());
  std::optional<uint32_t> free;
  for (uint32_t i = 0; i < segment_->slots() && !free; ++i) {
    if (!leases_.contains(i)) free = i;
  }
  if (status.ok() && !free) status = ResourceExhaustedError("no slot is free");
  if (status.ok()) {
    reply.slot = script_.granted.value_or(*free);
    leases_[*free] = {message.step, message.image_bytes};
    segment_->progress(*free).copied = 0;
  }
  reply.code = static_cast<uint32_t>(status.code());
  agent::PutText(reply.text, status.message());
  return SendMessage(reply);
}

bool ScriptedAgent::OnEnd(const agent::EndSaveMessage& message) {
  if (script_.hang_up_on_end) return false;
  EXPECT_TRUE(leases_.contains(message.slot));
  Lease lease = leases_[message.slot];
  EXPECT_EQ(lease.step, message.step);
  EXPECT_EQ(segment_->progress(message.slot).copied.load(), lease.image_bytes);
  auto bytes = segment_->slot(message.slot).first(lease.image_bytes);
  images_[message.step] = {message.slot,
                           {reinterpret_cast<const char*>(bytes.data()), bytes.size()}};
  if (!script_.hold_slots) leases_.erase(message.slot);
  agent::NoticeMessage notice;
  notice.incarnation = script_.incarnation;
  notice.step = message.step;
  if (script_.seal && !SendMessage(notice)) return false;
  notice.kind = agent::NoticeKind::kCommitted;
  notice.tier = static_cast<uint32_t>(Tier::kMemory);
  return !script_.commit_memory || SendMessage(notice);
}

bool ScriptedAgent::OnFind(const agent::FindRestoreMessage& message) {
  agent::ReplyMessage reply;
  reply.header.ticket = message.header.ticket;
  if (script_.find_restore) {
    reply.code = static_cast<uint32_t>(script_.find_restore->code());
    agent::PutText(reply.text, script_.find_restore->message());
    return SendMessage(reply);
  }
  auto slot = segment_->slot(1);
  EXPECT_LE(restore_image_.size(), slot.size());
  std::memcpy(slot.data(), restore_image_.data(), std::min(restore_image_.size(), slot.size()));
  reply.slot = 1;
  reply.incarnation = restore_version_.incarnation.value;
  reply.step = restore_version_.step.value;
  reply.image_bytes = restore_image_.size();
  reply.tier = static_cast<uint32_t>(restore_tier_);
  return SendMessage(reply);
}

}  // namespace holdfast::client
