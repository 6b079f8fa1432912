#pragma once

#include <string>
#include <string_view>
#include <utility>

#include "storage/base/status.h"

namespace holdfast {

/// Accepts "a", "a/b": relative, no empty, "." or ".." component, no NUL, components up to 255
/// bytes. "." alone is accepted when `directory`. Every Directory variant checks its paths with
/// this before the kernel sees them.
Status ValidatePath(std::string_view path, bool directory);

/// "a/b/c" → {"a/b", "c"}; "c" → {".", "c"}.
std::pair<std::string, std::string> SplitPath(const std::string& path);

}  // namespace holdfast
