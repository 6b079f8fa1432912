#include "storage/volume/seen_life.h"

#include <fmt/format.h>

#include <charconv>

#include "base/job_name.h"
#include "storage/format/checksum.h"
#include "storage/volume/layout.h"

namespace holdfast {
namespace {
constexpr uint32_t kSeenLifeFormat = 1;
constexpr uint64_t kLifeBytesMax = 4096;
constexpr std::string_view kLifeKey = "holdfast_life = ";

/// Returns the number of a line "key = number" of `text`; 0 when there is none.
uint64_t NumberOf(std::string_view text, std::string_view key) {
  const size_t at = text.find(key);
  uint64_t number = 0;
  if (at == std::string_view::npos) return 0;
  std::from_chars(text.data() + at + key.size(), text.data() + text.size(), number);
  return number;
}
}  // namespace

std::string RenderSeenLife(const SeenLife& seen) {
  const std::string text =
      fmt::format("{}{}\nlife = \"{}\"\nepoch = {}\nunlabeled = \"{}\"\n", kLifeKey,
                  kSeenLifeFormat, ToString(seen.life), seen.epoch.value, ToString(seen.unlabeled));
  return text + fmt::format("crc32c = \"{:08x}\"\n", Crc32c(std::as_bytes(std::span(text))));
}

Result<SeenLife> ParseSeenLife(std::string_view text) {
  if (text.starts_with(kLifeKey) && NumberOf(text, kLifeKey) > kSeenLifeFormat) {
    return Fail(
        UnsupportedError(fmt::format("{} has format {}, but this build reads up to {}: use a newer "
                                     "Holdfast",
                                     kSeenLifeName, NumberOf(text, kLifeKey), kSeenLifeFormat)));
  }
  const auto life_of = [text](std::string_view key) {
    const size_t at = text.find(key);
    if (at == std::string_view::npos) return LifeId{};
    return ParseLifeId(text.substr(at + key.size(), 16)).value_or(LifeId{});
  };
  SeenLife seen;
  seen.life = life_of("\nlife = \"");
  seen.unlabeled = life_of("\nunlabeled = \"");
  seen.epoch = Epoch{NumberOf(text, "\nepoch = ")};
  // Each value has exactly one spelling, including the checksum.
  if (RenderSeenLife(seen) == text) return seen;
  return Fail(DataLossError(std::string(kSeenLifeName) + " is damaged"));
}

Result<SeenLife> ReadSeenLife(Directory& dir) {
  auto text = dir.ReadSmallFile(std::string(kSeenLifeName), kLifeBytesMax);
  if (!text && text.error().code() == ErrorCode::kNotFound) return SeenLife{};
  if (!text) return Fail(text.error());
  return ParseSeenLife(*text);
}

Status WriteSeenLife(Directory& dir, const SeenLife& seen) {
  const std::string temporary = TemporaryName(std::string(kMarkerName));
  Status written = dir.WriteSmallFile(temporary, RenderSeenLife(seen));
  if (written.ok()) written = dir.Rename(temporary, std::string(kSeenLifeName));
  if (!written.ok()) {
    static_cast<void>(dir.RemoveFile(temporary));
    return written.WithContext("writing " + dir.path() + "/" + std::string(kSeenLifeName));
  }
  return dir.SyncDirectory(".");
}

}  // namespace holdfast
