#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "agent/peers/transport.h"
#include "agent/pipeline/index_gatherer.h"
#include "base/mutex.h"

namespace holdfast::agent {

/// Bytes of an index that several readers share.
using IndexBytes = std::shared_ptr<const std::string>;

/// The indexes of versions that this node serves to its peers and to its own readers. The index of
/// this node's shards is made once, at the commit or at the first request. The index of a complete
/// version is made for the first reader, on this node or on a peer. Thread-safe.
class NodeIndexes {
 public:
  /// Returns the index of a version if it has been made; otherwise begins to make it and returns
  /// FailedPrecondition. Does not block.
  using Whole = std::function<Result<std::unique_ptr<PeerReader>>(const IndexedVersion& of)>;

  /// The references outlive the object.
  NodeIndexes(const LocalShards& shards, DamageReporter& damage)
      : shards_(shards), damage_(damage) {}
  void SetWhole(Whole whole);

  /// Returns a reader of the requested index. Its first read may block.
  Result<std::unique_ptr<PeerReader>> Open(const PeerRequest& request);
  /// Returns the index of the shards of `wanted` that this node has. Blocks.
  Result<IndexBytes> OfNode(const IndexedVersion& of, const std::vector<IndexedShard>& wanted);
  /// Makes the index of this node's shards of a version that was committed, in place of the one of
  /// an earlier version of the job. `shards` are those on this node's disks, and need not be the
  /// images that were committed. The work therefore reports no damage. Blocks.
  Status MakeForCommit(const IndexedVersion& of, const std::vector<IndexedShard>& shards);

 private:
  struct Made {
    std::string request;  // what it was made for
    IndexBytes bytes;
  };

  const LocalShards& shards_;
  DamageReporter& damage_;
  Mutex making_;                                        // held while an index is made for a request
  std::deque<Made> made_ HOLDFAST_GUARDED_BY(making_);  // the newest last
  Mutex mutex_;
  Whole whole_ HOLDFAST_GUARDED_BY(mutex_);
  std::map<std::string, Made> committed_ HOLDFAST_GUARDED_BY(mutex_);  // by job
};

}  // namespace holdfast::agent
