#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>

#include "coordinator/store/meta_store.h"

namespace holdfast::coord {

/// The durable contents of a MemoryStore: they survive the store, as files survive a process.
using MemoryStoreData = std::map<std::string, std::string, std::less<>>;

/// MetaStore in memory, for tests. It keeps its data in a map that outlives it, and can fail a
/// write with unknown outcome.
class MemoryStore : public MetaStore {
 public:
  enum class Fault { kNone, kFailApplied, kFailNotApplied };

  /// `data` outlives the store. Each Commit calls `fault` once.
  explicit MemoryStore(MemoryStoreData& data, std::function<Fault()> fault = nullptr)
      : data_(data), fault_(std::move(fault)) {}

  Result<std::optional<std::string>> Get(std::string_view key) override;
  Result<std::vector<KeyValue>> Range(std::string_view prefix) override;
  Result<bool> Commit(std::span<const Compare> compares,
                      std::span<const Mutation> mutations) override;

 private:
  MemoryStoreData& data_;
  std::function<Fault()> fault_;
  bool failed_ = false;
};

}  // namespace holdfast::coord
