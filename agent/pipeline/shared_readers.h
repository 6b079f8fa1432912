#pragma once

#include <deque>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <tuple>

#include "agent/pipeline/executor.h"
#include "agent/pipeline/index_gatherer.h"
#include "agent/pipeline/version_reader.h"
#include "base/mutex.h"

namespace holdfast::agent {

/// The version readers that the trainers of this node share. Thread-safe.
class SharedReaders final : private PlaceFinder {
 public:
  /// Gives up waiting for the coordinator when `threads` is stopping. The arguments outlive the
  /// object and its readers.
  SharedReaders(const RestoreTools& tools, Executor& threads) : tools_(tools), threads_(threads) {}

  /// Opens a version once for all ranks of the node that read it in the same incarnation.
  /// `world` is the number of ranks that saved it.
  std::shared_ptr<VersionReader> Open(const std::string& job, VersionId version, uint32_t world,
                                      Incarnation incarnation);

  /// Returns the index of a version for a peer if it has been made; otherwise begins to make it and
  /// returns FailedPrecondition.
  Result<std::shared_ptr<const VersionReader::IndexFile>> IndexForPeer(const IndexedVersion& of);

 private:
  using Key = std::tuple<std::string, VersionId, Incarnation>;

  Result<VersionPlaces> FindPlaces(const std::string& job, VersionId version) override;
  bool stopping() override { return threads_.stopping(); }

  const RestoreTools& tools_;
  Executor& threads_;
  Mutex mutex_;
  std::map<Key, std::weak_ptr<VersionReader>> readers_ HOLDFAST_GUARDED_BY(mutex_);
  /// Readers whose index peers requested, the newest last, and those whose index is being made.
  std::deque<std::shared_ptr<VersionReader>> kept_ HOLDFAST_GUARDED_BY(mutex_);
  std::set<VersionReader*> making_ HOLDFAST_GUARDED_BY(mutex_);
};

}  // namespace holdfast::agent
