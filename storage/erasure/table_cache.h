#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "storage/base/mutex.h"
#include "storage/erasure/coding_tables.h"

namespace holdfast {

/// The tables of the patterns used last: making some costs up to a fifth of a millisecond, as
/// much as encoding several units. Bounded; thread-safe.
class TableCache {
 public:
  /// shared_ptr: an eviction may not free tables that another thread computes with.
  using Tables = std::shared_ptr<const CodingTables>;

  /// `capacity` is at least 1.
  explicit TableCache(size_t capacity) : capacity_(capacity) {}

  /// The tables of `pattern`, or null.
  Tables Find(const CodingPattern& pattern) HOLDFAST_EXCLUDES(mutex_);
  /// Keeps `tables`, in place of the ones that were not used for longest when the cache is full.
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
  // Searched from end to end: a hundred entries take less than the lock does.
  std::vector<Entry> entries_ HOLDFAST_GUARDED_BY(mutex_);
};

}  // namespace holdfast
