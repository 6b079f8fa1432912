#include "agent/peers/messages.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <string_view>
#include <type_traits>

#include "agent/peers/frame.h"

namespace holdfast::agent {

static_assert(std::endian::native == std::endian::little, "formats are little-endian in memory");

namespace {

template <typename Number>
void Put(Number number, std::string* out) {
  static_assert(std::is_integral_v<Number>);
  out->append(reinterpret_cast<const char*>(&number), sizeof(number));
}

void PutName(const std::string& name, std::string* out) {
  Put(static_cast<uint8_t>(name.size()), out);
  out->append(name);
}

/// Takes numbers and texts from the front. Functions return false when there are too few bytes.
class Cursor {
 public:
  explicit Cursor(std::span<const std::byte> bytes) : left_(bytes) {}

  template <typename Number>
  bool Take(Number* number) {
    if (left_.size() < sizeof(*number)) return false;
    std::memcpy(number, left_.data(), sizeof(*number));
    left_ = left_.subspan(sizeof(*number));
    return true;
  }
  bool TakeText(size_t count, std::string* text) {
    if (left_.size() < count) return false;
    text->assign(reinterpret_cast<const char*>(left_.data()), count);
    left_ = left_.subspan(count);
    return true;
  }
  bool TakeName(std::string* name) {
    uint8_t count = 0;
    return Take(&count) && TakeText(count, name);
  }
  size_t left() const { return left_.size(); }

