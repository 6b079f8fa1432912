#pragma once

#include <memory>
#include <string>

#include "coordinator/store/meta_store.h"

namespace holdfast::coord {

/// One place where a MetaStore keeps its records. Open() gives the next store over the same
/// records, as after a restart of the coordinator.
class StorePlace {
 public:
  virtual ~StorePlace() = default;
  virtual Result<std::unique_ptr<MetaStore>> Open() = 0;
};

/// `kind`: "rocksdb", "memory", "etcd" (three real members) or "simulated_etcd". nullptr: etcd is
/// not installed.
std::unique_ptr<StorePlace> MakeStorePlace(const std::string& kind, const std::string& dir);

}  // namespace holdfast::coord
