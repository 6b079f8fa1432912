#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/ids.h"
#include "base/status.h"
#include "coordinator/contract/directives.h"
#include "coordinator/contract/reports.h"
#include "coordinator/contract/requests.h"
#include "storage/format/seal.h"
#include "storage/volume/seen_life.h"

// The pipeline's interfaces to the coordinator and to other agents. agent/server implements them
// over gRPC; tests use a small coordinator in the same process.

namespace holdfast::agent {

/// Sends the pipeline's reports and requests. Thread-safe; no call blocks. Reports are kept until
/// the coordinator has acknowledged them and are repeated after a reconnect. Each `done` is called
/// exactly once, from any thread. If the link stops first, `done` gets Cancelled.
class CoordinatorLink {
 public:
  virtual ~CoordinatorLink() = default;

  virtual void Report(StoredReplica report) = 0;
  virtual void Report(FailedReplica failed) = 0;
  virtual void Report(RemovedReplica removed) = 0;
  virtual void Report(Prepared prepared) = 0;
  /// Replaces the complete list of warnings that this node shows to operators.
  virtual void SetWarnings(std::vector<std::string> warnings) = 0;

  /// Replaces the complete list of trainers on this node.
  virtual void SetRanks(std::vector<LocalRank> /*ranks*/) {}
  virtual void Report(TierWanted /*wanted*/) {}

  /// `done` gets Unavailable while the coordinator cannot be reached.
  virtual void Join(const JoinRequest& request, std::function<void(Result<Incarnation>)> done) = 0;
  virtual void DecideRestore(const RestoreRequest& request,
                             std::function<void(Result<RestoreDecision>)> done) = 0;
  virtual void FindPlaces(const std::string& job, VersionId version,
                          std::function<void(Result<VersionPlaces>)> done) = 0;
};

/// Receives the directives that arrive on the link. Calls return at once.
class DirectiveHandler {
 public:
  virtual ~DirectiveHandler() = default;
  virtual void OnJobState(JobState state) = 0;
  virtual void OnPrepareShard(PrepareShard prepare) = 0;
  virtual void OnRemoveVersion(RemoveVersion remove) = 0;
  /// Called with the life of the coordinator's store, before the first directive of that life.
  /// After a change of the life, the numbers of incarnations and versions have another meaning, and
  /// trainers must join again.
  virtual void OnLife(const SeenLife& /*seen*/) {}
};

/// A shard that is being read from another agent.
class ShardStream {
 public:
  virtual ~ShardStream() = default;
  virtual const ShardSeal& seal() const = 0;
  /// Reads the image into `into` (at least seal().image_bytes) and checks each chunk against the
  /// seal as it arrives. `progress` gets the number of bytes verified. DataLoss names the chunk
  /// that differs.
  virtual Status ReadInto(std::span<std::byte> into,
                          const std::function<void(uint64_t)>& progress) = 0;
};

/// Reads shards from other agents. Thread-safe.
class ShardFetcher {
 public:
  virtual ~ShardFetcher() = default;
  virtual Result<std::unique_ptr<ShardStream>> Open(const std::string& address, const ShardKey& key,
                                                    Tier tier) = 0;
  /// Fills `into` with the image bytes from `offset` on: complete chunks, each checked against the
  /// seal, which is returned. With an empty `into` only the seal is read.
  virtual Result<ShardSeal> ReadRange(const std::string& address, const ShardKey& key, Tier tier,
                                      uint64_t offset, std::span<std::byte> into) = 0;
};

}  // namespace holdfast::agent
