#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "storage/base/ids.h"
#include "storage/base/status.h"

// What a trainer and its node's agent say to each other over an AF_UNIX SEQPACKET socket:
// fixed-size little-endian structs, one a packet, described in docs/formats/agent-protocol.md. The
// trainer's first packet is Hello, the agent's first is Welcome (with the segment's memfd as
// SCM_RIGHTS) or Refusal, after Notices of its progress while it reserves the memory. After that
// each request carries a `ticket` that its answer repeats; the agent also sends Notices unasked.

namespace holdfast::agent {

inline constexpr uint32_t kProtocolMagic = 0x31465248;  // "HRF1"
inline constexpr uint32_t kProtocolVersion = 3;
inline constexpr uint32_t kNoSlot = UINT32_MAX;
inline constexpr size_t kNameBytes = 129;   // 128 characters and a NUL
inline constexpr size_t kTextBytes = 1024;  // messages for people, NUL-terminated, cut if longer

enum class MessageType : uint32_t {
  // trainer → agent
  kHello = 1,        // HelloMessage
  kBeginSave = 2,    // BeginSaveMessage → Reply
  kEndSave = 3,      // EndSaveMessage (no answer; sealing shows as a Notice)
  kAbandonSave = 4,  // EndSaveMessage: the copy failed; the slot is free again
  kFindRestore = 5,  // FindRestoreMessage → Reply: the version and slot to restore from
  kEndRestore = 6,   // EndSaveMessage: the trainer no longer reads that slot
  kGoodbye = 7,      // header only: an orderly close
  kOpenView = 8,     // FindRestoreMessage → Reply with one descriptor: a version seen whole
  kReadView = 9,     // ReadViewMessage → Reply: bytes of a shard are in the view's window
  kCloseView = 10,   // CloseViewMessage (no answer)
  kWantTier = 11,    // EndSaveMessage with the tier as `slot`: a caller waits for the step there
  // agent → trainer
  kWelcome = 32,  // WelcomeMessage + one descriptor
  kReply = 33,    // ReplyMessage
  kNotice = 34,   // NoticeMessage
};

struct MessageHeader {
  uint32_t magic = kProtocolMagic;
  MessageType type = MessageType::kHello;
  uint64_t ticket = 0;
};

/// Asks to save as (job, rank). `run_id` names this start of the job: all its ranks give the same
/// one, and a new one opens the next incarnation.
struct HelloMessage {
  MessageHeader header{.type = MessageType::kHello};
  uint32_t protocol = kProtocolVersion;
  uint32_t rank = 0;
  uint32_t world = 0;
  uint32_t slots = 3;       // how many slots to reserve
  uint64_t slot_bytes = 0;  // ImageLayout::ImageBytesMax
  char job[kNameBytes] = {};
  char run_id[kNameBytes] = {};
  /// The incarnation that this very client was part of before its connection was cut, 48 bits, the
  /// lowest first; 0: it connects for the first time. Older clients leave it 0.
  unsigned char joined_before[6] = {};

