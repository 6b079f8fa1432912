#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "storage/erasure/code.h"
#include "storage/format/seal.h"
#include "storage/parity/group_plan.h"

namespace holdfast {

/// The shards of one version that can be read, wherever they lie. Thread-compatible.
class ShardImages {
 public:
  virtual ~ShardImages() = default;
  /// The seal of a rank's or a node's parity shard; NotFound when there is no copy.
  virtual Result<ShardSeal> Seal(Rank shard) = 0;
  /// The image bytes from `offset` on, all of them checked against the seal. DataLoss: a chunk of
  /// them is bad; any other error: they cannot be had now.
  virtual Status Read(Rank shard, uint64_t offset, std::span<std::byte> into) = 0;
};

/// Shards of one parity group that are lost, made from what is left of it. Thread-compatible.
class GroupDecoder {
 public:
  /// Reads plan and seals of the group from its parity shard `parity`. `images` outlives it.
  static Result<std::unique_ptr<GroupDecoder>> Open(ShardImages& images, const std::string& job,
                                                    VersionId version, Rank parity);

  const GroupPlan& plan() const { return plan_; }
  /// As the parity shards list it; NotFound for a rank of another group.
  Result<ShardSeal> Seal(Rank rank) const;
  /// Of the ranks and the parity of the group: those without a copy, in the order of the members.
  const std::vector<Rank>& missing() const { return missing_; }
  /// OK when the rank's whole image can be made from the shards that have a copy; else DataLoss
  /// names those that are missing.
  Status CheckDecodable(Rank rank) const;

  /// Makes the image bytes of the rank from `offset` on. They are not checked here: compare whole
  /// chunks with the seal. DataLoss: too much is missing or bad at that place.
  Status Decode(Rank rank, uint64_t offset, std::span<std::byte> into);

 private:
  GroupDecoder(ShardImages& images, GroupPlan plan) : images_(images), plan_(std::move(plan)) {}

  struct Outcome {
    Status status;
    bool bad_bytes = false;  // some shard has bad ones here
  };
  bool Has(Rank shard) const;
  bool IsMemberWhole(uint32_t position) const;
  Outcome Make(uint32_t stripe, uint32_t wanted, uint64_t at, std::span<std::byte> into);
  /// True: `into` was filled; false: zeros all over. NotFound: a shard is missing.
  Result<bool> Fill(uint32_t stripe, uint32_t index, uint64_t at, std::span<std::byte> into);
  std::string MissingText() const;

  ShardImages& images_;
  const GroupPlan plan_;
  std::unique_ptr<ErasureCode> code_;
  std::map<Rank, ShardSeal> seals_;  // of the group's ranks
  std::vector<Rank> missing_;
  std::vector<std::vector<std::byte>> units_;  // by index of the stripe
};

/// From `at` of the segments of a stripe on, at most `bytes`: what lies in one chunk of each
/// shard's image, so that a bad chunk harms no more than it must.
uint64_t PieceInOneChunk(const GroupPlan& plan, uint32_t stripe, uint64_t at, uint64_t bytes);

}  // namespace holdfast
