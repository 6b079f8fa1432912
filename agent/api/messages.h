#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/ids.h"
#include "base/status.h"

// The messages between a trainer and its node's agent over an AF_UNIX SEQPACKET socket: fixed-size
// little-endian structs, one per packet, described in docs/formats/agent-protocol.md. The trainer's
// first packet is Hello. While the agent reserves the memory it sends Notices of its progress; then
// it answers with Welcome (with the segment's memfd as SCM_RIGHTS) or a refusal. After that each
// request carries a `ticket`, which its reply repeats. The agent also sends unsolicited Notices.

namespace holdfast::agent {

inline constexpr uint32_t kProtocolMagic = 0x31465248;  // "HRF1"
inline constexpr uint32_t kProtocolVersion = 3;
inline constexpr uint32_t kNoSlot = UINT32_MAX;
inline constexpr size_t kNameBytes = 129;   // 128 characters and a NUL
inline constexpr size_t kTextBytes = 1024;  // messages for people, NUL-terminated, cut if longer

enum class MessageType : uint32_t {
  // trainer → agent
  kHello = 1,         // HelloMessage
  kBeginSave = 2,     // BeginSaveMessage → Reply
  kEndSave = 3,       // EndSaveMessage (no answer; a Notice reports the sealing)
  kAbandonSave = 4,   // EndSaveMessage: the copy failed; the slot is free again
  kFindRestore = 5,   // FindRestoreMessage → Reply: the version and slot to restore from
  kEndRestore = 6,    // EndSaveMessage: the trainer no longer reads that slot
  kGoodbye = 7,       // header only: an orderly close
  kOpenReader = 8,    // FindRestoreMessage → Reply with one descriptor: opens a version reader
  kReadRange = 9,     // ReadRangeMessage → Reply: bytes of a shard are in the reader's window
  kCloseReader = 10,  // CloseReaderMessage (no answer)
  kWantTier = 11,     // EndSaveMessage with the tier as `slot`: a caller waits for the step there
  // Only to agents whose Welcome has kOpensVersions:
  kOpenVersion = 12,  // FindRestoreMessage → as OpenReader, but lists the rank's own shard only
  kReadIndex = 13,    // CloseReaderMessage → Reply with one descriptor: the index of the version
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

/// Registers the sender as (job, rank). `run_id` names this start of the job: all ranks send the
/// same ID, and a new ID opens the next incarnation.
struct HelloMessage {
  MessageHeader header{.type = MessageType::kHello};
  uint32_t protocol = kProtocolVersion;
  uint32_t rank = 0;
  uint32_t world = 0;
  uint32_t slots = 3;       // how many slots to reserve
  uint64_t slot_bytes = 0;  // ImageLayout::ImageBytesMax
  char job[kNameBytes] = {};
  char run_id[kNameBytes] = {};
  /// The incarnation that this client belonged to before its connection broke, 48 bits, lowest byte
  /// first; 0: the client connects for the first time. Older clients leave it 0.
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
  uint64_t segment_id = 0;  // same ID on a reconnect: same memory, keep the mapping
  char node[kNameBytes] = {};
  unsigned char features = 0;  // kOpensVersions; agents that lack a feature leave its bit 0
  char padding[6] = {};
};

/// WelcomeMessage::features: the agent answers OpenVersion and ReadIndex.
inline constexpr unsigned char kOpensVersions = 1;

/// Requests a slot for the save of `step`. Reply: `slot`, or ResourceExhausted (no slot is free:
/// skip or request again), AlreadyExists (this step is saved), Fenced (a newer incarnation runs).
struct BeginSaveMessage {
  MessageHeader header{.type = MessageType::kBeginSave};
  uint64_t step = 0;
  uint64_t image_bytes = 0;
  uint32_t wait = 0;  // 0: answer immediately; 1: when a slot is free or `wait_ms` have passed
  uint32_t wait_ms = 0;
  uint32_t skipping = 0;  // 1: the caller skips the step on ResourceExhausted; the agent reports it
  uint32_t padding = 0;
};

struct EndSaveMessage {
  MessageHeader header{.type = MessageType::kEndSave};
  uint32_t slot = 0;
  uint32_t padding = 0;
  uint64_t step = 0;
};

/// Requests the version that this incarnation restores, which is decided once for all ranks. Reply:
/// the version, tier, slot (image verified), image_bytes; NotFound when the job has no restorable
/// version. `wanted_*` selects another restorable version instead of the newest.
struct FindRestoreMessage {
  MessageHeader header{.type = MessageType::kFindRestore};
  uint64_t wanted_incarnation = 0;  // 0: the newest restorable
  uint64_t wanted_step = 0;
  uint64_t timeout_ms = 0;
};

/// Reads bytes of one shard into place `place` of the version reader's window. The agent verifies
/// them first. The reply reports success, or an error, after which the place's content is
/// undefined. Until the reply the place belongs to the agent.
struct ReadRangeMessage {
  MessageHeader header{.type = MessageType::kReadRange};
  uint32_t reader = 0;
  uint32_t rank = 0;    // of the world that saved
  uint64_t offset = 0;  // in the image: a chunk's first byte
  uint64_t bytes = 0;   // whole chunks, up to kReadPlaceBytes
  uint32_t place = 0;
  uint32_t padding = 0;
};

struct CloseReaderMessage {
  MessageHeader header{.type = MessageType::kCloseReader};
  uint32_t reader = 0;
  uint32_t padding = 0;
};

struct ReplyMessage {
  MessageHeader header{.type = MessageType::kReply};
  uint32_t code = 0;  // ErrorCode
  uint32_t slot = 0;  // of OpenReader: the reader's number
  uint64_t incarnation = 0;
  uint64_t step = 0;
  // Of OpenReader: length of the listing; of OpenVersion with own_slot: of the image in the slot,
  // otherwise of the listing; of ReadIndex: of the index.
  uint64_t image_bytes = 0;
  uint32_t tier = 0;  // Tier the shard came from; of OpenReader: the slowest of all shards'
  // Of OpenReader and OpenVersion: number of ranks that saved the version; of ReadIndex: how many
  // ranks follow the index.
  uint32_t world = 0;
  char text[kTextBytes - 8] = {};
  // Of OpenReader and OpenVersion: the slot with this rank's own shard, complete and unchanged
  // while the reader is open; kNoSlot: that shard is read like the others.
  uint32_t own_slot = kNoSlot;
  uint32_t padding = 0;
};

enum class NoticeKind : uint32_t {
  kSealed = 1,     // `version` of this rank is sealed in memory
  kCommitted = 2,  // `version` is committed at `tier`
  kFailed = 3,     // `version` will not reach `tier`; `code` and `text` give the reason
  kFenced = 4,     // a newer incarnation of the job runs; saves are refused from now on
  kSlotFree = 5,   // a slot became free
  kReserving = 6,  // before Welcome: memory is being reserved; `text` gives the amounts
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

/// The memory that comes with a version reader: a window of places that the agent reads shards'
/// bytes into, followed by the listing (version_listing.h).
inline constexpr uint64_t kReadPlaceBytes = 4ULL << 20;
inline constexpr uint32_t kReadPlaces = 8;
inline constexpr uint64_t kReadWindowBytes = kReadPlaces * kReadPlaceBytes;
/// How many version readers a trainer may have open at once.
inline constexpr uint32_t kReadersMax = 4;

/// The largest packet: receive buffers have this size.
inline constexpr size_t kMessageBytesMax = 2048;

/// Copies `text` into a fixed field: truncated to fit, NUL-terminated, the rest cleared.
void PutText(std::span<char> field, std::string_view text);
/// Returns the text of a received field, which may lack a NUL.
std::string GetText(std::span<const char> field);
/// Returns the outcome of a request.
Status StatusOf(const ReplyMessage& reply);

/// Returns the header of a received packet. InvalidArgument unless its magic is right, its type is
/// known and its size is exactly that of the type.
Result<MessageHeader> CheckPacket(std::span<const std::byte> packet);
/// Returns the type's name for logs.
std::string_view NameOf(MessageType type);

}  // namespace holdfast::agent
