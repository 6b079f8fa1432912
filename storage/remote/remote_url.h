#pragma once

#include <string>
#include <string_view>

#include "base/status.h"

namespace holdfast {

/// Parses "file:///lustre/ckpt" and returns the absolute path. InvalidArgument for another scheme,
/// a host, or a path that is not absolute or has "..".
Result<std::string> ParseRemoteUrl(std::string_view url);

}  // namespace holdfast
