#include "coordinator/store/record_frame.h"

#include <fmt/format.h>

#include <charconv>

#include "base/ids.h"
#include "storage/format/checksum.h"

namespace holdfast::coord {
namespace {
constexpr char kFormat = 1;
constexpr size_t kFrameBytes = 5;  // format byte and CRC-32C

uint32_t ChecksumOf(std::string_view key, std::string_view body) {
  std::string bytes;
  bytes.reserve(key.size() + 1 + body.size());
  bytes.append(key).push_back('\0');
  bytes.append(body);
  return Crc32c(std::as_bytes(std::span(bytes)));
}
}  // namespace

std::string FrameRecord(std::string_view key, const google::protobuf::MessageLite& payload) {
  std::string value(1, kFormat);
  payload.AppendToString(&value);
  const uint32_t crc = ChecksumOf(key, value);
  for (int shift = 0; shift < 32; shift += 8) value.push_back(static_cast<char>(crc >> shift));
  return value;
}

Status BadRecord(std::string_view key, std::string_view why) {
  return DataLossError(fmt::format("metadata value of '{}': {}", key, why));
}

Status UnframeRecord(std::string_view key, std::string_view value,
                     google::protobuf::MessageLite& payload) {
  if (value.size() < kFrameBytes) return BadRecord(key, "too short");
  std::string_view body = value.substr(0, value.size() - 4);
  uint32_t crc = 0;
  for (int i = 0; i < 4; ++i) {
    crc |= static_cast<uint32_t>(static_cast<uint8_t>(value[body.size() + i])) << (8 * i);
  }
  if (crc != ChecksumOf(key, body)) return BadRecord(key, "the checksum does not match");
  if (body[0] != kFormat) {
    return UnsupportedError(fmt::format("metadata value of '{}': format {}, this build reads {}",
                                        key, static_cast<int>(body[0]), static_cast<int>(kFormat)));
  }
  if (!payload.ParseFromArray(body.data() + 1, static_cast<int>(body.size() - 1))) {
    return BadRecord(key, "not a valid record");
  }
  return Status::Ok();
}

Result<uint64_t> ParseHex(std::string_view key, std::string_view text) {
  uint64_t number = 0;
  auto parsed = std::from_chars(text.data(), text.data() + text.size(), number, 16);
  if (text.size() != 16 || parsed.ec != std::errc() || parsed.ptr != text.data() + text.size()) {
    return Fail(BadRecord(key, "not a valid key"));
  }
  return number;
}

Status SplitKey(std::string_view key, std::string_view prefix, std::string& job,
                std::string_view& rest) {
  if (key.substr(0, prefix.size()) != prefix) return BadRecord(key, "not a valid key");
  std::string_view tail = key.substr(prefix.size());
  const size_t slash = tail.find('/');
  job = tail.substr(0, slash);
  rest = slash == std::string_view::npos ? std::string_view() : tail.substr(slash + 1);
  return ValidateName("job", job);
}

}  // namespace holdfast::coord
