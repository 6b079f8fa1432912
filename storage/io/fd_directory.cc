#include "storage/io/fd_directory.h"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <linux/openat2.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <memory>

#include "base/crash_point.h"
#include "storage/io/path.h"

namespace holdfast {
namespace {
constexpr unsigned kFileMode = 0640;
constexpr unsigned kDirectoryMode = 0750;

Result<UniqueFd> OpenBeneath(int root, const std::string& path, int flags, unsigned mode,
                             const std::string& full) {
  open_how how = {};
  how.flags = static_cast<uint64_t>(flags) | O_CLOEXEC;
  how.mode = (flags & O_CREAT) != 0 ? mode : 0;
  how.resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS;
  while (true) {
    long fd = ::syscall(SYS_openat2, root, path.c_str(), &how, sizeof how);
    if (fd >= 0) return UniqueFd(static_cast<int>(fd));
    if (errno == EINTR || errno == EAGAIN) continue;  // EAGAIN: raced with a rename
    if (errno == ELOOP || errno == EXDEV) {
      return Fail(PermissionDeniedError(fmt::format(
          "{}: the path leaves its directory or contains a symlink; use a real directory", full)));
    }
    if (errno == ENOSYS) {
      return Fail(UnsupportedError(
          fmt::format("{}: openat2 is not available: use Linux 5.6 or later, or a container that "
                      "allows it",
                      full)));
    }
    return Fail(ErrnoStatus(errno, full));
  }
}

Status WriteAll(int fd, std::string_view bytes, const std::string& full) {
  while (!bytes.empty()) {
    ssize_t written = ::write(fd, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return ErrnoStatus(errno, fmt::format("write {}", full));
    if (written == 0)
      return IoErrorError(fmt::format("write {}: the kernel accepted no bytes", full));
    bytes.remove_prefix(static_cast<size_t>(written));
  }
  return Status::Ok();
}

Status ChangeOwner(int fd, uid_t user, gid_t group, const std::string& full) {
  if (::fchown(fd, user, group) == 0) return Status::Ok();
  return ErrnoStatus(errno, fmt::format("set the owner of {}", full));
}

Status SetAccessOfFd(int fd, const FileAccess& access, const std::string& full) {
  if (!access.user && !access.group) return Status::Ok();
  struct stat info = {};
  if (::fstat(fd, &info) != 0) return ErrnoStatus(errno, full);
  const bool directory = S_ISDIR(info.st_mode);
  const uid_t same_user = static_cast<uid_t>(-1);
  const gid_t same_group = static_cast<gid_t>(-1);
  mode_t mode = directory ? 0700 : 0600;
  if (access.group) {
    mode |= directory ? 0050 : 0040;
    HOLDFAST_RETURN_IF_ERROR(ChangeOwner(fd, same_user, *access.group, full));
  }
  // Before the user changes: only the owner of a file may change its mode.
  if (::fchmod(fd, mode) != 0) return ErrnoStatus(errno, fmt::format("set the mode of {}", full));
  if (directory || !access.user) return Status::Ok();
  return ChangeOwner(fd, *access.user, same_group, full);
}
}  // namespace

std::string FdDirectory::Full(const std::string& path) const {
  return path == "." ? path_ : path_ + "/" + path;
}

Result<UniqueFd> FdDirectory::Open(const std::string& path, int flags, unsigned mode) const {
  HOLDFAST_RETURN_IF_ERROR(ValidatePath(path, true));
  return OpenBeneath(root_.get(), path, flags, mode, Full(path));
}

Result<FdDirectory::Entry> FdDirectory::OpenParent(const std::string& path) const {
  HOLDFAST_RETURN_IF_ERROR(ValidatePath(path, false));
  auto [parent, name] = SplitPath(path);
  HOLDFAST_ASSIGN_OR_RETURN(UniqueFd fd, Open(parent, O_PATH | O_DIRECTORY, 0));
  return Entry{std::move(fd), std::move(name)};
}

Result<UniqueFd> FdDirectory::OpenRegular(const std::string& path, OpenMode mode,
                                          int extra_flags) const {
  HOLDFAST_RETURN_IF_ERROR(ValidatePath(path, false));
  if (mode == OpenMode::kCreateExclusive) {
    HOLDFAST_ASSIGN_OR_RETURN(UniqueFd fd,
                              Open(path, O_RDWR | O_CREAT | O_EXCL | extra_flags, kFileMode));
    HOLDFAST_CRASH_POINT("io.after_create");
    return fd;
  }
  // O_NONBLOCK: opening a FIFO must not block until its other end is opened.
  HOLDFAST_ASSIGN_OR_RETURN(UniqueFd fd, Open(path, O_RDONLY | O_NONBLOCK, 0));
  struct stat info = {};
  if (::fstat(fd.get(), &info) != 0) return Fail(ErrnoStatus(errno, Full(path)));
  if (!S_ISREG(info.st_mode)) {
    return Fail(InvalidArgumentError(fmt::format("{} is not a regular file", Full(path))));
  }
  if (::fcntl(fd.get(), F_SETFL, extra_flags) != 0) {
    return Fail(ErrnoStatus(errno, fmt::format("set the flags of {}", Full(path))));
  }
  return fd;
}

Status FdDirectory::SetAccess(const std::string& path, const FileAccess& access) {
  if (!access.user && !access.group) return Status::Ok();
  HOLDFAST_ASSIGN_OR_RETURN(UniqueFd fd, Open(path, O_RDONLY | O_NONBLOCK, 0));
  return SetAccessOfFd(fd.get(), access, Full(path));
}

Status FdDirectory::WriteSmallFile(const std::string& path, std::string_view bytes,
                                   const FileAccess& access) {
  HOLDFAST_ASSIGN_OR_RETURN(UniqueFd fd, OpenRegular(path, OpenMode::kCreateExclusive, 0));
  std::string full = Full(path);
  Status status = SetAccessOfFd(fd.get(), access, full);
  if (status.ok()) status = WriteAll(fd.get(), bytes, full);
  if (status.ok()) status = SyncFd(fd.get(), full);
  if (!status.ok()) {
    // Remove the file, so that the caller can retry under the same name. Report the first error.
    Status removed = RemoveFile(path);
    if (!removed.ok()) return status.WithContext(removed.message());
  }
  return status;
}

Result<std::string> FdDirectory::ReadSmallFile(const std::string& path, uint64_t bytes_max) {
  HOLDFAST_ASSIGN_OR_RETURN(UniqueFd fd, OpenRegular(path, OpenMode::kRead, 0));
  std::string full = Full(path);
  HOLDFAST_ASSIGN_OR_RETURN(uint64_t bytes, SizeOfFd(fd.get(), full));
  if (bytes > bytes_max) {
    return Fail(DataLossError(
        fmt::format("{} has {} bytes; such a file has at most {}", full, bytes, bytes_max)));
  }
  std::string text(bytes, '\0');
  uint64_t have = 0;
  while (have < bytes) {
    ssize_t got = ::pread(fd.get(), text.data() + have, bytes - have, static_cast<off_t>(have));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return Fail(ErrnoStatus(errno, fmt::format("read {}", full)));
    if (got == 0) {
      return Fail(DataLossError(fmt::format("{} ended after {} of {} bytes", full, have, bytes)));
    }
    have += static_cast<uint64_t>(got);
  }
  return text;
}

Status FdDirectory::Overwrite(const std::string& path, uint64_t offset,
                              std::span<const std::byte> bytes) {
  HOLDFAST_RETURN_IF_ERROR(ValidatePath(path, false));
  const std::string full = Full(path);
  // Through the page cache: the range need not consist of complete blocks.
  HOLDFAST_ASSIGN_OR_RETURN(UniqueFd fd, Open(path, O_WRONLY | O_NONBLOCK, 0));
  struct stat info = {};
  if (::fstat(fd.get(), &info) != 0) return ErrnoStatus(errno, full);
  const auto size = S_ISREG(info.st_mode) ? static_cast<uint64_t>(info.st_size) : 0;
  if (offset > size || bytes.size() > size - offset) {
    return InvalidArgumentError(fmt::format("{} is not a regular file with {} bytes at offset {}",
                                            full, bytes.size(), offset));
  }
  for (uint64_t done = 0; done < bytes.size();) {
    const ssize_t written = ::pwrite(fd.get(), bytes.data() + done, bytes.size() - done,
                                     static_cast<off_t>(offset + done));
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return ErrnoStatus(errno, fmt::format("write {}", full));
    if (written == 0)
      return IoErrorError(fmt::format("write {}: the kernel accepted no bytes", full));
    done += static_cast<uint64_t>(written);
  }
  HOLDFAST_RETURN_IF_ERROR(SyncFd(fd.get(), full));
  // Drop the cached pages, so that the next read comes from the device. A hint: failure is
  // harmless.
  ::posix_fadvise(fd.get(), static_cast<off_t>(offset), static_cast<off_t>(bytes.size()),
                  POSIX_FADV_DONTNEED);
  return Status::Ok();
}

Status FdDirectory::Rename(const std::string& from, const std::string& to) {
  HOLDFAST_ASSIGN_OR_RETURN(Entry source, OpenParent(from));
  HOLDFAST_ASSIGN_OR_RETURN(Entry target, OpenParent(to));
  HOLDFAST_CRASH_POINT("io.before_rename");
  if (::renameat(source.parent.get(), source.name.c_str(), target.parent.get(),
                 target.name.c_str()) != 0) {
    return ErrnoStatus(errno, fmt::format("rename {} to {}", Full(from), to));
  }
  HOLDFAST_CRASH_POINT("io.after_rename");
  return Status::Ok();
}

Status FdDirectory::RemoveFile(const std::string& path) {
  HOLDFAST_ASSIGN_OR_RETURN(Entry entry, OpenParent(path));
  if (::unlinkat(entry.parent.get(), entry.name.c_str(), 0) != 0) {
    return ErrnoStatus(errno, fmt::format("remove {}", Full(path)));
  }
  HOLDFAST_CRASH_POINT("io.after_remove");
  return Status::Ok();
}

Status FdDirectory::RemoveDirectory(const std::string& path) {
  HOLDFAST_ASSIGN_OR_RETURN(Entry entry, OpenParent(path));
  if (::unlinkat(entry.parent.get(), entry.name.c_str(), AT_REMOVEDIR) != 0) {
    return ErrnoStatus(errno, fmt::format("remove directory {}", Full(path)));
  }
  HOLDFAST_CRASH_POINT("io.after_remove");
  return Status::Ok();
}

Status FdDirectory::MakeDirectory(const std::string& path) {
  HOLDFAST_ASSIGN_OR_RETURN(Entry entry, OpenParent(path));
  if (::mkdirat(entry.parent.get(), entry.name.c_str(), kDirectoryMode) != 0) {
    return ErrnoStatus(errno, fmt::format("make directory {}", Full(path)));
  }
  HOLDFAST_CRASH_POINT("io.after_make_directory");
  return Status::Ok();
}

Result<std::vector<DirectoryEntry>> FdDirectory::List(const std::string& path) {
  HOLDFAST_ASSIGN_OR_RETURN(UniqueFd fd, Open(path, O_RDONLY | O_DIRECTORY, 0));
  std::unique_ptr<DIR, int (*)(DIR*)> stream(::fdopendir(fd.get()), &::closedir);
  if (stream == nullptr) return Fail(ErrnoStatus(errno, fmt::format("list {}", Full(path))));
  int stream_fd = fd.Release();  // now the stream's
  std::vector<DirectoryEntry> entries;
  while (true) {
    errno = 0;
    dirent* found = ::readdir(stream.get());
    if (found == nullptr) break;
    std::string name = found->d_name;
    if (name == "." || name == "..") continue;
    struct stat info = {};
    if (::fstatat(stream_fd, found->d_name, &info, AT_SYMLINK_NOFOLLOW) != 0) {
      if (errno == ENOENT) continue;  // removed since readdir
      return Fail(ErrnoStatus(errno, fmt::format("list {}/{}", Full(path), name)));
    }
    if (S_ISDIR(info.st_mode)) {
      entries.push_back({std::move(name), true, 0});
    } else if (S_ISREG(info.st_mode)) {
      entries.push_back({std::move(name), false, static_cast<uint64_t>(info.st_size)});
    }
  }
  if (errno != 0) return Fail(ErrnoStatus(errno, fmt::format("list {}", Full(path))));
  std::sort(entries.begin(), entries.end(),
            [](const auto& a, const auto& b) { return a.name < b.name; });
  return entries;
}

Status FdDirectory::SyncDirectory(const std::string& path) {
  HOLDFAST_ASSIGN_OR_RETURN(UniqueFd fd, Open(path, O_RDONLY | O_DIRECTORY, 0));
  HOLDFAST_CRASH_POINT("io.before_sync_directory");
  HOLDFAST_RETURN_IF_ERROR(SyncFd(fd.get(), Full(path)));
  HOLDFAST_CRASH_POINT("io.after_sync_directory");
  return Status::Ok();
}

Result<uint64_t> FdDirectory::FreeBytes() {
  struct statvfs info = {};
  if (::fstatvfs(root_.get(), &info) != 0) {
    return Fail(ErrnoStatus(errno, fmt::format("free space of {}", path_)));
  }
  return static_cast<uint64_t>(info.f_bavail) * info.f_frsize;
}

namespace {
/// Makes the directory `path` in its existing parent and syncs the parent. Does nothing when `path`
/// exists.
Status MakeOneDirectory(const std::string& path) {
  if (::mkdir(path.c_str(), kDirectoryMode) != 0) {
    return errno == EEXIST ? Status::Ok() : ErrnoStatus(errno, fmt::format("make {}", path));
  }
  std::string parent = path.substr(0, path.rfind('/') + 1);
  UniqueFd fd(::open(parent.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd.valid()) return ErrnoStatus(errno, fmt::format("open {}", parent));
  return SyncFd(fd.get(), parent);
}
}  // namespace

Result<UniqueFd> OpenRoot(const std::string& path, bool create, std::string& absolute) {
  if (path.empty()) return Fail(InvalidArgumentError("the directory's path is empty"));
  std::string from_root = path;
  if (path.front() != '/') {
    std::unique_ptr<char, void (*)(void*)> here(::getcwd(nullptr, 0), &::free);
    if (here == nullptr) return Fail(ErrnoStatus(errno, "the current directory"));
    from_root = std::string(here.get()) + "/" + path;
  }
  while (from_root.size() > 1 && from_root.back() == '/') from_root.pop_back();
  // Make only the missing directories: existing parents may be read-only or inaccessible.
  struct stat info = {};
  for (size_t at = 1; create && at != std::string::npos && ::stat(from_root.c_str(), &info) != 0;) {
    at = from_root.find('/', at);
    std::string prefix = from_root.substr(0, at);
    if (at != std::string::npos) ++at;
    if (prefix.empty() || prefix.back() == '/' || ::stat(prefix.c_str(), &info) == 0) continue;
    HOLDFAST_RETURN_IF_ERROR(MakeOneDirectory(prefix));
  }
  UniqueFd fd(::open(from_root.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd.valid()) return Fail(ErrnoStatus(errno, fmt::format("open directory {}", from_root)));
  std::unique_ptr<char, void (*)(void*)> real(::realpath(from_root.c_str(), nullptr), &::free);
  absolute = real != nullptr ? std::string(real.get()) : from_root;
  return fd;
}

Status AllocateFd(int fd, const std::string& path, uint64_t bytes) {
  if (bytes == 0) return Status::Ok();
  while (::fallocate(fd, 0, 0, static_cast<off_t>(bytes)) != 0) {
    if (errno == EINTR) continue;
    if (errno == EOPNOTSUPP) return TruncateFd(fd, path, bytes);
    return ErrnoStatus(errno, fmt::format("reserve {} bytes for {}", bytes, path));
  }
  HOLDFAST_CRASH_POINT("io.after_allocate");
  return Status::Ok();
}

Status TruncateFd(int fd, const std::string& path, uint64_t bytes) {
  while (::ftruncate(fd, static_cast<off_t>(bytes)) != 0) {
    if (errno != EINTR) return ErrnoStatus(errno, fmt::format("truncate {} to {}", path, bytes));
  }
  HOLDFAST_CRASH_POINT("io.after_truncate");
  return Status::Ok();
}

Result<uint64_t> SizeOfFd(int fd, const std::string& path) {
  struct stat info = {};
  if (::fstat(fd, &info) != 0) return Fail(ErrnoStatus(errno, fmt::format("size of {}", path)));
  return static_cast<uint64_t>(info.st_size);
}

Status SyncFd(int fd, const std::string& path) {
  HOLDFAST_CRASH_POINT("io.before_sync");
  if (::fsync(fd) != 0) return ErrnoStatus(errno, fmt::format("fsync {}", path));
  HOLDFAST_CRASH_POINT("io.after_sync");
  return Status::Ok();
}

}  // namespace holdfast
