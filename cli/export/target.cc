#include "cli/export/target.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

#include <cerrno>
#include <filesystem>
#include <system_error>

#include "base/config.h"
#include "base/crash_point.h"
#include "base/random.h"

namespace holdfast::cli {

namespace {

namespace fs = std::filesystem;

/// Turns NotFound into FailedPrecondition: exit code 4 is for jobs, versions, nodes and input
/// files.
Status AboutTarget(Status status) {
  if (status.code() != ErrorCode::kNotFound) return status;
  return FailedPreconditionError(status.message());
}

/// Opens a folder for openat, fsync and renameat2.
Result<UniqueFd> OpenFolder(const std::string& dir) {
  UniqueFd fd(::open(dir.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd.valid()) return Fail(AboutTarget(ErrnoStatus(errno, "cannot open " + dir)));
  return fd;
}

/// Makes the names in `dir` durable.
Status SyncFolder(const std::string& dir) {
  HOLDFAST_ASSIGN_OR_RETURN(UniqueFd fd, OpenFolder(dir));
  if (::fsync(fd.get()) != 0) return ErrnoStatus(errno, "cannot sync " + dir);
  return Status::Ok();
}

/// Returns the absolute path without ".", ".." and a slash at the end, so that its last component
/// has a name.
fs::path Absolute(const std::string& dir) {
  std::error_code error;
  fs::path path = fs::absolute(dir, error).lexically_normal();
  return path.has_filename() ? path : path.parent_path();
}

/// Renames without ever replacing a file, also on file systems without RENAME_NOREPLACE.
Status RenameNew(int dir, const std::string& from, const std::string& to, const std::string& what) {
  if (::renameat2(dir, from.c_str(), dir, to.c_str(), RENAME_NOREPLACE) == 0) return Status::Ok();
  if (errno != EINVAL && errno != ENOSYS)
    return ErrnoStatus(errno, "cannot rename a file to " + what);
  if (::linkat(dir, from.c_str(), dir, to.c_str(), 0) != 0)
    return ErrnoStatus(errno, "cannot rename a file to " + what);
  ::unlinkat(dir, from.c_str(), 0);
  return Status::Ok();
}

}  // namespace

Status TargetFolder::Check(const std::string& dir, uint64_t bytes) {
  std::error_code error;
  fs::path path = Absolute(dir);
  fs::file_status status = fs::symlink_status(path, error);
  if (fs::exists(status)) {
    if (!fs::is_directory(path, error))
      return AlreadyExistsError(dir + " exists and is not a directory: choose another --to");
    fs::directory_iterator entries(path, error);
    if (error) return AboutTarget(ErrnoStatus(error.value(), "cannot list " + dir));
    if (entries != fs::directory_iterator()) {
      return AlreadyExistsError(
          fmt::format("{} is not empty (it contains {}): choose a new or an empty directory, since "
                      "this command overwrites no file",
                      dir, entries->path().filename().string()));
    }
  }
  fs::path existing = path;
  while (!existing.empty() && !fs::exists(existing, error) && existing != existing.root_path())
    existing = existing.parent_path();
  struct statvfs info {};
  if (::statvfs(existing.c_str(), &info) != 0)
    return AboutTarget(ErrnoStatus(errno, "cannot read the free space of " + existing.string()));
  uint64_t free_bytes = static_cast<uint64_t>(info.f_bavail) * info.f_frsize;
  if (free_bytes < bytes) {
    return OutOfSpaceError(fmt::format("{} needs {}, but its file system has {} left", dir,
                                       FormatBytes(bytes), FormatBytes(free_bytes)));
  }
  return Status::Ok();
}

Result<TargetFolder> TargetFolder::Make(const std::string& dir) {
  fs::path path = Absolute(dir);
  fs::path made;
  for (const fs::path& component : path) {
    made /= component;
    if (::mkdir(made.c_str(), 0777) == 0) {
      HOLDFAST_RETURN_IF_ERROR(SyncFolder(made.parent_path().string()));
    } else if (errno != EEXIST && errno != EISDIR) {
      int why = errno;
      std::error_code error;
      if (fs::is_directory(made, error)) continue;  // exists already, in a read-only parent
      return Fail(AboutTarget(ErrnoStatus(why, "cannot create " + made.string())));
    }
  }
  HOLDFAST_ASSIGN_OR_RETURN(UniqueFd fd, OpenFolder(path.string()));
  return TargetFolder(path.string(), std::move(fd));
}

Status TargetFolder::Sync() const {
  if (::fsync(fd()) != 0) return ErrnoStatus(errno, "cannot sync " + dir_);
  return Status::Ok();
}

Result<TargetFile> TargetFile::Create(const TargetFolder& target, const std::string& name) {
  TargetFile made(target, name);
  made.temporary_ = "." + name + ".tmp." + RandomHex(8);
  std::string path = target.dir() + "/" + made.temporary_;
  made.fd_ = UniqueFd(::openat(target.fd(), made.temporary_.c_str(),
                               O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0666));
  if (!made.fd_.valid()) return Fail(AboutTarget(ErrnoStatus(errno, "cannot create " + path)));
  made.file_ = std::make_unique<TemporaryFile>(path);
  return made;
}

Status TargetFile::Reserve(uint64_t bytes) const {
  if (bytes == 0) return Status::Ok();
  int error = ::posix_fallocate(fd_.get(), 0, static_cast<off_t>(bytes));
  return ErrnoStatus(error, "cannot reserve " + FormatBytes(bytes) + " in " + target_->dir());
}

Status TargetFile::Write(uint64_t offset, std::span<const std::byte> bytes) const {
  for (size_t done = 0; done < bytes.size();) {
    ssize_t n = ::pwrite(fd_.get(), bytes.data() + done, bytes.size() - done,
                         static_cast<off_t>(offset + done));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return ErrnoStatus(n < 0 ? errno : EIO, "cannot write " + path());
    done += static_cast<size_t>(n);
  }
  return Status::Ok();
}

Status TargetFile::Finish() {
  if (::fsync(fd_.get()) != 0) return ErrnoStatus(errno, "cannot sync " + path());
  fd_.Reset();
  return Status::Ok();
}

Status TargetFile::Publish() {
  const std::string final_path = target_->dir() + "/" + name_;
  HOLDFAST_CRASH_POINT("cli.before_rename");
  HOLDFAST_RETURN_IF_ERROR(RenameNew(target_->fd(), temporary_, name_, final_path));
  HOLDFAST_CRASH_POINT("cli.after_rename");
  file_->Keep();
  file_ = std::make_unique<TemporaryFile>(final_path);
  return Status::Ok();
}

Status PublishAll(const TargetFolder& target, std::span<TargetFile* const> files) {
  for (TargetFile* file : files) HOLDFAST_RETURN_IF_ERROR(file->Publish());
  HOLDFAST_RETURN_IF_ERROR(target.Sync());
  for (TargetFile* file : files) file->Keep();
  return Status::Ok();
}

}  // namespace holdfast::cli
