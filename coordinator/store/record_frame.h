#pragma once

#include <google/protobuf/message_lite.h>

#include <string>
#include <string_view>

#include "base/status.h"

// The framing of all stored values: format, message, checksum over key, format and message.

namespace holdfast::coord {

/// Returns the stored value of a message under `key`.
std::string FrameRecord(std::string_view key, const google::protobuf::MessageLite& payload);
/// Reads the message of a stored value. DataLoss if the value is damaged or under the wrong key,
/// Unsupported for a newer format.
Status UnframeRecord(std::string_view key, std::string_view value,
                     google::protobuf::MessageLite& payload);

/// Returns DataLoss with the key and the reason.
Status BadRecord(std::string_view key, std::string_view why);
/// Parses 16 hex digits; anything else is DataLoss.
Result<uint64_t> ParseHex(std::string_view key, std::string_view text);
/// Splits "<prefix><job>/<rest>"; `rest` may be absent. DataLoss for another prefix,
/// InvalidArgument for an invalid name.
Status SplitKey(std::string_view key, std::string_view prefix, std::string& job,
                std::string_view& rest);

}  // namespace holdfast::coord
