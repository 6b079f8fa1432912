#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "base/random.h"
#include "base/status.h"
#include "testing/disk/sim_directory.h"

// The model behind SimDisk. Private to the simulated variant.

namespace holdfast {

using SimBytes = std::vector<std::byte>;

/// A change to a file that is in the page cache and not yet on the disk.
struct SimDirty {
  bool resize = false;
  uint64_t offset = 0;  // of a resize: the new size
  SimBytes bytes;
};

struct SimInode {
  bool is_directory = false;
  SimBytes data;     // returned by reads
  SimBytes durable;  // left by a crash, with some of `dirty` applied
  std::vector<SimDirty> dirty;
  uint64_t reserved_bytes = 0;
  uint32_t opens = 0;
  std::map<std::string, uint64_t> entries;  // name → inode
  std::map<std::string, uint64_t> durable_entries;
};

/// One entry of an atomic namespace change: a rename removes one entry and sets another.
struct SimEntryChange {
  uint64_t directory = 0;
  std::string name;
  uint64_t inode = 0;  // 0: the entry is removed
};
using SimNamespaceChange = std::vector<SimEntryChange>;

/// The effects of faults on an operation that does not fail.
struct SimFaultEffects {
  bool shorten = false;
  bool flip = false;
};

/// The complete state, guarded by one lock. Methods are called with `mutex` held.
struct SimDisk::State {
  explicit State(const SimDiskOptions& disk_options);

  /// Counts the operation and applies faults. On an error the caller does nothing and returns the
  /// error. Releases the lock for the time of a delay.
  Result<SimFaultEffects> Begin(uint64_t opened_in, SimOp op, const std::string& path)
      HOLDFAST_REQUIRES(mutex);
  /// Like Begin, for operations that cannot be short or have flipped bits.
  Status Count(uint64_t opened_in, SimOp op, const std::string& path) HOLDFAST_REQUIRES(mutex);
  Status CheckAlive(uint64_t opened_in) const HOLDFAST_REQUIRES(mutex);

  /// Returns the inode of a path from the root; "." is the root.
  Result<uint64_t> Find(const std::string& path) const HOLDFAST_REQUIRES(mutex);
  /// Returns the directory that contains `path`, and the last component.
  Result<std::pair<uint64_t, std::string>> FindParent(const std::string& path) const
      HOLDFAST_REQUIRES(mutex);
  Result<uint64_t> Create(const std::string& path, bool is_directory) HOLDFAST_REQUIRES(mutex);
  Status Rename(const std::string& from, const std::string& to) HOLDFAST_REQUIRES(mutex);
  Status Remove(const std::string& path, bool is_directory) HOLDFAST_REQUIRES(mutex);
  Status SyncDirectory(const std::string& path) HOLDFAST_REQUIRES(mutex);
  /// Makes a directory and its parents, durably.
  Status MakeDurableDirectories(const std::string& path) HOLDFAST_REQUIRES(mutex);

  Status Write(uint64_t inode, uint64_t offset, std::span<const std::byte> bytes)
      HOLDFAST_REQUIRES(mutex);
  Status Resize(uint64_t inode, uint64_t bytes) HOLDFAST_REQUIRES(mutex);
  Status Reserve(uint64_t inode, uint64_t bytes) HOLDFAST_REQUIRES(mutex);
  void Sync(uint64_t inode) HOLDFAST_REQUIRES(mutex);

  void Crash(SimSurvival survival) HOLDFAST_REQUIRES(mutex);
  uint64_t UsedBytes() const HOLDFAST_REQUIRES(mutex);
  void ListFiles(uint64_t directory, const std::string& prefix, std::vector<std::string>& out) const
      HOLDFAST_REQUIRES(mutex);

  mutable Mutex mutex;
  SimDiskOptions options;  // capacity_bytes is guarded by `mutex`; the rest is constant
  Random random HOLDFAST_GUARDED_BY(mutex);
  std::map<uint64_t, SimInode> inodes HOLDFAST_GUARDED_BY(mutex);
  uint64_t next_inode HOLDFAST_GUARDED_BY(mutex) = 2;
  std::vector<SimNamespaceChange> unsynced_changes HOLDFAST_GUARDED_BY(mutex);
  uint64_t generation HOLDFAST_GUARDED_BY(mutex) = 0;  // counts crashes
  bool down HOLDFAST_GUARDED_BY(mutex) = false;
  uint64_t operations_left HOLDFAST_GUARDED_BY(mutex) = UINT64_MAX;
  std::array<uint64_t, kSimOpCount> counts HOLDFAST_GUARDED_BY(mutex) = {};
  std::vector<SimFault> faults HOLDFAST_GUARDED_BY(mutex);

 private:
  void Change(SimNamespaceChange change) HOLDFAST_REQUIRES(mutex);
  void MakeDurable(const SimNamespaceChange& change) HOLDFAST_REQUIRES(mutex);
  void CrashNames(SimSurvival survival) HOLDFAST_REQUIRES(mutex);
  void CrashData(SimInode& inode, SimSurvival survival) HOLDFAST_REQUIRES(mutex);
  Status CheckRoom(const SimInode& inode, uint64_t bytes) const HOLDFAST_REQUIRES(mutex);
  void DropUnreachable() HOLDFAST_REQUIRES(mutex);
};

}  // namespace holdfast
