#include "storage/erasure/table_cache.h"

#include <algorithm>
#include <utility>

namespace holdfast {

TableCache::Tables TableCache::Find(const CodingPattern& pattern) {
  MutexLock lock(mutex_);
  for (Entry& entry : entries_) {
    if (entry.pattern == pattern) {
      entry.last_use = ++uses_;
      return entry.tables;
    }
  }
  return nullptr;
}

void TableCache::Keep(const CodingPattern& pattern, Tables tables) {
  MutexLock lock(mutex_);
  Entry fresh{pattern, ++uses_, std::move(tables)};
  // Two threads that missed at the same time both store the same pattern.
  auto same = std::find_if(entries_.begin(), entries_.end(),
                           [&](const Entry& entry) { return entry.pattern == pattern; });
  if (same != entries_.end()) {
    *same = std::move(fresh);
  } else if (entries_.size() < capacity_) {
    entries_.push_back(std::move(fresh));
  } else {
    *std::min_element(entries_.begin(), entries_.end(), [](const Entry& a, const Entry& b) {
      return a.last_use < b.last_use;
    }) = std::move(fresh);
  }
}

size_t TableCache::size() {
  MutexLock lock(mutex_);
  return entries_.size();
}

}  // namespace holdfast
