#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "storage/base/status.h"

namespace holdfast::coord {

struct KeyValue {
  std::string key;
  std::string value;
  bool operator==(const KeyValue&) const = default;
};

/// What a transaction expects of a key; without a value: that it is absent.
struct Compare {
  std::string key;
  std::optional<std::string> value;
};

/// What a transaction does to a key; without a value: erase it. Later ones win.
struct Mutation {
  std::string key;
  std::optional<std::string> value;
};

/// Small, ordered, durable key-value storage for the coordinator's decisions. One writer.
/// Threads: calls may come from any thread, one at a time.
class MetaStore {
 public:
  virtual ~MetaStore() = default;
  virtual Result<std::optional<std::string>> Get(std::string_view key) = 0;
  /// All keys that begin with `prefix`, in order.
  virtual Result<std::vector<KeyValue>> Range(std::string_view prefix) = 0;
  /// Applies all of `mutations` if every compare holds, none otherwise. True: applied and durable.
  /// False: a compare did not hold. An error: the outcome is unknown; open the store again and
  /// read.
  virtual Result<bool> Commit(std::span<const Compare> compares,
                              std::span<const Mutation> mutations) = 0;
};

}  // namespace holdfast::coord
