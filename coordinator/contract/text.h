#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace holdfast {

/// Returns at most the first `most` bytes of a UTF-8 text and never splits a character.
std::string CutText(std::string_view text, size_t most);

}  // namespace holdfast
