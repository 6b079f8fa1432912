#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "storage/io/block_file.h"

// An in-memory disk that loses unsynced data in a crash: for tests of everything above storage/io.

namespace holdfast {

/// The operations that are counted and that faults apply to. A queued operation counts once for
/// each piece of SimDiskOptions::operation_bytes, when the piece completes. WriteSmallFile is
/// kCreate, kWrite, kSync; ReadSmallFile is kOpen, kRead; Overwrite is kOpen, kWrite, kSync.
enum class SimOp : uint8_t {
  kCreate,
  kOpen,
  kWrite,
  kRead,
  kAllocate,
  kTruncate,
  kSync,
  kRename,
  kRemoveFile,
  kRemoveDirectory,
  kMakeDirectory,
  kList,
  kSyncDirectory,
};
inline constexpr size_t kSimOpCount = 13;

enum class SimEffect : uint8_t {
  kIoError,     // the operation does nothing and fails; a failed kSync also drops the dirty data
  kOutOfSpace,  // the same with OutOfSpace
  kShort,       // a write or read transfers only its first half; the rest is resumed
  kBitFlip,     // one bit is wrong: at rest after a write, in the returned bytes of a read
  kDelay,       // sleeps `delay_ms` on the disk's clock first
};

/// Applies to operations `op` on the paths that `path` accepts (all paths when it is empty). The
/// first `skip` such operations pass; the fault then applies `times` times.
struct SimFault {
  SimOp op = SimOp::kWrite;
  SimEffect effect = SimEffect::kIoError;
  uint64_t skip = 0;
  uint64_t times = 1;
  std::function<bool(const std::string& path)> path;
  uint64_t delay_ms = 0;
};

/// The effect of a crash on data and directory entries that were not synced.
enum class SimSurvival : uint8_t {
  kNothing,     // all of them are lost
  kEverything,  // all of them survive
  kRandom,      // any subset of writes, torn at 512 bytes; any prefix of a directory's changes
};

struct SimDiskOptions {
  uint64_t seed = 1;
  uint64_t capacity_bytes = UINT64_MAX;
  uint64_t operation_bytes = 1ULL << 20;
  uint32_t queue_depth = 16;
  Clock* clock = nullptr;  // for kDelay; outlives the disk; null: no fault is a delay
};

/// One simulated disk with its file system. Data is durable after BlockFile::Sync. An entry
/// (create, rename, unlink, mkdir) is durable after SyncDirectory of its directory, as in
/// Directory: syncing a file does not persist its entry. After a failed Sync, reads still return
/// the dirty data, but it never reaches the disk, even if a later Sync of another handle succeeds.
/// Queued operations complete in an order drawn from the seed. They copy the caller's bytes only on
/// completion, which reveals callers that change the memory too early. The same seed and calls give
/// the same result. Thread-safe.
class SimDisk {
 public:
  explicit SimDisk(const SimDiskOptions& options = {});
  ~SimDisk();
  SimDisk(const SimDisk&) = delete;
  SimDisk& operator=(const SimDisk&) = delete;

  /// Opens the directory `path` of this disk and makes it durably if it is missing, like
  /// OpenDirectory on a real disk. The disk must outlive the result. Not counted as an operation.
  std::unique_ptr<Directory> Open(const std::string& path = ".");

  /// Simulates a power cut and a restart: the data that survives becomes the durable state.
  /// Directories and files that were opened before fail with IoError from now on and must be opened
  /// again. Ends the effect of CrashAfterOperations; injected faults stay.
  void Crash(SimSurvival survival = SimSurvival::kRandom);
  /// Lets `count` more operations pass, then fails every operation until Crash(). A loop over
  /// `count` from 0 until the work succeeds crashes the work at every step.
  void CrashAfterOperations(uint64_t count);
  /// Returns true when CrashAfterOperations has taken effect and Crash() has not been called since.
  bool crashed() const;

  void Inject(SimFault fault);
  void ClearFaults();

  /// Return the operations so far, in total and of one kind, including those that a fault failed.
  uint64_t operations() const;
  uint64_t count(SimOp op) const;

  uint64_t used_bytes() const;
  void SetCapacity(uint64_t bytes);
  /// Changes a file at rest, like silent corruption; `path` is from the disk's root.
  /// The change is durable if the file was synced. NotFound when the file does not exist.
  Status Damage(const std::string& path,
                const std::function<void(std::vector<std::byte>& bytes)>& change);
  /// Returns the paths of all regular files from the disk's root, in order.
  std::vector<std::string> Files() const;

 private:
  friend class SimDirectory;
  friend class SimBlockFile;
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace holdfast
