#include "agent/api/messages.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <type_traits>

namespace holdfast::agent {
namespace {
// The structs are the wire format: no hidden padding, so every byte of a packet is defined.
template <typename T, size_t kBytes>
constexpr bool IsPacket() {
  return std::is_trivially_copyable_v<T> && std::has_unique_object_representations_v<T> &&
         sizeof(T) == kBytes && sizeof(T) <= kMessageBytesMax;
}
static_assert(IsPacket<MessageHeader, 16>());
static_assert(IsPacket<HelloMessage, 304>());
static_assert(IsPacket<BeginSaveMessage, 48>());
static_assert(IsPacket<EndSaveMessage, 32>());
static_assert(IsPacket<FindRestoreMessage, 40>());
static_assert(IsPacket<ReadRangeMessage, 48>());
static_assert(IsPacket<CloseReaderMessage, 24>());
static_assert(IsPacket<WelcomeMessage, 200>());
static_assert(IsPacket<ReplyMessage, 1080>());
static_assert(IsPacket<NoticeMessage, 1072>());

/// Returns 0 for an unknown message type.
size_t BytesOf(MessageType type) {
  switch (type) {
    case MessageType::kHello:
      return sizeof(HelloMessage);
    case MessageType::kBeginSave:
      return sizeof(BeginSaveMessage);
    case MessageType::kEndSave:
    case MessageType::kAbandonSave:
    case MessageType::kEndRestore:
    case MessageType::kWantTier:
      return sizeof(EndSaveMessage);
    case MessageType::kFindRestore:
    case MessageType::kOpenReader:
    case MessageType::kOpenVersion:
      return sizeof(FindRestoreMessage);
    case MessageType::kReadRange:
      return sizeof(ReadRangeMessage);
    case MessageType::kCloseReader:
    case MessageType::kReadIndex:
      return sizeof(CloseReaderMessage);
    case MessageType::kGoodbye:
      return sizeof(MessageHeader);
    case MessageType::kWelcome:
      return sizeof(WelcomeMessage);
    case MessageType::kReply:
      return sizeof(ReplyMessage);
    case MessageType::kNotice:
      return sizeof(NoticeMessage);
  }
  return 0;
}
}  // namespace

void PutText(std::span<char> field, std::string_view text) {
  if (field.empty()) return;
  size_t bytes = std::min(text.size(), field.size() - 1);
  if (bytes < text.size()) {
    // Cut before a UTF-8 sequence, not inside one.
    while (bytes > 0 && (static_cast<unsigned char>(text[bytes]) & 0xC0U) == 0x80U) --bytes;
  }
  std::memcpy(field.data(), text.data(), bytes);
  std::memset(field.data() + bytes, 0, field.size() - bytes);
}

std::string GetText(std::span<const char> field) {
  return {field.begin(), std::find(field.begin(), field.end(), '\0')};
}

Status StatusOf(const ReplyMessage& reply) {
  return {ErrorFromNumber(reply.code), GetText(reply.text)};
}

Result<MessageHeader> CheckPacket(std::span<const std::byte> packet) {
  MessageHeader header;
  if (packet.size() < sizeof(header)) {
    return Fail(InvalidArgumentError(
        fmt::format("a packet of {} bytes is shorter than its header of {} bytes", packet.size(),
                    sizeof(header))));
  }
  std::memcpy(&header, packet.data(), sizeof(header));
  if (header.magic != kProtocolMagic) {
    return Fail(InvalidArgumentError(
        fmt::format("a packet begins with {:#010x}, not with {:#010x}: the other side does not "
                    "speak the agent protocol",
                    header.magic, kProtocolMagic)));
  }
  size_t expected = BytesOf(header.type);
  if (expected == 0) {
    return Fail(InvalidArgumentError(
        fmt::format("unknown message type {}", static_cast<uint32_t>(header.type))));
  }
  if (packet.size() != expected) {
    return Fail(InvalidArgumentError(fmt::format("a {} message has {} bytes, expected {}",
                                                 NameOf(header.type), packet.size(), expected)));
  }
  return header;
}

std::string_view NameOf(MessageType type) {
  switch (type) {
    case MessageType::kHello:
      return "Hello";
    case MessageType::kBeginSave:
      return "BeginSave";
    case MessageType::kEndSave:
      return "EndSave";
    case MessageType::kAbandonSave:
      return "AbandonSave";
    case MessageType::kFindRestore:
      return "FindRestore";
    case MessageType::kEndRestore:
      return "EndRestore";
    case MessageType::kGoodbye:
      return "Goodbye";
    case MessageType::kOpenReader:
      return "OpenReader";
    case MessageType::kReadRange:
      return "ReadRange";
    case MessageType::kCloseReader:
      return "CloseReader";
    case MessageType::kWantTier:
      return "WantTier";
    case MessageType::kOpenVersion:
      return "OpenVersion";
    case MessageType::kReadIndex:
      return "ReadIndex";
    case MessageType::kWelcome:
      return "Welcome";
    case MessageType::kReply:
      return "Reply";
    case MessageType::kNotice:
      return "Notice";
  }
  return "Unknown";
}

}  // namespace holdfast::agent
