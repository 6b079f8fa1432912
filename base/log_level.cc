#include "base/log_level.h"

#include <fmt/format.h>

namespace holdfast {

Result<LogLevel> ParseLogLevel(const std::string& text) {
  if (text == "debug") return LogLevel::kDebug;
  if (text == "info") return LogLevel::kInfo;
  if (text == "warn") return LogLevel::kWarn;
  if (text == "error") return LogLevel::kError;
  return Fail(InvalidArgumentError(
      fmt::format("log_level '{}' is none of debug, info, warn, error", text)));
}

}  // namespace holdfast