 private:
  std::span<const std::byte> left_;
};

Status Damaged(std::string_view what) {
  return DataLossError(fmt::format("a peer's {} is malformed", what));
}

bool IsKnownRequest(uint8_t kind) {
  switch (static_cast<PeerRequestKind>(kind)) {
    case PeerRequestKind::kShard:
    case PeerRequestKind::kSeal:
    case PeerRequestKind::kParityRow:
    case PeerRequestKind::kDecode:
    case PeerRequestKind::kProbe:
    case PeerRequestKind::kNodeIndex:
      return true;
  }
  return false;
}

}  // namespace

std::string EncodeIntroduction(const Introduction& introduction) {
  std::string out;
  Put(static_cast<uint8_t>(introduction.has_secret), &out);
  out.append(reinterpret_cast<const char*>(introduction.nonce.data()), kNonceBytes);
  PutName(introduction.cluster, &out);
  PutName(introduction.node, &out);
  return out;
}

Result<Introduction> DecodeIntroduction(std::span<const std::byte> payload) {
  Introduction introduction;
  Cursor cursor(payload);
  uint8_t has_secret = 0;
  if (!cursor.Take(&has_secret) || has_secret > 1 || !cursor.Take(&introduction.nonce) ||
      !cursor.TakeName(&introduction.cluster) || !cursor.TakeName(&introduction.node) ||
      cursor.left() != 0) {
    return Fail(Damaged("introduction"));
  }
  introduction.has_secret = has_secret == 1;
  HOLDFAST_RETURN_IF_ERROR(ValidateName("a peer's cluster", introduction.cluster));
  HOLDFAST_RETURN_IF_ERROR(ValidateName("a peer's node", introduction.node));
  return introduction;
}

Status ValidateRequest(const PeerRequest& request) {
  HOLDFAST_RETURN_IF_ERROR(ValidateName("job", request.job));
  if (!IsKnownRequest(static_cast<uint8_t>(request.kind))) {
    return InvalidArgumentError(
        fmt::format("unknown kind {} of a request to a peer", static_cast<uint8_t>(request.kind)));
  }
  if (request.version.incarnation.value == 0 || request.incarnation.value == 0) {
    return InvalidArgumentError("a request to a peer needs incarnations from 1");
  }
  uint64_t end = 0;
  if (__builtin_add_overflow(request.offset, request.bytes, &end)) {
    return InvalidArgumentError(fmt::format("a range of {} bytes at offset {} is beyond any object",
                                            request.bytes, request.offset));
  }
  const bool of_shard =
      request.kind == PeerRequestKind::kShard || request.kind == PeerRequestKind::kSeal;
  if ((request.sealed && !of_shard) || (request.digest != 0 && !request.sealed)) {
    return InvalidArgumentError(
        "only a request for a sealed shard or its seal can require a sealed replica or a digest");
  }
  if (!request.group.empty() && request.kind != PeerRequestKind::kDecode &&
      request.kind != PeerRequestKind::kNodeIndex) {
    return InvalidArgumentError("only a request to decode or for an index carries a group");
  }
  if (request.group.size() > kPeerGroupBytesMax) {
    return InvalidArgumentError(
        fmt::format("a request's group has {} bytes; at most {} are allowed", request.group.size(),
                    kPeerGroupBytesMax));
  }
  return Status::Ok();
}

std::string EncodeRequest(const StreamRequest& request) {
  const PeerRequest& inner = request.request;
  std::string out;
  out.reserve(128 + inner.job.size() + inner.group.size());
  Put(request.stream, &out);
  Put(static_cast<uint8_t>(inner.kind), &out);
  PutName(inner.job, &out);
  Put(inner.version.incarnation.value, &out);
  Put(inner.version.step.value, &out);
  Put(inner.incarnation.value, &out);
  Put(inner.rank.value, &out);
  Put(inner.stripe, &out);
  Put(inner.index, &out);
  Put(inner.offset, &out);
  Put(inner.bytes, &out);
  Put(static_cast<uint8_t>(inner.sealed), &out);
  Put(inner.digest, &out);
  Put(static_cast<uint32_t>(inner.group.size()), &out);
  out.append(inner.group);
  return out;
}

Result<StreamRequest> DecodeRequest(std::span<const std::byte> payload) {
  StreamRequest request;
  PeerRequest& inner = request.request;
  Cursor cursor(payload);
  uint8_t kind = 0;
  uint8_t sealed = 0;
  uint32_t group_bytes = 0;
  if (!cursor.Take(&request.stream) || !cursor.Take(&kind) || !cursor.TakeName(&inner.job) ||
      !cursor.Take(&inner.version.incarnation.value) || !cursor.Take(&inner.version.step.value) ||
      !cursor.Take(&inner.incarnation.value) || !cursor.Take(&inner.rank.value) ||
      !cursor.Take(&inner.stripe) || !cursor.Take(&inner.index) || !cursor.Take(&inner.offset) ||
      !cursor.Take(&inner.bytes) || !cursor.Take(&sealed) || sealed > 1 ||
      !cursor.Take(&inner.digest) || !cursor.Take(&group_bytes) ||
      !cursor.TakeText(group_bytes, &inner.group) || cursor.left() != 0) {
    return Fail(Damaged("request"));
  }
  inner.kind = static_cast<PeerRequestKind>(kind);
  inner.sealed = sealed == 1;
  HOLDFAST_RETURN_IF_ERROR(ValidateRequest(inner));
  return request;
}

std::string EncodeError(const Status& status) {
  std::string out;
  Put(static_cast<uint8_t>(status.code()), &out);
  const size_t text_max = FramePayloadMax(FrameKind::kError) - out.size();
  out.append(status.message(), 0, text_max);
  return out;
}

Status DecodeError(std::span<const std::byte> payload) {
  Cursor cursor(payload);
  uint8_t code = 0;
  std::string text;
  if (!cursor.Take(&code) || code == 0 || !cursor.TakeText(cursor.left(), &text)) {
    return Damaged("error");
  }
  std::replace_if(
      text.begin(), text.end(),
      [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; }, '?');
  return Status(ErrorFromNumber(code), std::move(text));
}

std::string ToString(const PeerRequest& request) {
  const std::string version = request.job + "/" + ToString(request.version);
  const std::string shard = ToString(ShardKey{request.job, request.version, request.rank});
  const std::string range = fmt::format("[{}, {})", request.offset, request.offset + request.bytes);
  switch (request.kind) {
    case PeerRequestKind::kShard:
      return fmt::format("shard {} {}", shard, range);
    case PeerRequestKind::kSeal:
      return fmt::format("seal of {} {}", shard, range);
    case PeerRequestKind::kParityRow:
      return fmt::format("parity {} of stripe {} of {} {}", request.index, request.stripe, version,
                         range);
    case PeerRequestKind::kDecode:
      return fmt::format("decoded segment {} of stripe {} of {} {}", request.index, request.stripe,
                         version, range);
    case PeerRequestKind::kProbe:
      return fmt::format("probe {}", range);
    case PeerRequestKind::kNodeIndex:
      return fmt::format("index of {}", version);
  }
  return "unknown request";
}

}  // namespace holdfast::agent
