#include "client/cli/shard_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

#include <cerrno>
#include <filesystem>
#include <system_error>

#include "storage/base/config.h"
#include "storage/base/crash_point.h"
#include "storage/base/random.h"
#include "storage/io/block_file.h"

namespace holdfast::cli {

namespace {

namespace fs = std::filesystem;

/// A folder that is not there or not usable is this command's failure, not "not found".
Status AboutTarget(Status status) {
  if (status.code() != ErrorCode::kNotFound) return status;
  return FailedPreconditionError(status.message());
}

/// For openat, fsync and renameat2.
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

/// Without "." and "..", and without a slash at the end, so that its last component has a name.
fs::path Absolute(const std::string& dir) {
  std::error_code error;
  fs::path path = fs::absolute(dir, error).lexically_normal();
  return path.has_filename() ? path : path.parent_path();
}

/// rename() that never replaces, also where the file system cannot do it in one step.
Status RenameNew(int dir, const std::string& from, const std::string& to, const std::string& what) {
  if (::renameat2(dir, from.c_str(), dir, to.c_str(), RENAME_NOREPLACE) == 0) return Status::Ok();
  if (errno != EINVAL && errno != ENOSYS)
    return ErrnoStatus(errno, "cannot give " + what + " its name");
  if (::linkat(dir, from.c_str(), dir, to.c_str(), 0) != 0)
    return ErrnoStatus(errno, "cannot give " + what + " its name");
  ::unlinkat(dir, from.c_str(), 0);
  return Status::Ok();
}

/// A writable shared mapping of a file.
class Mapping {
 public:
  Mapping(int fd, uint64_t bytes) : bytes_(bytes) {
    memory_ = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  }
  ~Mapping() {
    if (valid()) ::munmap(memory_, bytes_);
  }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  bool valid() const { return memory_ != MAP_FAILED; }
  std::span<std::byte> span() const { return {static_cast<std::byte*>(memory_), bytes_}; }

 private:
  void* memory_;
  uint64_t bytes_;
};

}  // namespace

Status RestoreTarget::Check(const std::string& dir, uint64_t bytes) {
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
          fmt::format("{} is not empty (it has {}): nothing is overwritten, choose a new or an "
                      "empty directory",
                      dir, entries->path().filename().string()));
    }
  }
  fs::path existing = path;
  while (!existing.empty() && !fs::exists(existing, error) && existing != existing.root_path())
    existing = existing.parent_path();
  struct statvfs info {};
  if (::statvfs(existing.c_str(), &info) != 0)
    return AboutTarget(ErrnoStatus(errno, "cannot look at " + existing.string()));
  uint64_t free_bytes = static_cast<uint64_t>(info.f_bavail) * info.f_frsize;
  if (free_bytes < bytes) {
    return OutOfSpaceError(fmt::format("{} needs {} and its file system has {} left", dir,
                                       FormatBytes(bytes), FormatBytes(free_bytes)));
  }
  return Status::Ok();
}

Result<RestoreTarget> RestoreTarget::Make(const std::string& dir) {
  fs::path path = Absolute(dir);
  fs::path made;
  for (const fs::path& component : path) {
    made /= component;
    if (::mkdir(made.c_str(), 0777) == 0) {
      HOLDFAST_RETURN_IF_ERROR(SyncFolder(made.parent_path().string()));
    } else if (errno != EEXIST && errno != EISDIR) {
      int why = errno;
      std::error_code error;
      if (fs::is_directory(made, error)) continue;  // a read-only parent of one that is there
      return Fail(AboutTarget(ErrnoStatus(why, "cannot make " + made.string())));
    }
  }
  HOLDFAST_ASSIGN_OR_RETURN(UniqueFd fd, OpenFolder(path.string()));
  return RestoreTarget(path.string(), std::move(fd));
}

Status RestoreTarget::Sync() const {
  if (::fsync(fd()) != 0) return ErrnoStatus(errno, "cannot sync " + dir_);
  return Status::Ok();
}

std::string RestoredName(Rank rank, uint32_t world) {
  return fmt::format("rank-{:05}-of-{:05}.safetensors", rank.value, world);
}

