#include "storage/volume/layout.h"

#include <algorithm>
#include <charconv>

#include "base/random.h"
#include "storage/format/seal.h"

namespace holdfast {
namespace {

constexpr std::string_view kVersionPrefix = "v";
constexpr std::string_view kRankPrefix = "rank-";
constexpr std::string_view kParityPrefix = "parity-";
constexpr std::string_view kPartPrefix = ".part-";
constexpr std::string_view kDataSuffix = ".safetensors";
constexpr std::string_view kSealSuffix = ".seal";
constexpr std::string_view kTemporaryMark = ".tmp.";
constexpr std::string_view kTombstoneMark = ".deleted.";
constexpr std::string_view kScratchPrefix = ".probe-";
constexpr size_t kRandomBytes = 8;

bool ConsumePrefix(std::string_view& text, std::string_view prefix) {
  if (!text.starts_with(prefix)) return false;
  text.remove_prefix(prefix.size());
  return true;
}

/// Consumes a decimal number in its canonical spelling at the start of `text`.
std::optional<uint32_t> ConsumeNumber(std::string_view& text) {
  uint32_t value = 0;
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  size_t digits = static_cast<size_t>(end - text.data());
  if (error != std::errc() || (digits > 1 && text[0] == '0')) return std::nullopt;
  text.remove_prefix(digits);
  return value;
}

bool IsRandomPart(std::string_view text) {
  return text.size() == 2 * kRandomBytes && std::all_of(text.begin(), text.end(), [](char c) {
           return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f');
         });
}

}  // namespace

std::string VersionPath(const std::string& job, VersionId version) {
  return job + "/" + std::string(kVersionPrefix) + ToString(version);
}

std::string SealName(Rank rank) { return ShardName(rank) + std::string(kSealSuffix); }

std::string PartName(Rank rank, uint32_t part, uint32_t part_count) {
  std::string name = ShardName(rank);
  if (part_count > 1) name += std::string(kPartPrefix) + std::to_string(part);
  return name + std::string(kDataSuffix);
}

std::string TemporaryName(const std::string& name) {
  return name + std::string(kTemporaryMark) + RandomHex(kRandomBytes);
}

std::string TombstoneName(const std::string& version_name) {
  return version_name + std::string(kTombstoneMark) + RandomHex(kRandomBytes);
}

std::optional<ShardFileName> ParseShardFileName(std::string_view name) {
  ShardFileName parsed;
  size_t mark = name.find(kTemporaryMark);
  if (mark != std::string_view::npos) {
    if (!IsRandomPart(name.substr(mark + kTemporaryMark.size()))) return std::nullopt;
    parsed.temporary = true;
    name = name.substr(0, mark);
  }
  const bool parity = ConsumePrefix(name, kParityPrefix);
  if (!parity && !ConsumePrefix(name, kRankPrefix)) return std::nullopt;
  auto number = ConsumeNumber(name);
  if (!number || *number >= kWorldMax) return std::nullopt;
  parsed.rank = parity ? ParityRank(*number) : Rank{*number};
  if (name == kSealSuffix) {
    parsed.seal = true;
    return parsed;
  }
  if (ConsumePrefix(name, kPartPrefix)) {
    parsed.part = ConsumeNumber(name);
    if (!parsed.part || *parsed.part >= kPartsMax) return std::nullopt;
  }
  if (name != kDataSuffix) return std::nullopt;
  return parsed;
}

std::optional<VersionDirectoryName> ParseVersionDirectoryName(std::string_view name) {
  VersionDirectoryName parsed;
  size_t mark = name.find(kTombstoneMark);
  if (mark != std::string_view::npos) {
    if (!IsRandomPart(name.substr(mark + kTombstoneMark.size()))) return std::nullopt;
    parsed.tombstone = true;
    name = name.substr(0, mark);
  }
  if (!ConsumePrefix(name, kVersionPrefix)) return std::nullopt;
  auto version = ParseVersionId(name);
  if (!version) return std::nullopt;
  parsed.version = *version;
  return parsed;
}

bool IsRootTemporary(std::string_view name) {
  std::string_view marker = name;
  bool is_marker = ConsumePrefix(marker, kMarkerName) && ConsumePrefix(marker, kTemporaryMark);
  std::string_view scratch = name;
  bool is_scratch = ConsumePrefix(scratch, kScratchPrefix);
  return (is_marker && IsRandomPart(marker)) || (is_scratch && IsRandomPart(scratch));
}

}  // namespace holdfast
