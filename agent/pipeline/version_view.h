#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "agent/api/view_listing.h"
#include "agent/pipeline/restore.h"
#include "storage/base/mutex.h"

namespace holdfast::agent {

/// What a view works with; all outlives it. Thread-safe members only.
struct ViewTools {
  const RestoreTools& restore;
  /// Where the shards are now, by the coordinator's word. Blocks.
  std::function<Result<VersionPlaces>(const std::string& job, VersionId version)> find_places;
  std::function<bool()> stopping;
};

/// One committed version, all of whose shards can be read from here, by chunks and from wherever
/// they lie: this node's memory, another's, a disk, or decoded by their parity group where there is
/// no copy any more. What does not match its checksum is taken from the next place. It keeps the
/// shards' seals, headers and extra state, and of their data nothing. Thread-safe; its calls block.
class VersionView {
 public:
  /// Reads what it keeps, of all shards. `incarnation` is the job's current one.
  static Result<std::shared_ptr<VersionView>> Open(const ViewTools& tools, const std::string& job,
                                                   VersionId version, Incarnation incarnation);
  /// For Open().
  VersionView(const ViewTools& tools, std::string job, VersionId version, Incarnation incarnation)
      : tools_(tools), job_(std::move(job)), version_(version), incarnation_(incarnation) {}
  ~VersionView();

  /// Spans of memory that lives as long as this.
  std::vector<ListedShard> Listing() const;
  /// The image bytes of a shard from `offset` on, a chunk's first; `into` ends where a chunk does.
  /// When no place has them the coordinator is asked again, and all is tried for a minute.
  Status Read(Rank rank, uint64_t offset, std::span<std::byte> into);

 private:
  struct Shard {
    ShardSeal seal;
    std::vector<std::byte> header;
    std::vector<std::byte> extras;
  };
  class Source;

  Status LoadShards();
  Status LoadShard(Rank rank);
  std::shared_ptr<const VersionPlaces> places();
  Status FindPlaces();
  /// The same soon after somebody failed, so that a node that is gone is not asked for every chunk.
  void LookAgain();
  /// Lets `take` have each place of the shard, the nearest first, until one does.
  Status FromAnywhere(Rank rank, const std::function<Status(const Source&)>& take);
  std::vector<Source> SourcesOf(Rank rank, const VersionPlaces& places) const;
  Status ReadSeal(const Source& source, const ShardKey& key, uint64_t digest, ShardSeal* seal);
  Status ReadFrom(const Source& source, const ShardSeal& seal, uint64_t offset,
                  std::span<std::byte> into);
  Status ReadFromDisk(const ShardSeal& seal, uint64_t offset, std::span<std::byte> into);
  Status Decode(const Source& source, const ShardSeal& seal, uint64_t offset,
                std::span<std::byte> into);

  const ViewTools tools_;
  const std::string job_;
  const VersionId version_;
  const Incarnation incarnation_;
  std::vector<Shard> shards_;  // by rank; constant once it is open

  Mutex mutex_;
  std::shared_ptr<const VersionPlaces> places_ HOLDFAST_GUARDED_BY(mutex_);
  Clock::TimePoint found_at_ HOLDFAST_GUARDED_BY(mutex_);
  /// Opened files that nobody reads just now, by rank.
  std::map<uint32_t, std::vector<std::unique_ptr<ShardChunks>>> files_ HOLDFAST_GUARDED_BY(mutex_);
};

}  // namespace holdfast::agent
