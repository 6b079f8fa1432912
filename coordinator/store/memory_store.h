#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>

#include "coordinator/store/meta_store.h"

namespace holdfast::coord {

/// What survives a crash of the process that had a MemoryStore open.
using MemoryStoreData = std::map<std::string, std::string, std::less<>>;

/// MetaStore in memory, for tests: keeps its data in a map that outlives it and can fail a write
/// with an unknown outcome.
class MemoryStore : public MetaStore {
 public:
  enum class Fault { kNone, kFailApplied, kFailNotApplied };

  /// `data` outlives the store. `fault` is asked once a Commit.
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
