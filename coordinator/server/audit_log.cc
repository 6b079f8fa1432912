#include "coordinator/server/audit_log.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/log.h"

namespace holdfast::coord {
namespace {
constexpr size_t kWhatBytesMax = 8 << 10;

using Json = nlohmann::json;

/// Returns `text` as JSON if it is valid and short, or else as a string that is cut.
Json What(const std::string& text) {
  if (text.size() > kWhatBytesMax) return text.substr(0, kWhatBytesMax) + "… (cut)";
  Json parsed = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  return parsed.is_discarded() ? Json(text) : parsed;
}

uint64_t NumberOf(const Json& record, const char* key) {
  const auto found = record.find(key);
  return found != record.end() && found->is_number_unsigned() ? found->get<uint64_t>() : 0;
}

/// Parses a line; a value that is no object for a line that is no record.
Json ParseLine(const std::string& line) {
  return Json::parse(line, nullptr, /*allow_exceptions=*/false);
}

Status SyncFolderOf(const std::string& path) {
  const std::string folder = std::filesystem::path(path).parent_path().string();
  const UniqueFd fd(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd.valid() || ::fsync(fd.get()) != 0) return ErrnoStatus(errno, "sync " + folder);
  return Status::Ok();
}

Result<uint64_t> SizeOf(int fd, const std::string& path) {
  struct stat file {};
  if (::fstat(fd, &file) != 0) return Fail(ErrnoStatus(errno, "stat " + path));
  return static_cast<uint64_t>(file.st_size);
}
}  // namespace

Result<std::unique_ptr<AuditLog>> AuditLog::Open(AuditLogOptions options, const Clock& clock) {
  std::error_code error;
  std::filesystem::create_directories(std::filesystem::path(options.path).parent_path(), error);
  if (error) return Fail(ErrnoStatus(error.value(), "mkdir for " + options.path));
  std::unique_ptr<AuditLog> log(new AuditLog(std::move(options), clock));
  MutexLock lock(log->mutex_);
  // The newest file may be empty after a rotation: then the one before has the last number.
  for (uint32_t age = log->options_.files_max; age-- > 1;) {
    std::ifstream file(log->NameOf(age));
    for (std::string line; std::getline(file, line);) {
      log->last_ = std::max(log->last_, NumberOf(ParseLine(line), "number"));
    }
  }
  HOLDFAST_RETURN_IF_ERROR(log->OpenFile());
  return log;
}

std::string AuditLog::NameOf(uint32_t age) const {
  return age == 0 ? options_.path : fmt::format("{}.{}", options_.path, age);
}

Status AuditLog::OpenFile() {
  file_ = UniqueFd(
      ::open(options_.path.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!file_.valid()) return ErrnoStatus(errno, "open " + options_.path);
  Status status = Recover();
  if (status.ok()) status = SyncFolderOf(options_.path);
  if (!status.ok()) file_.Reset();
  return status;
}

Status AuditLog::Recover() {
  std::ifstream file(options_.path, std::ios::binary);
  uint64_t whole = 0;
  for (std::string line; std::getline(file, line) && !file.eof();) {
    whole += line.size() + 1;
    last_ = std::max(last_, NumberOf(ParseLine(line), "number"));
  }
  HOLDFAST_ASSIGN_OR_RETURN(bytes_, SizeOf(file_.get(), options_.path));
  if (bytes_ == whole) return Status::Ok();
  Log(LogLevel::kWarn, "AuditRecordTorn",
      {Kv("path", options_.path), Kv("removed_bytes", bytes_ - whole)});
  if (::ftruncate(file_.get(), static_cast<off_t>(whole)) != 0) {
    return ErrnoStatus(errno, "truncate " + options_.path);
  }
  bytes_ = whole;
  return Status::Ok();
}

Status AuditLog::Rotate() {
  for (uint32_t age = options_.files_max; age-- > 1;) {
    const std::string from = NameOf(age - 1);
    if (::rename(from.c_str(), NameOf(age).c_str()) != 0 && errno != ENOENT) {
      return ErrnoStatus(errno, "rename " + from);
    }
  }
  return OpenFile();
}

Status AuditLog::Write(const std::string& line) {
  if (!file_.valid()) HOLDFAST_RETURN_IF_ERROR(OpenFile());
  if (bytes_ != 0 && bytes_ + line.size() > options_.file_bytes_max) {
    HOLDFAST_RETURN_IF_ERROR(Rotate());
  }
  const ssize_t written = ::write(file_.get(), line.data(), line.size());
  Status status;
  if (written != static_cast<ssize_t>(line.size())) {
    status = written < 0 ? ErrnoStatus(errno, "write " + options_.path)
                         : OutOfSpaceError("write " + options_.path + ": no space left");
  } else if (::fsync(file_.get()) != 0) {
    status = ErrnoStatus(errno, "sync " + options_.path);
  }
  if (status.ok()) {
    bytes_ += line.size();
    return status;
  }
  // The next record opens the file again: after a failed sync its cached pages are not reliable.
  if (::ftruncate(file_.get(), static_cast<off_t>(bytes_)) != 0) {
    status = status.WithContext("the record may remain");
  }
  file_.Reset();
  return status;
}

Result<uint64_t> AuditLog::Append(const AuditRecord& record) {
  MutexLock lock(mutex_);
  const int64_t now = clock_.WallNanos();
  nlohmann::ordered_json line = {{"number", last_ + 1},
                                 {"at", FormatUtc(now)},
                                 {"wall_nanos", now},
                                 {"method", record.method},
                                 {"outcome", record.outcome}};
  if (record.begun != 0) {
    line["begun"] = record.begun;
  } else {
    line["who"] = record.who;
    line["from"] = record.from;
    line["what"] = What(record.what);
  }
  // Names of foreign systems may have invalid UTF-8.
  HOLDFAST_RETURN_IF_ERROR(Write(line.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n"));
  return ++last_;
}

Result<AuditPage> AuditLog::Read(int64_t since_wall_nanos, uint64_t after, size_t bytes_max) const {
  MutexLock lock(mutex_);
  AuditPage page;
  size_t bytes = 0;
  for (uint32_t age = options_.files_max; age-- > 0;) {
    std::ifstream file(NameOf(age), std::ios::binary);
    for (std::string line; std::getline(file, line) && !file.eof();) {
      const Json record = ParseLine(line);
      const uint64_t number = NumberOf(record, "number");
      if (number <= after) continue;
      const auto at = record.find("wall_nanos");
      if (at == record.end() || !at->is_number() || at->get<int64_t>() < since_wall_nanos) continue;
      bytes += line.size();
      if (bytes > bytes_max && !page.lines.empty()) {
        page.more = true;
        return page;
      }
      page.last = number;
      page.lines.push_back(line);
    }
  }
  return page;
}

}  // namespace holdfast::coord
