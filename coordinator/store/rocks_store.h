#pragma once

#include <memory>
#include <string>

#include "coordinator/store/meta_store.h"

namespace rocksdb {
class DB;
}

namespace holdfast::coord {

/// MetaStore in an embedded RocksDB. Each Commit writes one WriteBatch and syncs the log. After a
/// failed Commit every further one fails too, until the store is opened again.
class RocksStore : public MetaStore {
 public:
  /// Opens `dir`, and creates it with its parents if absent. Unavailable if another process has it
  /// open, FailedPrecondition if it has other files, DataLoss if it is damaged.
  static Result<std::unique_ptr<RocksStore>> Open(const std::string& dir);
  /// Opens the store as it is now, even if another process writes to it. Commit() fails. NotFound
  /// if there is no store.
  static Result<std::unique_ptr<RocksStore>> OpenReadOnly(const std::string& dir);
  ~RocksStore() override;

  Result<std::optional<std::string>> Get(std::string_view key) override;
  Result<std::vector<KeyValue>> Range(std::string_view prefix) override;
  Result<bool> Commit(std::span<const Compare> compares,
                      std::span<const Mutation> mutations) override;

 private:
  RocksStore(std::string dir, std::unique_ptr<rocksdb::DB> db);

  std::string dir_;
  std::unique_ptr<rocksdb::DB> db_;
  bool failed_ = false;
};

}  // namespace holdfast::coord
