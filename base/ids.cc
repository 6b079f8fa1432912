#include "base/ids.h"

#include <charconv>

namespace holdfast {

std::string ToString(VersionId version) {
  return std::to_string(version.incarnation.value) + "-" + std::to_string(version.step.value);
}

namespace {
/// Accepts only digits without a leading zero, as std::to_string writes them: each name has exactly
/// one spelling.
bool ParseCanonical(std::string_view text, uint64_t* value) {
  if (text.empty() || (text.size() > 1 && text[0] == '0')) return false;
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *value);
  return error == std::errc() && end == text.data() + text.size();
}
}  // namespace

Result<VersionId> ParseVersionId(std::string_view text) {
  VersionId version;
  size_t dash = text.find('-');
  if (dash == std::string_view::npos ||
      !ParseCanonical(text.substr(0, dash), &version.incarnation.value) ||
      !ParseCanonical(text.substr(dash + 1), &version.step.value)) {
    return Fail(InvalidArgumentError("'" + std::string(text.substr(0, 64)) +
                                     "' is not a version: write <incarnation>-<step>, e.g. 3-120"));
  }
  return version;
}

std::string_view ToString(Tier tier) {
  switch (tier) {
    case Tier::kMemory:
      return "memory";
    case Tier::kPeer:
      return "peer";
    case Tier::kDisk:
      return "disk";
    case Tier::kRemote:
      return "remote";
  }
  return "unknown";
}

Result<Tier> ParseTier(std::string_view text) {
  for (Tier tier : {Tier::kMemory, Tier::kPeer, Tier::kDisk, Tier::kRemote}) {
    if (text == ToString(tier)) return tier;
  }
  return Fail(InvalidArgumentError("'" + std::string(text.substr(0, 64)) +
                                   "' is not a tier: use memory, peer, disk or remote"));
}

std::string ShardName(Rank rank) {
  return IsParity(rank) ? "parity-" + std::to_string(ParityNode(rank))
                        : "rank-" + std::to_string(rank.value);
}

std::string ToString(const ShardKey& key) {
  return key.job + "/" + ToString(key.version) + "/" + ShardName(key.rank);
}

Status ValidateName(std::string_view what, std::string_view name) {
  auto refuse = [&](std::string_view why) {
    std::string shown;
    for (char c : name.substr(0, 64)) shown += (c >= 0x20 && c < 0x7f) ? c : '?';
    return InvalidArgumentError(std::string(what) + " '" + shown + "' " + std::string(why) +
                                "; use 1 to 128 of A-Z a-z 0-9 . _ -");
  };
  if (name.empty()) return refuse("is empty");
  if (name.size() > 128) return refuse("is longer than 128 characters");
  if (name == "." || name == "..") return refuse("is a directory reference");
  for (char c : name) {
    bool allowed = (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') ||
                   c == '.' || c == '_' || c == '-';
    if (!allowed) return refuse("has a character that is not allowed");
  }
  return Status::Ok();
}

}  // namespace holdfast
