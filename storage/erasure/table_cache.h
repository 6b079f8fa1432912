#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/mutex.h"
#include "storage/erasure/coding_tables.h"

namespace holdfast {

/// An LRU cache of coding tables. Making tables costs up to 0.2 ms, as much as encoding several
/// units. Bounded; thread-safe.
class TableCache {
 public:
  /// Shared, because an eviction must not free tables that another thread uses.
  using Tables = std::shared_ptr<const CodingTables>;

  /// `capacity` is at least 1.
  explicit TableCache(size_t capacity) : capacity_(capacity) {}

  /// Returns the tables of `pattern`, or null.
  Tables Find(const CodingPattern& pattern) HOLDFAST_EXCLUDES(mutex_);
  /// Stores `tables`. A full cache evicts the least recently used entry.
  void Keep(const CodingPattern& pattern, Tables tables) HOLDFAST_EXCLUDES(mutex_);
  size_t size() HOLDFAST_EXCLUDES(mutex_);

 private:
  struct Entry {
    CodingPattern pattern;
    uint64_t last_use = 0;
    Tables tables;
  };

  const size_t capacity_;
  Mutex mutex_;
  uint64_t uses_ HOLDFAST_GUARDED_BY(mutex_) = 0;
  // Searched linearly: a scan of a hundred entries costs less than the lock.
  std::vector<Entry> entries_ HOLDFAST_GUARDED_BY(mutex_);
};

}  // namespace holdfast
