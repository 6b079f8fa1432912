#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "storage/base/clock.h"
#include "storage/base/status.h"
#include "storage/io/block_file.h"

// An in-memory disk that loses what was not synced: for tests of everything above storage/io.

namespace holdfast {

/// What is counted and what faults apply to. One queued operation counts once for every piece of
/// SimDiskOptions::operation_bytes, when the piece is done. WriteSmallFile is kCreate, kWrite,
/// kSync; ReadSmallFile is kOpen, kRead; Overwrite is kOpen, kWrite,
/// kSync.
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
  kShort,       // a write or read moves only its first half at first; it is resumed
  kBitFlip,     // one bit is wrong: at rest after a write, in the returned bytes of a read
  kDelay,       // sleeps `delay_ms` on the disk's clock first
};

/// Applies to operations `op` on paths for which `path` holds (all when empty), after letting
/// `skip` of them pass, `times` times.
struct SimFault {
  SimOp op = SimOp::kWrite;
  SimEffect effect = SimEffect::kIoError;
  uint64_t skip = 0;
  uint64_t times = 1;
  std::function<bool(const std::string& path)> path;
  uint64_t delay_ms = 0;
};

/// What a crash does to data and directory entries that were not synced.
enum class SimSurvival : uint8_t {
  kNothing,     // all of it is lost
  kEverything,  // all of it survives
  kRandom,      // any subset of writes, torn at 512 bytes; any prefix of a directory's changes
};

struct SimDiskOptions {
  uint64_t seed = 1;
  uint64_t capacity_bytes = UINT64_MAX;
  uint64_t operation_bytes = 1ULL << 20;
  uint32_t queue_depth = 16;
  Clock* clock = nullptr;  // for kDelay; the real clock when null; outlives the disk
};

/// One simulated disk with its file system. Data is durable after BlockFile::Sync, an entry
/// (create, rename, unlink, mkdir) after SyncDirectory of the directory holding it, as in
/// Directory: syncing a file does not persist its entry. After a failed Sync the dirty data is
/// still read back but never reaches the disk, even if a later Sync of another handle succeeds.
/// Queued operations finish in an order drawn from the seed, and take the caller's bytes only when
/// they finish, so memory changed too early shows. The same seed and calls give the same result.
/// Thread-safe.
class SimDisk {
 public:
  explicit SimDisk(const SimDiskOptions& options = {});
  ~SimDisk();
  SimDisk(const SimDisk&) = delete;
  SimDisk& operator=(const SimDisk&) = delete;

  /// The directory `path` of this disk, made (durably) if absent: what OpenDirectory is to a real
  /// disk. The disk outlives it. Uncounted.
  std::unique_ptr<Directory> Open(const std::string& path = ".");

  /// Cuts the power and restarts: what survives becomes the durable state. Directories and files
  /// opened before fail with IoError from now on; open again. Ends the state of
  /// CrashAfterOperations; faults stay.
  void Crash(SimSurvival survival = SimSurvival::kRandom);
  /// Lets `count` more operations pass, then fails every one until Crash(). A loop over `count`
  /// from 0 until the work succeeds crashes it at every step.
  void CrashAfterOperations(uint64_t count);
  /// True when CrashAfterOperations struck and Crash() was not called since.
  bool crashed() const;

  void Inject(SimFault fault);
  void ClearFaults();

  /// Operations passed so far, in all and of one kind (failed by a fault included).
  uint64_t operations() const;
  uint64_t count(SimOp op) const;

  uint64_t used_bytes() const;
  void SetCapacity(uint64_t bytes);
  /// Changes a file at rest behind its users' back; `path` is from the disk's root. The change is
  /// durable where the file was synced. NotFound if it is not there.
  Status Damage(const std::string& path,
                const std::function<void(std::vector<std::byte>& bytes)>& change);
  /// Paths of all regular files from the disk's root, in order.
  std::vector<std::string> Files() const;

 private:
  friend class SimDirectory;
  friend class SimBlockFile;
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace holdfast
