#include "coordinator/contract/text.h"

#include <cstdint>

namespace holdfast {

std::string CutText(std::string_view text, size_t most) {
  if (text.size() <= most) return std::string(text);
  const auto is_middle = [&text](size_t at) {
    return (static_cast<uint8_t>(text[at]) & 0xC0U) == 0x80U;
  };
  while (most > 0 && is_middle(most)) --most;
  return std::string(text.substr(0, most));
}

}  // namespace holdfast