Result<std::unique_ptr<ShardFile>> ShardFile::Create(const RestoreTarget& target,
                                                     const ExpectedShard& expected,
                                                     Progress& progress) {
  std::unique_ptr<ShardFile> shard(
      std::make_unique<ShardFile>(ShardFile(target, expected, progress)));
  shard->temporary_ =
      "." + RestoredName(expected.key.rank, expected.world) + ".tmp." + RandomHex(8);
  std::string path = target.dir() + "/" + shard->temporary_;
  shard->fd_ = UniqueFd(::openat(target.fd(), shard->temporary_.c_str(),
                                 O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0666));
  if (!shard->fd_.valid()) return Fail(AboutTarget(ErrnoStatus(errno, "cannot create " + path)));
  shard->file_ = std::make_unique<TemporaryFile>(path);
  return shard;
}

Status ShardFile::Begin(const ShardSeal& seal) {
  std::string name = ToString(expected_.key);
  if (seal.identity.key() != expected_.key || seal.identity.world != expected_.world)
    return DataLossError(fmt::format("the source of {} holds {} of a world of {} instead", name,
                                     ToString(seal.identity.key()), seal.identity.world));
  if (seal.image_bytes != expected_.image_bytes || seal.digest() != expected_.digest)
    return DataLossError("the source of " + name +
                         " holds other bytes than those that were committed");
  if (seal.image_bytes == 0) return DataLossError(name + " is empty");
  // Space first: a full disk shows here, not in the middle.
  int error = ::posix_fallocate(fd_.get(), 0, static_cast<off_t>(seal.image_bytes));
  return ErrnoStatus(error,
                     "cannot reserve " + FormatBytes(seal.image_bytes) + " in " + target_.dir());
}

Status ShardFile::Chunk(uint64_t offset, std::span<const std::byte> bytes) {
  for (size_t done = 0; done < bytes.size();) {
    ssize_t n = ::pwrite(fd_.get(), bytes.data() + done, bytes.size() - done,
                         static_cast<off_t>(offset + done));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return ErrnoStatus(n < 0 ? errno : EIO, "cannot write " + file_->path());
    done += static_cast<size_t>(n);
  }
  written_ += bytes.size();
  progress_.Add(bytes.size());
  return Status::Ok();
}

Status ShardFile::ReadFrom(const Volume& volume) {
  HOLDFAST_ASSIGN_OR_RETURN(ShardSeal stored, volume.ReadSeal(expected_.key));
  HOLDFAST_RETURN_IF_ERROR(Begin(stored));
  uint64_t padded = (stored.image_bytes + kBlockBytes - 1) / kBlockBytes * kBlockBytes;
  int error = ::posix_fallocate(fd_.get(), 0, static_cast<off_t>(padded));
  HOLDFAST_RETURN_IF_ERROR(ErrnoStatus(error, "cannot reserve space in " + target_.dir()));
  {
    Mapping mapping(fd_.get(), padded);
    if (!mapping.valid()) return ErrnoStatus(errno, "cannot map " + file_->path());
    auto count = [this](uint64_t verified) {
      if (verified <= written_) return;
      progress_.Add(verified - written_);
      written_ = verified;
    };
    HOLDFAST_ASSIGN_OR_RETURN(ShardSeal read,
                              volume.ReadShard(expected_.key, mapping.span(), count));
    if (read.digest() != expected_.digest)
      return DataLossError(ToString(expected_.key) + " changed while it was read");
  }
  if (::ftruncate(fd_.get(), static_cast<off_t>(stored.image_bytes)) != 0)
    return ErrnoStatus(errno, "cannot set the length of " + file_->path());
  return Status::Ok();
}

Status ShardFile::Finish() {
  if (::fsync(fd_.get()) != 0) return ErrnoStatus(errno, "cannot sync " + file_->path());
  fd_.Reset();
  return Status::Ok();
}

Status ShardFile::Publish() {
  std::string name = RestoredName(expected_.key.rank, expected_.world);
  HOLDFAST_CRASH_POINT("cli.before_rename");
  HOLDFAST_RETURN_IF_ERROR(RenameNew(target_.fd(), temporary_, name, target_.dir() + "/" + name));
  HOLDFAST_CRASH_POINT("cli.after_rename");
  file_->Keep();
  file_ = std::make_unique<TemporaryFile>(target_.dir() + "/" + name);
  return Status::Ok();
}

}  // namespace holdfast::cli
