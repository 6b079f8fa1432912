#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "agent/peers/transport.h"
#include "agent/pipeline/coordinator_link.h"
#include "agent/pipeline/local_shards.h"
#include "agent/pipeline/restore_tools.h"
#include "agent/pipeline/shard_header.h"
#include "base/mutex.h"
#include "storage/format/version_index_builder.h"

// Makes the index of a version (docs/formats/version-index.md). Each node makes the index of its
// own shards, from its own memory or disks. A node that restores joins these.

namespace holdfast::agent {

struct IndexedVersion {
  std::string job;
  VersionId version;
  uint32_t world = 0;
  Incarnation incarnation;  // the job's current one
};

/// A shard and the digest of its committed image; 0: any.
struct IndexedShard {
  Rank rank;
  uint64_t digest = 0;
};

/// Returns the request to a node for the index of its shards, and the shards of such a request. No
/// shards: the index of the complete version.
PeerRequest NodeIndexRequest(const IndexedVersion& of, const std::vector<IndexedShard>& shards);
Result<std::vector<IndexedShard>> ShardsOf(const PeerRequest& request);

/// Returns the index of those of `shards` that this node has intact. Blocks while it reads them.
Result<std::string> MakeNodeIndex(const LocalShards& local, DamageReporter& damage,
                                  const IndexedVersion& of,
                                  const std::vector<IndexedShard>& shards);

/// Gets the index of all shards. The nodes of the version form a tree: a node gets the index from
/// the node above it, so that no node sends it to many, and the root makes it. The root, or a node
/// that gets none, asks each node for the index of its shards. The header of each shard that no
/// node described is read, as with nodes of an older release.
class IndexGatherer {
 public:
  using ReadHeader = std::function<Result<ShardHeader>(Rank, ParsedImage*)>;

  /// The references outlive the object.
  IndexGatherer(const RestoreTools& tools, const VersionPlaces& places, IndexedVersion of,
                ReadHeader read_header, std::function<bool()> stopping)
      : tools_(tools),
        places_(places),
        of_(std::move(of)),
        read_header_(std::move(read_header)),
        stopping_(std::move(stopping)),
        builder_(of_.job, of_.version, of_.world) {}

  /// Blocks.
  Result<std::string> Gather();

 private:
  struct Node {
    std::string name;
    std::string address;  // empty: this node
    std::vector<IndexedShard> shards;
  };
  /// Assigns each shard to a node that has it. The nodes are in order of their names.
  std::vector<Node> Assign() const;
  /// Requests the index from the nodes above this one, the nearest first. Returns nothing when none
  /// has it in time.
  std::optional<std::string> FromAbove(const std::vector<Node>& nodes);
  /// Waits while the node makes the index.
  Result<std::string> AwaitFrom(const Node& node);
  Status Check(const std::string& bytes) const;
  /// Adds what the node describes.
  Status AddNode(const Node& node);
  /// Returns the index of this node's shards.
  Result<std::string> Own(const Node& node);
  Result<std::string> Fetch(const Node& node);
  /// Reads the answer of a node to its end.
  Result<std::string> Receive(const Node& node, const PeerRequest& request);

  const RestoreTools& tools_;
  const VersionPlaces& places_;
  const IndexedVersion of_;
  const ReadHeader read_header_;
  const std::function<bool()> stopping_;
  Mutex mutex_;
  VersionIndexBuilder builder_ HOLDFAST_GUARDED_BY(mutex_);
};

}  // namespace holdfast::agent