  void SetJoinedBefore(uint64_t incarnation) {
    for (unsigned char& byte : joined_before) {
      byte = static_cast<unsigned char>(incarnation);
      incarnation >>= 8;
    }
  }
  uint64_t JoinedBefore() const {
    uint64_t incarnation = 0;
    for (int i = 5; i >= 0; --i) incarnation = incarnation << 8 | joined_before[i];
    return incarnation;
  }
};

/// The segment: `slots` slots of `slot_bytes` each (a multiple of 2 MiB), slot i at
/// control_bytes + i · slot_bytes. The first control_bytes hold SegmentControl.
struct WelcomeMessage {
  MessageHeader header{.type = MessageType::kWelcome};
  uint32_t protocol = kProtocolVersion;
  uint32_t slots = 0;
  uint64_t incarnation = 0;
  uint64_t segment_bytes = 0;
  uint64_t control_bytes = 0;
  uint64_t slot_bytes = 0;
  uint64_t segment_id = 0;  // the same id on a reconnect: the same memory, keep the mapping
  char node[kNameBytes] = {};
  char padding[7] = {};
};

/// May `step` be saved, and where? Reply: `slot`, or ResourceExhausted (no slot is free: skip or
/// ask again), AlreadyExists (this step is saved), Fenced (a newer incarnation runs).
struct BeginSaveMessage {
  MessageHeader header{.type = MessageType::kBeginSave};
  uint64_t step = 0;
  uint64_t image_bytes = 0;
  uint32_t wait = 0;  // 0: answer at once; 1: answer when a slot is free or `wait_ms` passed
  uint32_t wait_ms = 0;
  uint32_t skipping =
      0;  // 1: on ResourceExhausted the caller skips this step; the agent reports it
  uint32_t padding = 0;
};

struct EndSaveMessage {
  MessageHeader header{.type = MessageType::kEndSave};
  uint32_t slot = 0;
  uint32_t padding = 0;
  uint64_t step = 0;
};

/// Which version does this incarnation restore? Decided once for all ranks. Reply: the version,
/// tier, slot (image verified), image_bytes; NotFound when the job has no restorable version. With
/// `wanted` the newest restorable is replaced by that version, if it is restorable.
struct FindRestoreMessage {
  MessageHeader header{.type = MessageType::kFindRestore};
  uint64_t wanted_incarnation = 0;  // 0: the newest restorable
  uint64_t wanted_step = 0;
  uint64_t timeout_ms = 0;
};

/// Puts bytes of one shard of a view, checked, into place `place` of its window. Reply: they are
/// there; or why not, and the place is undefined. The place is the agent's until then.
struct ReadViewMessage {
  MessageHeader header{.type = MessageType::kReadView};
  uint32_t view = 0;
  uint32_t rank = 0;    // of the world that saved
  uint64_t offset = 0;  // in the image: a chunk's first byte
  uint64_t bytes = 0;   // whole chunks, up to kViewPlaceBytes
  uint32_t place = 0;
  uint32_t padding = 0;
};

struct CloseViewMessage {
  MessageHeader header{.type = MessageType::kCloseView};
  uint32_t view = 0;
  uint32_t padding = 0;
};

struct ReplyMessage {
  MessageHeader header{.type = MessageType::kReply};
  uint32_t code = 0;  // ErrorCode
  uint32_t slot = 0;  // of OpenView: the view's number
  uint64_t incarnation = 0;
  uint64_t step = 0;
  uint64_t image_bytes = 0;  // of OpenView: of the listing
  uint32_t tier = 0;         // Tier the shard came from; of OpenView: the farthest of them
  uint32_t world = 0;        // of OpenView: ranks that saved the version
  char text[kTextBytes - 8] = {};
  // Of OpenView: the slot with this rank's own shard, whole and not to change while the view is
  // open; kNoSlot: it is read like the others.
  uint32_t own_slot = kNoSlot;
  uint32_t padding = 0;
};

enum class NoticeKind : uint32_t {
  kSealed = 1,     // `version` of this rank is sealed in memory
  kCommitted = 2,  // `version` is committed at `tier`
  kFailed = 3,     // `version` will not reach `tier`; `code` and `text` say why
  kFenced = 4,     // a newer incarnation of the job runs; saves are refused from now on
  kSlotFree = 5,   // a slot became free
  kReserving = 6,  // before Welcome: the memory is being reserved; `text` says how much
};

struct NoticeMessage {
  MessageHeader header{.type = MessageType::kNotice};
  NoticeKind kind = NoticeKind::kSealed;
  uint32_t tier = 0;
  uint64_t incarnation = 0;
  uint64_t step = 0;
  uint32_t code = 0;
  uint32_t padding = 0;
  char text[kTextBytes] = {};
};

static_assert(sizeof(MessageHeader) == 16);

/// The memory that comes with a view: a window of places that shards' bytes are read into, then the
/// listing (view_listing.h).
inline constexpr uint64_t kViewPlaceBytes = 4ULL << 20;
inline constexpr uint32_t kViewPlaces = 8;
inline constexpr uint64_t kViewWindowBytes = kViewPlaces * kViewPlaceBytes;
/// Views that a trainer may have open at once.
inline constexpr uint32_t kViewsMax = 4;

/// The largest packet: receive buffers have this size.
inline constexpr size_t kMessageBytesMax = 2048;

/// Copies `text` into a fixed field, cut to fit, NUL-terminated.
void PutText(std::span<char> field, std::string_view text);
/// The text of a received field; safe without a NUL.
std::string GetText(std::span<const char> field);

/// Header of a received packet after checking magic and the exact size of its type.
Result<MessageHeader> CheckPacket(std::span<const std::byte> packet);
/// Name for logs.
std::string_view NameOf(MessageType type);

}  // namespace holdfast::agent
