#pragma once

#include <string>

#include "base/log.h"
#include "base/status.h"

namespace holdfast {

/// Parses the value of the configuration key log_level: debug, info, warn or error.
Result<LogLevel> ParseLogLevel(const std::string& text);

}  // namespace holdfast
