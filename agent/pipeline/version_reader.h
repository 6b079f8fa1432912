#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "agent/api/version_listing.h"
#include "agent/chunks/source_selector.h"
#include "agent/pipeline/restore_tools.h"
#include "base/mutex.h"

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

/// Reads all shards of one committed version, chunk by chunk and from any source: this node's
/// memory, another node's, a disk, or the parity group when no replica is left. A chunk that does
/// not match its checksum is read from the next source. Keeps the shards' seals, headers and extra
/// state in memory, but none of their tensor data. Thread-safe; calls block.
class VersionReader {
 public:
  /// Reads the seals, headers and extra state of all shards. `incarnation` is the job's current
  /// one. `tools` and `finder` outlive the reader.
  static Result<std::shared_ptr<VersionReader>> Open(const RestoreTools& tools, PlaceFinder& finder,
                                                     const std::string& job, VersionId version,
                                                     Incarnation incarnation);
  /// For Open() only.
  VersionReader(const RestoreTools& tools, PlaceFinder& finder, std::string job, VersionId version,
                Incarnation incarnation)
      : tools_(tools),
        finder_(finder),
        job_(std::move(job)),
        version_(version),
        incarnation_(incarnation) {}
  ~VersionReader();

  /// Returns the headers and extra state of all shards, as spans into memory that lives as long as
  /// the reader.
  std::vector<ListedShard> Listing() const;
  /// Reads the image bytes of a shard from `offset` on. `offset` is a chunk's first byte, and
  /// `into` ends where a chunk ends. While no source has the bytes, requests the locations again
  /// and retries for a minute.
  Status Read(Rank rank, uint64_t offset, std::span<std::byte> into);

 private:
  struct Shard {
    ShardSeal seal;
    std::vector<std::byte> header;
    std::vector<std::byte> extras;
  };
  struct Located;

  Status LoadShards();
  Status LoadShard(Rank rank);
  std::shared_ptr<const Located> located();
  Status FindPlaces();
  /// Calls FindPlaces() after a source has failed, at most once a second, so that the next chunks
  /// are not requested from a lost node first.
  void RefreshPlaces();
  /// Calls `take` with the shard's sources, and again with new ones, until a call succeeds.
  Status TrySources(Rank rank, const std::function<Status(SourceSelector&)>& take);
  SourceList SourcesOf(Rank rank, const std::vector<ShardPlace>& places,
                       const std::vector<std::shared_ptr<const GroupPlan>>& groups) const;

  const RestoreTools& tools_;
  PlaceFinder& finder_;
  const std::string job_;
  const VersionId version_;
  const Incarnation incarnation_;
  std::vector<Shard> shards_;  // by rank; constant after Open()

  Mutex mutex_;
  std::shared_ptr<const Located> located_ HOLDFAST_GUARDED_BY(mutex_);
  Clock::TimePoint found_at_ HOLDFAST_GUARDED_BY(mutex_);
};

}  // namespace holdfast::agent
