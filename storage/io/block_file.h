#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"

// Files and directories for durable storage. Three variants pass the same contract tests: io_uring
// with O_DIRECT, posix (where the kernel or file system refuses those), and simulated.

namespace holdfast {

/// Alignment of offsets, lengths and memory for direct I/O.
inline constexpr uint64_t kBlockBytes = 4096;

/// One open file. Writes and reads are queued and complete in any order; Drain() waits for all of
/// them. The offset, length and memory address of a queued operation are multiples of kBlockBytes;
/// Truncate sets the final size. Thread-compatible. The destructor drains and closes the file but
/// does not sync it.
class BlockFile {
 public:
  virtual ~BlockFile() = default;

  /// Queues a write; the bytes must not change until the next Drain() returns. Blocks only while
  /// the queue is full. QueueWrite may return the error of an earlier operation, which Drain()
  /// returns too.
  virtual Status QueueWrite(uint64_t offset, std::span<const std::byte> bytes) = 0;
  /// Queues a read into `into`. Reading past the end of the file is DataLoss at Drain().
  virtual Status QueueRead(uint64_t offset, std::span<std::byte> into) = 0;
  /// Returns the largest n for which queued writes and reads of all bytes [0, n) of the file have
  /// completed. Useful when operations are queued in order from offset 0, for callers that process
  /// bytes while a read continues.
  virtual uint64_t CompletedPrefix() const = 0;
  /// Waits until CompletedPrefix() >= bytes or an operation has failed.
  virtual Status WaitPrefix(uint64_t bytes) = 0;
  /// Waits for all queued operations; short completions are resumed. Returns the first error; the
  /// file must then be abandoned.
  virtual Status Drain() = 0;
  /// Reserves `bytes` on the device (fallocate). OutOfSpace when the device has too few free bytes.
  virtual Status Allocate(uint64_t bytes) = 0;
  virtual Status Truncate(uint64_t bytes) = 0;
  virtual Result<uint64_t> Size() const = 0;
  /// fsync. After an error the file must be abandoned, never synced again: the kernel has dropped
  /// the dirty pages.
  virtual Status Sync() = 0;
};

enum class OpenMode { kRead, kCreateExclusive };

/// The owner of a file, and the group that reads it. Only the owner writes.
struct FileAccess {
  std::optional<uid_t> user;   // the owner; absent: the user of this process
  std::optional<gid_t> group;  // may read; absent: no group may
};

struct DirectoryEntry {
  std::string name;
  bool is_directory = false;
  uint64_t bytes = 0;  // of a regular file
};

/// One directory. Paths are relative to it, stay beneath it (openat2 RESOLVE_BENEATH) and follow no
/// symlinks. A change to an entry is durable after SyncDirectory of the directory that contains the
/// entry. Thread-safe.
class Directory {
 public:
  virtual ~Directory() = default;

  virtual Result<std::unique_ptr<BlockFile>> OpenFile(const std::string& path, OpenMode mode) = 0;
  /// Creates a small file (a seal, a marker) with `bytes` and syncs it. AlreadyExists when `path`
  /// exists. When the write or the sync fails, the file is removed again.
  /// `access` is set before the sync, as SetAccess does.
  virtual Status WriteSmallFile(const std::string& path, std::string_view bytes,
                                const FileAccess& access) = 0;
  Status WriteSmallFile(const std::string& path, std::string_view bytes) {
    return WriteSmallFile(path, bytes, FileAccess{});
  }
  /// Sets the user and the group of a file, and mode 0600, or 0640 with a group. A directory keeps
  /// its user: 0700, or 0750 with a group. Durable after the next sync of the file itself. Without
  /// a user and a group: does nothing. PermissionDenied, Unsupported or InvalidArgument when the
  /// kernel or the file system refuses; the file then keeps its user.
  virtual Status SetAccess(const std::string& path, const FileAccess& access) = 0;
  /// Reads a complete small file. DataLoss when it has more than `bytes_max` bytes.
  virtual Result<std::string> ReadSmallFile(const std::string& path, uint64_t bytes_max) = 0;
  /// Overwrites existing bytes of a file, at any offset, and syncs it. A crash leaves any mixture
  /// of old and new bytes in that range and changes nothing else. InvalidArgument past the file's
  /// end.
  virtual Status Overwrite(const std::string& path, uint64_t offset,
                           std::span<const std::byte> bytes) = 0;
  /// Replaces `to` atomically when it exists.
  virtual Status Rename(const std::string& from, const std::string& to) = 0;
  /// NotFound when `path` does not exist.
  virtual Status RemoveFile(const std::string& path) = 0;
  virtual Status RemoveDirectory(const std::string& path) = 0;
  /// AlreadyExists when `path` exists. The new directory is durable once its parent is synced.
  virtual Status MakeDirectory(const std::string& path) = 0;
  /// Returns the regular files and directories in `path`, in name order; "." is the directory
  /// itself. Other entries are skipped.
  virtual Result<std::vector<DirectoryEntry>> List(const std::string& path) = 0;
  virtual Status SyncDirectory(const std::string& path) = 0;
  virtual Result<uint64_t> FreeBytes() = 0;
  /// Lets files that are opened later use io_uring fixed buffers for memory in this range (an arena
  /// segment), which avoids page pinning per operation. A hint: a failure is logged, and plain
  /// buffers are used. The memory must outlive the registration.
  virtual void RegisterMemory(std::span<std::byte> memory) = 0;
  virtual void UnregisterMemory(std::span<std::byte> memory) = 0;
  /// Returns "io_uring+O_DIRECT", "posix" or "simulated", for logs and reports.
  virtual std::string Describe() const = 0;
  /// Returns why the kernel refuses io_uring. OK when the kernel accepts it, or when the options do
  /// not request it.
  virtual Status io_uring_refusal() const { return Status::Ok(); }
  /// Returns the absolute path, for messages.
  virtual const std::string& path() const = 0;
};

struct IoOptions {
  /// The operations in flight per file, and the size of the pieces of a large operation
  /// (storage/io/README.md has the measurements).
  uint32_t queue_depth = 16;
  uint64_t operation_bytes = 4ULL << 20;
  /// False: use posix even where io_uring works.
  bool io_uring = true;
  bool direct = true;
};

/// Opens `path` with the best variant that works there. Creates and syncs the directory and its
/// parents where they are missing. Tries io_uring and O_DIRECT on a scratch file and logs why it
/// falls back.
Result<std::unique_ptr<Directory>> OpenDirectory(const std::string& path, const IoOptions& options);

/// Like OpenDirectory, but for reading only: creates nothing and writes no scratch file.
Result<std::unique_ptr<Directory>> OpenDirectoryReadOnly(const std::string& path,
                                                         const IoOptions& options);

}  // namespace holdfast
