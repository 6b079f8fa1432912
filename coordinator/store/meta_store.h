#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace holdfast::coord {

struct KeyValue {
  std::string key;
  std::string value;
  bool operator==(const KeyValue&) const = default;
};

/// The value of a key that a transaction expects; without a value: the key must be absent.
struct Compare {
  std::string key;
  std::optional<std::string> value;
};

/// The new value of a key; without a value: erase the key. A later mutation of the same key wins.
struct Mutation {
  std::string key;
  std::optional<std::string> value;
};

/// Small, ordered, durable key-value store for the coordinator's decisions. It has one writer at a
/// time.
/// Threads: any, but only one call at a time.
class MetaStore {
 public:
  virtual ~MetaStore() = default;
  /// Returns the value of a key; nullopt if the key is absent.
  virtual Result<std::optional<std::string>> Get(std::string_view key) = 0;
  /// Returns all entries whose key begins with `prefix`, ordered by key.
  virtual Result<std::vector<KeyValue>> Range(std::string_view prefix) = 0;
  /// Applies all of `mutations` if every compare holds, and none otherwise. True: applied and
  /// durable. False: a compare failed. Error: the outcome is unknown; open the store again and read
  /// it.
  virtual Result<bool> Commit(std::span<const Compare> compares,
                              std::span<const Mutation> mutations) = 0;
  /// Whether this process may still write and serve what it has read. False: its lease on a shared
  /// store has ended, and another process may have the store.
  bool Held() const { return HeldCheck()(); }
  /// Returns a function for Held() that any thread may call, also after the store is closed.
  virtual std::function<bool()> HeldCheck() const {
    return [] { return true; };
  }
};

}  // namespace holdfast::coord
