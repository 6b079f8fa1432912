#include "base/life.h"

#include <charconv>

#include "base/random.h"

namespace holdfast {

LifeId NewLife() {
  LifeId life;
  while (life.value == 0) life.value = RandomSeed();
  return life;
}

std::string ToString(LifeId life) {
  if (life.value == 0) return "unknown";
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string text(16, '0');
  for (size_t i = 0; i < text.size(); ++i) text[i] = kDigits[(life.value >> (60 - 4 * i)) & 15];
  return text;
}

Result<LifeId> ParseLifeId(std::string_view text) {
  LifeId life;
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), life.value, 16);
  if (error != std::errc() || end != text.data() + text.size() || ToString(life) != text) {
    return Fail(InvalidArgumentError("a life is 16 lower-case hex digits, not all 0, not '" +
                                     std::string(text) + "'"));
  }
  return life;
}

}  // namespace holdfast
