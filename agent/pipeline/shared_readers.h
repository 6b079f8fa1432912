#pragma once

#include <map>
#include <memory>
#include <string>
#include <tuple>

#include "agent/pipeline/executor.h"
#include "agent/pipeline/version_reader.h"
#include "base/mutex.h"

namespace holdfast::agent {

/// The version readers that the trainers of this node share. Thread-safe; calls block. `mutex_` is
/// held only while entries are added or removed. The mutex of an entry is held while its reader is
/// opened. No thread holds both.
class SharedReaders final : private PlaceFinder {
 public:
  /// Gives up waiting for the coordinator when `threads` is stopping. The arguments outlive the
  /// object and its readers.
  SharedReaders(const RestoreTools& tools, Executor& threads) : tools_(tools), threads_(threads) {}

  /// Opens a version once for all ranks of the node that read it in the same incarnation.
  Result<std::shared_ptr<VersionReader>> Open(const std::string& job, VersionId version,
                                              Incarnation incarnation);

 private:
  using Key = std::tuple<std::string, VersionId, Incarnation>;
  struct Entry {
    uint32_t openers = 0;  // calls of Open() that use the entry; guarded by SharedReaders::mutex_
    Mutex mutex;           // held while the reader is opened
    std::weak_ptr<VersionReader> reader;
  };

  Result<VersionPlaces> FindPlaces(const std::string& job, VersionId version) override;
  bool stopping() override { return threads_.stopping(); }
  Entry& Acquire(const Key& key);
  void Release(Entry& entry);

  const RestoreTools& tools_;
  Executor& threads_;
  Mutex mutex_;
  std::map<Key, Entry> entries_ HOLDFAST_GUARDED_BY(mutex_);
};

}  // namespace holdfast::agent
