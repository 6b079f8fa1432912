#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "base/mutex.h"

namespace holdfast::coord {

/// The self-tests that nodes have to run. The applier replaces them after each batch, and replies
/// to the nodes' reports name them. Threads: any.
class SelfTestOrders {
 public:
  /// `numbers`: by node.
  void Set(const std::map<std::string, uint64_t>& numbers) {
    MutexLock lock(mutex_);
    numbers_ = numbers;
  }
  /// Returns the number of the node's self-test; nullopt: none is due.
  std::optional<uint64_t> Find(const std::string& node) const {
    MutexLock lock(mutex_);
    const auto found = numbers_.find(node);
    return found == numbers_.end() ? std::nullopt : std::optional(found->second);
  }

 private:
  mutable Mutex mutex_;
  std::map<std::string, uint64_t> numbers_ HOLDFAST_GUARDED_BY(mutex_);
};

}  // namespace holdfast::coord
