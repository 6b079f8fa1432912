#pragma once

#include <google/protobuf/message_lite.h>

#include <string>
#include <string_view>

#include "storage/base/status.h"

// What all stored values have in common: format, message, checksum over key and message.

namespace holdfast::coord {

std::string FrameRecord(std::string_view key, const google::protobuf::MessageLite& payload);
/// DataLoss when the value is damaged or under the wrong key, Unsupported for a newer format.
Status UnframeRecord(std::string_view key, std::string_view value,
                     google::protobuf::MessageLite& payload);

/// DataLoss with the key and what is wrong.
Status BadRecord(std::string_view key, std::string_view why);
/// 16 lower-case hex digits.
Result<uint64_t> ParseHex(std::string_view key, std::string_view text);
/// Takes "<prefix><job>/<rest>" apart.
Status SplitKey(std::string_view key, std::string_view prefix, std::string& job,
                std::string_view& rest);

}  // namespace holdfast::coord
