#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "storage/chunks/chunk_source.h"

namespace holdfast {

/// Receives the damage that readers find in the replicas of this node. Thread-safe.
class DamageReporter {
 public:
  virtual ~DamageReporter() = default;
  /// The replica has bad chunks, described by `how`. Returns false when this was known.
  virtual bool OnDamaged(const ShardKey& key, Tier tier, const Status& how) = 0;
  /// The replica is of no use any more: it has other bytes than were committed, for example.
  virtual void OnLost(const ShardKey& key, Tier tier, const Status& how) = 0;
};

/// Ignores damage: for readers that decide nothing about a replica.
DamageReporter& NoDamageReporter();

/// Is called when `source` failed. `next` is the source that is read instead; null: none is left.
using FailureObserver =
    std::function<void(const ChunkSource& source, const Status& how, const ChunkSource* next)>;
using SourceList = std::vector<std::unique_ptr<ChunkSource>>;

/// Reads one shard from several sources, each chunk from the cheapest one that has it intact;
/// of equally cheap ones the least loaded is first. The damage of a replica of this node is
/// reported once. Each call asks a source at most once, and a source that did not answer is not
/// asked by later calls. Thread-compatible.
class SourceSelector {
 public:
  /// `digest` is that of the committed image; 0: any. `sources` and `damage` outlive the selector.
  SourceSelector(ShardKey key, uint64_t digest, const SourceList& sources, DamageReporter& damage);
  /// `stopping` returns true when no further source may be tried.
  void SetStopping(std::function<bool()> stopping) { stopping_ = std::move(stopping); }
  void SetFailureObserver(FailureObserver observer) { observer_ = std::move(observer); }

  /// Returns the seal of the committed image.
  Result<ShardSeal> ReadSeal();
  /// Reads those of `chunks` that are not done. The error names each source and has the code of
  /// the last one.
  Status Read(const ShardSeal& seal, std::span<WantedChunk> chunks);
  /// Returns whether a source has failed.
  bool any_failed() const { return any_failed_; }

 private:
  struct Candidate {
    ChunkSource* source = nullptr;
    uint32_t load = 0;
    bool absent = false;    // did not answer, or has no replica of the image
    bool reported = false;  // its damage was reported
  };

  Status CheckSeal(const ShardSeal& seal, const ChunkSource& source) const;
  /// Records the failure of a source, and adds it to `errors`.
  void Note(Candidate& candidate, const Status& status, Status& errors);
  /// Returns the source that is asked after `candidate`.
  const ChunkSource* After(const Candidate& candidate) const;
  Status CheckStopping() const;

  const ShardKey key_;
  const uint64_t digest_;
  DamageReporter& damage_;
  std::function<bool()> stopping_;
  FailureObserver observer_;
  std::vector<Candidate> candidates_;  // cheapest first
  bool any_failed_ = false;
};

}  // namespace holdfast
