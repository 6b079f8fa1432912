#pragma once

#include <string>
#include <string_view>
#include <utility>

#include "base/status.h"

namespace holdfast {

/// Accepts a relative path such as "a" or "a/b": no empty, "." or ".." component, no NUL,
/// components up to 255 bytes. With `directory`, "." alone is accepted too. Every Directory variant
/// checks its paths before it passes them to the kernel.
Status ValidatePath(std::string_view path, bool directory);

/// Splits off the last component: "a/b/c" → {"a/b", "c"}; "c" → {".", "c"}.
std::pair<std::string, std::string> SplitPath(const std::string& path);

}  // namespace holdfast
