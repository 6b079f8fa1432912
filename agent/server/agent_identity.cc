#include "agent/server/agent_identity.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <optional>

#include "base/fd.h"
#include "base/job_name.h"
#include "base/log.h"
#include "base/random.h"
#include "storage/format/checksum.h"

namespace holdfast::agent {
namespace {
constexpr uint32_t kFormat = 1;
constexpr size_t kFileBytesMax = 4096;
constexpr mode_t kMode = 0600;
constexpr uint32_t kRandomBits = 24;
// The volume's recovery removes such files after a crash.
constexpr std::string_view kTemporaryPrefix = "/HOLDFAST.tmp.";

template <typename Number>
bool TakeLine(std::string_view& text, std::string_view key, int base, Number* number) {
  const size_t end = text.find('\n');
  if (end == std::string_view::npos || !text.starts_with(key)) return false;
  const std::string_view value = text.substr(key.size(), end - key.size());
  text.remove_prefix(end + 1);
  const auto parsed = std::from_chars(value.data(), value.data() + value.size(), *number, base);
  return parsed.ec == std::errc() && parsed.ptr == value.data() + value.size();
}

/// Returns nullopt when there is no usable file.
std::optional<AgentIdentity> ReadFrom(const std::string& dir) {
  const std::string path = dir + "/" + std::string(kAgentFileName);
  UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
  if (!fd.valid()) return std::nullopt;
  std::string text(kFileBytesMax, '\0');
  const ssize_t got = ::read(fd.get(), text.data(), text.size());
  text.resize(static_cast<size_t>(std::max<ssize_t>(got, 0)));
  auto identity = ParseIdentity(text);
  if (identity) return *identity;
  Log(LogLevel::kWarn, "AgentFileUnusable",
      {Kv("path", path), Kv("error", identity.error().ToString())});
  return std::nullopt;
}

Status WriteAll(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = ::write(fd, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return ErrnoStatus(errno, "write");
    text.remove_prefix(static_cast<size_t>(written));
  }
  return ::fsync(fd) == 0 ? Status::Ok() : ErrnoStatus(errno, "fsync");
}

Status WriteTo(const std::string& dir, const AgentIdentity& identity) {
  const std::string path = dir + "/" + std::string(kAgentFileName);
  const std::string temporary = fmt::format("{}{}{}", dir, kTemporaryPrefix, RandomHex(8));
  UniqueFd fd(
      ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, kMode));
  if (!fd.valid()) return ErrnoStatus(errno, "create " + temporary);
  Status status = WriteAll(fd.get(), RenderIdentity(identity)).WithContext(temporary);
  if (status.ok() && std::rename(temporary.c_str(), path.c_str()) != 0) {
    status = ErrnoStatus(errno, "rename " + temporary);
  }
  if (!status.ok()) {
    ::unlink(temporary.c_str());
    return status;
  }
  UniqueFd folder(::open(dir.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!folder.valid()) return ErrnoStatus(errno, "open " + dir);
  return ::fsync(folder.get()) == 0 ? Status::Ok() : ErrnoStatus(errno, "fsync " + dir);
}

uint64_t RandomNumber() {
  const std::string hex = RandomHex(8);
  uint64_t number = 0;
  std::from_chars(hex.data(), hex.data() + hex.size(), number, 16);
  return number;
}
}  // namespace

uint64_t AgentIdentity::StartNumber() const {
  return starts << kRandomBits | (RandomNumber() & ((uint64_t{1} << kRandomBits) - 1));
}

std::string RenderIdentity(const AgentIdentity& identity) {
  const std::string text = fmt::format("holdfast_agent = {}\nid = {:016x}\nstarts = {}\n", kFormat,
                                       identity.id, identity.starts);
  return text + fmt::format("crc32c = {:08x}\n", Crc32c(std::as_bytes(std::span(text))));
}

Result<AgentIdentity> ParseIdentity(std::string_view text) {
  AgentIdentity identity;
  std::string_view rest = text;
  uint32_t format = 0;
  const bool sound = TakeLine(rest, "holdfast_agent = ", 10, &format) && format == kFormat &&
                     TakeLine(rest, "id = ", 16, &identity.id) &&
                     TakeLine(rest, "starts = ", 10, &identity.starts);
  if (sound && RenderIdentity(identity) == text) return identity;
  return Fail(DataLossError("the agent's identity file is damaged or from a newer release"));
}

Result<AgentIdentity> CountStart(const std::vector<std::string>& data_dirs) {
  AgentIdentity identity;
  for (const std::string& dir : data_dirs) {
    const auto found = ReadFrom(dir);
    if (found && found->starts > identity.starts) identity = *found;
  }
  while (identity.id == 0) identity.id = RandomNumber();
  ++identity.starts;
  Status first_error;
  bool stored = false;
  for (const std::string& dir : data_dirs) {
    Status status = WriteTo(dir, identity);
    stored = stored || status.ok();
    if (first_error.ok()) first_error = std::move(status);
  }
  if (!stored) return Fail(std::move(first_error));
  return identity;
}

}  // namespace holdfast::agent
