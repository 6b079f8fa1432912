#include "storage/volume/commits_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <optional>

#include "base/job_name.h"
#include "storage/format/checksum.h"
#include "storage/volume/layout.h"

namespace holdfast {
namespace {
constexpr uint32_t kFormat = 1;
constexpr uint64_t kCommitsBytesMax = 2 << 20;
constexpr std::string_view kCommitsKey = "holdfast_commits = ";
constexpr std::string_view kCommitKey = "commit = ";
constexpr size_t kHexDigits = 16;

/// Removes the text before the next `end` from the front of `text`, and `end`. Returns that text.
std::string_view Take(std::string_view& text, char end) {
  const std::string_view taken = text.substr(0, text.find(end));
  text.remove_prefix(std::min(text.size(), taken.size() + 1));
  return taken;
}

template <typename Number>
std::optional<Number> ParseNumber(std::string_view text, int base) {
  Number number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number, base);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number;
}

std::string Render(const VersionCommit& commit) {
  return fmt::format("{}{} {} {} {} {:016x}\n", kCommitKey, commit.job, ToString(commit.version),
                     ToString(commit.life), commit.world, commit.digest);
}

/// Returns the last line: the checksum of the lines before it.
std::string ChecksumLine(std::string_view lines) {
  return fmt::format("crc32c = {:08x}\n", Crc32c(std::as_bytes(std::span(lines))));
}

/// Parses the line of a commit without its key.
std::optional<VersionCommit> ParseCommit(std::string_view line) {
  VersionCommit commit;
  commit.job = Take(line, ' ');
  const auto version = ParseVersionId(Take(line, ' '));
  const auto life = ParseLifeId(Take(line, ' '));
  const auto world = ParseNumber<uint32_t>(Take(line, ' '), 10);
  const auto digest = ParseNumber<uint64_t>(line.substr(0, kHexDigits), 16);
  if (!ValidateJobName(commit.job).ok() || !version || !life || !world || !digest) return {};
  if (*world == 0 || *world > kWorldMax || *digest == 0) return {};
  commit.version = *version;
  commit.life = *life;
  commit.world = *world;
  commit.digest = *digest;
  return commit;
}
}  // namespace

std::string RenderCommits(const std::vector<VersionCommit>& commits) {
  std::string text = fmt::format("{}{}\n", kCommitsKey, kFormat);
  for (const VersionCommit& commit : commits) text += Render(commit);
  return text + ChecksumLine(text);
}

Result<std::vector<VersionCommit>> ParseCommits(std::string_view text) {
  const size_t checksum_bytes = ChecksumLine("").size();
  std::string_view rest = text.substr(0, text.size() - std::min(text.size(), checksum_bytes));
  const bool sound = text.substr(rest.size()) == ChecksumLine(rest);
  const std::string_view first = Take(rest, '\n');
  if (sound && first.starts_with(kCommitsKey)) {
    const auto format = ParseNumber<uint32_t>(first.substr(kCommitsKey.size()), 10);
    if (format && *format > kFormat) {
      return Fail(UnsupportedError(
          fmt::format("{} has format {}, but this build reads up to {}: use a newer Holdfast",
                      kCommitsName, *format, kFormat)));
    }
  }
  std::vector<VersionCommit> commits;
  while (rest.starts_with(kCommitKey)) {
    const auto commit = ParseCommit(Take(rest, '\n').substr(kCommitKey.size()));
    if (!commit || commits.size() == kCommitsMax) break;
    commits.push_back(*commit);
  }
  // Each value has exactly one spelling, including the checksum.
  if (std::ranges::is_sorted(commits) && RenderCommits(commits) == text) return commits;
  return Fail(DataLossError(std::string(kCommitsName) + " is damaged"));
}

Result<std::vector<VersionCommit>> ReadCommits(Directory& dir) {
  auto text = dir.ReadSmallFile(std::string(kCommitsName), kCommitsBytesMax);
  if (!text && text.error().code() == ErrorCode::kNotFound) return std::vector<VersionCommit>{};
  if (!text) return Fail(text.error());
  return ParseCommits(*text);
}

Status WriteCommits(Directory& dir, const std::vector<VersionCommit>& commits) {
  const std::string temporary = TemporaryName(std::string(kMarkerName));
  Status written = dir.WriteSmallFile(temporary, RenderCommits(commits));
  if (written.ok()) written = dir.Rename(temporary, std::string(kCommitsName));
  if (!written.ok()) {
    static_cast<void>(dir.RemoveFile(temporary));
    return written.WithContext("writing " + dir.path() + "/" + std::string(kCommitsName));
  }
  return dir.SyncDirectory(".");
}

}  // namespace holdfast
