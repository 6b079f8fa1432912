#pragma once

#include <string>
#include <utility>
#include <vector>

#include "base/fd.h"
#include "storage/io/block_file.h"

namespace holdfast {

/// The common part of the real variants: all of Directory except file I/O. Every path is resolved
/// by openat2 with RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS, so neither ".." nor a symlink that
/// another process creates leads out of the directory. Thread-safe.
class FdDirectory : public Directory {
 public:
  using Directory::WriteSmallFile;
  Status WriteSmallFile(const std::string& path, std::string_view bytes,
                        const FileAccess& access) override;
  Status SetAccess(const std::string& path, const FileAccess& access) override;
  Result<std::string> ReadSmallFile(const std::string& path, uint64_t bytes_max) override;
  Status Overwrite(const std::string& path, uint64_t offset,
                   std::span<const std::byte> bytes) override;
  Status Rename(const std::string& from, const std::string& to) override;
  Status RemoveFile(const std::string& path) override;
  Status RemoveDirectory(const std::string& path) override;
  Status MakeDirectory(const std::string& path) override;
  Result<std::vector<DirectoryEntry>> List(const std::string& path) override;
  Status SyncDirectory(const std::string& path) override;
  Result<uint64_t> FreeBytes() override;
  const std::string& path() const override { return path_; }

 protected:
  /// `root` is an open directory, `path` its absolute path.
  FdDirectory(UniqueFd root, std::string path) : root_(std::move(root)), path_(std::move(path)) {}

  /// Opens beneath the root. PermissionDenied for a path that leaves the root or contains a
  /// symlink.
  Result<UniqueFd> Open(const std::string& path, int flags, unsigned mode) const;
  /// Opens a regular file with `extra_flags` (O_DIRECT): an existing one for reading, or a new one
  /// for reading and writing.
  Result<UniqueFd> OpenRegular(const std::string& path, OpenMode mode, int extra_flags) const;
  int root_fd() const { return root_.get(); }
  /// Returns the absolute path, e.g. "/data/a/b", for messages.
  std::string Full(const std::string& path) const;

 private:
  struct Entry {
    UniqueFd parent;
    std::string name;
  };
  /// Returns the open parent of `path` and its last component, of any type or missing.
  Result<Entry> OpenParent(const std::string& path) const;

  UniqueFd root_;
  const std::string path_;
};

/// Opens `path`. With `create`, makes it and its missing parents and syncs each into its parent;
/// otherwise it must exist. Sets `absolute` to the path without symlinks.
Result<UniqueFd> OpenRoot(const std::string& path, bool create, std::string& absolute);

// The unqueued file operations of the real variants. `path` is for messages.

/// Calls fallocate; on a file system without it, only sets the size.
Status AllocateFd(int fd, const std::string& path, uint64_t bytes);
Status TruncateFd(int fd, const std::string& path, uint64_t bytes);
Result<uint64_t> SizeOfFd(int fd, const std::string& path);
Status SyncFd(int fd, const std::string& path);

}  // namespace holdfast
