#include "base/certificates/durable_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>

#include "base/certificates/openssl.h"
#include "base/fd.h"
#include "base/random.h"

namespace holdfast::certificates {
namespace {
Status WriteNew(const std::string& path, std::string_view contents, mode_t mode,
                std::optional<FileOwner> owner) {
  const UniqueFd file(
      ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, mode & 0600));
  if (!file.valid()) return ErrnoStatus(errno, "create " + path);
  if (owner && ::fchown(file.get(), owner->uid, owner->gid) != 0) {
    return ErrnoStatus(errno, "chown " + path);
  }
  // After the owner, and independent of the umask.
  if (::fchmod(file.get(), mode) != 0) return ErrnoStatus(errno, "chmod " + path);
  while (!contents.empty()) {
    const ssize_t written = ::write(file.get(), contents.data(), contents.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return ErrnoStatus(written < 0 ? errno : EIO, "write " + path);
    contents.remove_prefix(static_cast<size_t>(written));
  }
  if (::fsync(file.get()) != 0) return ErrnoStatus(errno, "fsync " + path);
  return Status::Ok();
}

Status SyncDirectoryOf(const std::string& path) {
  const size_t slash = path.rfind('/');
  const std::string folder = slash == std::string::npos ? "." : path.substr(0, slash + 1);
  const UniqueFd directory(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!directory.valid()) return ErrnoStatus(errno, "open " + folder);
  return ::fsync(directory.get()) == 0 ? Status::Ok() : ErrnoStatus(errno, "fsync " + folder);
}
}  // namespace

Status ReplaceFile(const std::string& path, std::string_view contents, mode_t mode,
                   std::optional<FileOwner> owner) {
  const std::string part = path + ".part-" + RandomHex(8);
  Status status = WriteNew(part, contents, mode, owner);
  if (status.ok() && std::rename(part.c_str(), path.c_str()) != 0) {
    status = ErrnoStatus(errno, "rename " + part);
  }
  if (!status.ok()) {
    ::unlink(part.c_str());
    return status;
  }
  return SyncDirectoryOf(path);
}

Result<std::string> ReadSmallFile(const std::string& path) {
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file.valid()) return Fail(ErrnoStatus(errno, "open " + path));
  std::string text(kPemBytesMax + 1, '\0');
  size_t bytes = 0;
  while (bytes < text.size()) {
    const ssize_t got = ::read(file.get(), text.data() + bytes, text.size() - bytes);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return Fail(ErrnoStatus(errno, "read " + path));
    if (got == 0) break;
    bytes += static_cast<size_t>(got);
  }
  if (bytes > kPemBytesMax) return Fail(InvalidArgumentError(path + " has over 1 MiB"));
  text.resize(bytes);
  return text;
}

}  // namespace holdfast::certificates
