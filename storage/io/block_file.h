#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "storage/base/status.h"

// Files and directories as durable storage needs them. Three variants behind the same contract
// tests: io_uring with O_DIRECT, posix (where the kernel or file system refuses those), and
// simulated.

namespace holdfast {

/// Alignment of offsets, lengths and memory for direct I/O.
inline constexpr uint64_t kBlockBytes = 4096;

/// One open file. Writes and reads are queued and complete in any order; Drain() waits for all.
/// Offset, length and memory of a queued operation are multiples of kBlockBytes; the final size is
/// set by Truncate. Thread-compatible. Destruction drains and closes; it syncs nothing.
class BlockFile {
 public:
  virtual ~BlockFile() = default;

  /// Queues a write; the bytes must not change until the next Drain() returns. Blocks only while
  /// the queue is full. An earlier operation's error may be returned here and then stays until
  /// Drain().
  virtual Status QueueWrite(uint64_t offset, std::span<const std::byte> bytes) = 0;
  /// Queues a read into `into`. Reading past the end of the file is DataLoss at Drain().
  virtual Status QueueRead(uint64_t offset, std::span<std::byte> into) = 0;
  /// Bytes of queued writes and reads completed so far, counted from the start of the file without
  /// a gap: [0, n) is done when operations were queued in order from 0. For stages that follow a
  /// read.
  virtual uint64_t CompletedPrefix() const = 0;
  /// Waits until CompletedPrefix() >= bytes or an operation failed.
  virtual Status WaitPrefix(uint64_t bytes) = 0;
  /// Waits for everything queued. Short completions were resumed; the first error is returned and
  /// the file must then be abandoned.
  virtual Status Drain() = 0;
  /// Reserves `bytes` on the device (fallocate). OutOfSpace when they are not there.
  virtual Status Allocate(uint64_t bytes) = 0;
  virtual Status Truncate(uint64_t bytes) = 0;
  virtual Result<uint64_t> Size() const = 0;
  /// fsync. After an error the file must be abandoned, never synced again: the kernel has dropped
  /// the dirty pages.
  virtual Status Sync() = 0;
};

enum class OpenMode { kRead, kCreateExclusive };

struct DirectoryEntry {
  std::string name;
  bool is_directory = false;
  uint64_t bytes = 0;  // of a regular file
};

/// One directory; paths are relative to it, stay beneath it (openat2 RESOLVE_BENEATH) and follow no
/// symlinks. Durable means after SyncDirectory of the directory that holds the entry. Thread-safe.
class Directory {
 public:
  virtual ~Directory() = default;

  virtual Result<std::unique_ptr<BlockFile>> OpenFile(const std::string& path, OpenMode mode) = 0;
  /// Whole small files (seals, markers): created exclusively and synced; `path` must not exist.
  virtual Status WriteSmallFile(const std::string& path, std::string_view bytes) = 0;
  virtual Result<std::string> ReadSmallFile(const std::string& path, uint64_t bytes_max) = 0;
  /// Writes over bytes that the file has, at any offset, and syncs it. A crash leaves any mixture
  /// of old and new in that range and nothing else changed. InvalidArgument past the file's end.
  virtual Status Overwrite(const std::string& path, uint64_t offset,
                           std::span<const std::byte> bytes) = 0;
  /// Replaces `to` atomically when it exists.
  virtual Status Rename(const std::string& from, const std::string& to) = 0;
  /// NotFound when it is not there.
  virtual Status RemoveFile(const std::string& path) = 0;
  virtual Status RemoveDirectory(const std::string& path) = 0;
  /// AlreadyExists when it does. The parent must be synced for it to be durable.
  virtual Status MakeDirectory(const std::string& path) = 0;
  /// "." is the directory itself. Entries in name order; neither regular file nor directory:
  /// skipped.
  virtual Result<std::vector<DirectoryEntry>> List(const std::string& path) = 0;
  virtual Status SyncDirectory(const std::string& path) = 0;
  virtual Result<uint64_t> FreeBytes() = 0;
  /// Files opened later may use io_uring fixed buffers for memory in this range (an arena segment):
  /// no page pinning per operation. A hint: failure is logged, and plain buffers are used. The
  /// memory outlives the registration.
  virtual void RegisterMemory(std::span<std::byte> memory) = 0;
  virtual void UnregisterMemory(std::span<std::byte> memory) = 0;
  /// "io_uring+O_DIRECT", "posix", "simulated": for logs and reports.
  virtual std::string Describe() const = 0;
  /// The absolute path, for messages.
  virtual const std::string& path() const = 0;
};

struct IoOptions {
  /// Operations under way a file, and the size a large one is cut into (storage/io/README.md has
  /// the measurements).
  uint32_t queue_depth = 16;
  uint64_t operation_bytes = 4ULL << 20;
  /// false: posix even where io_uring works.
  bool io_uring = true;
  bool direct = true;
};

/// Opens `path` (made if absent, parents included, synced) with the best variant that works there:
/// tries io_uring and O_DIRECT on a scratch file and logs why it falls back.
Result<std::unique_ptr<Directory>> OpenDirectory(const std::string& path, const IoOptions& options);

/// The same, for reading only: nothing is created and no scratch file is written.
Result<std::unique_ptr<Directory>> OpenDirectoryReadOnly(const std::string& path,
                                                         const IoOptions& options);

}  // namespace holdfast
