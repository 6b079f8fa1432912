#pragma once

#include <atomic>
#include <cstddef>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "agent/arena/sealed_file.h"
#include "agent/pipeline/chunk_cache.h"
#include "agent/pipeline/restore_tools.h"
#include "agent/pipeline/shard_header.h"
#include "base/mutex.h"
#include "storage/chunks/source_selector.h"

namespace holdfast::agent {

/// Locates the replicas of a version. Thread-safe.
class PlaceFinder {
 public:
  virtual ~PlaceFinder() = default;
  /// Requests the current locations of the shards from the coordinator. Blocks.
  virtual Result<VersionPlaces> FindPlaces(const std::string& job, VersionId version) = 0;
  /// Returns true when readers must give up.
  virtual bool stopping() = 0;
};

/// Reads the shards of one committed version, chunk by chunk and from any source: this node's
/// memory, another node's, a disk, or the parity group when no replica is left. A chunk that does
/// not match its checksum is read from the next source. Reads nothing before it is needed. Keeps
/// the seals that it has read, but no tensor data. Thread-safe; calls block.
class VersionReader {
 public:
  /// `world` is the number of ranks that saved the version, `incarnation` the job's current one.
  /// `tools` and `finder` outlive the reader.
  VersionReader(const RestoreTools& tools, PlaceFinder& finder, std::string job, VersionId version,
                uint32_t world, Incarnation incarnation)
      : tools_(tools),
        finder_(finder),
        job_(std::move(job)),
        version_(version),
        incarnation_(incarnation),
        cache_(kSharedChunks),
        shards_(world) {}
  ~VersionReader();

  uint32_t world() const { return static_cast<uint32_t>(shards_.size()); }
  /// Reads the header and the extra state of one shard. `image` gets the parsed header when it is
  /// not null.
  Result<ShardHeader> ReadHeader(Rank rank, ParsedImage* image = nullptr);
  /// As ReadHeader(), for a trainer that will read the shard: keeps the chunks that have the header
  /// and the extra state, so that Read() reads them no second time.
  Result<ShardHeader> ReadOwnHeader(Rank rank);
  /// Returns whether this node has the shard, in memory or on disk.
  bool IsNear(Rank rank) const;
  /// Reads the headers and the extra state of all shards, in order of rank. ResourceExhausted when
  /// they are longer than a listing may be.
  Result<std::vector<ShardHeader>> ReadAllHeaders();
  /// The index of the version, which all trainers of the node map, and after it the ranks whose
  /// shards are on this node, as u32.
  struct IndexFile {
    SealedFile file;
    uint64_t index_bytes = 0;
    uint32_t near = 0;
  };
  /// Returns the index of the version. The first call makes it, and the others wait for that.
  Result<std::shared_ptr<const IndexFile>> Index();
  /// Returns the index if it has been made. Does not block.
  std::shared_ptr<const IndexFile> KnownIndex();
  /// Reads the image bytes of a shard from `offset` on. `offset` is a chunk's first byte, and
  /// `into` ends where a chunk ends. While no source has the bytes, requests the locations again
  /// and retries for a minute. `shared`: several trainers of this node may read the same chunks of
  /// other nodes.
  Status Read(Rank rank, uint64_t offset, std::span<std::byte> into, bool shared);

 private:
  /// The memory of a node for chunks that its trainers share: 64 MiB.
  static constexpr uint64_t kSharedChunks = 64;

  struct Shard {
    Mutex mutex;  // held while the seal is read
    std::shared_ptr<const ShardSeal> seal HOLDFAST_GUARDED_BY(mutex);
  };
  struct Located;

  Result<std::shared_ptr<const ShardSeal>> SealOf(Rank rank);
  Status ReadSources(Rank rank, uint64_t offset, std::span<std::byte> into);
  Result<std::shared_ptr<const Located>> located();
  Status FindPlaces();
  /// Calls FindPlaces() after a source has failed, at most once a second, so that the next chunks
  /// are not requested from a lost node first.
  void RefreshPlaces();
  /// Calls `take` with the shard's sources, and again with new ones, until a call succeeds.
  Status TrySources(Rank rank, const std::function<Status(SourceSelector&)>& take);
  SourceList SourcesOf(Rank rank, const std::vector<ShardPlace>& places,
                       const std::vector<std::shared_ptr<const GroupPlan>>& groups);
  Status CheckRank(Rank rank) const;

  const RestoreTools& tools_;
  PlaceFinder& finder_;
  const std::string job_;
  const VersionId version_;
  const Incarnation incarnation_;
  ChunkCache cache_;
  std::deque<Shard> shards_;  // by rank

  Mutex counting_;
  /// The reads in progress on each other node.
  std::map<std::string, std::shared_ptr<std::atomic<uint32_t>>> reads_
      HOLDFAST_GUARDED_BY(counting_);

  Mutex finding_;  // held while the places are requested for the first time
  Mutex mutex_;    // taken last
  std::shared_ptr<const Located> located_ HOLDFAST_GUARDED_BY(mutex_);
  Clock::TimePoint found_at_ HOLDFAST_GUARDED_BY(mutex_);

  Mutex making_index_;  // held while the index is made; taken first
  std::shared_ptr<const IndexFile> index_ HOLDFAST_GUARDED_BY(mutex_);
};

}  // namespace holdfast::agent
