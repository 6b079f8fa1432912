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

/// The readable shards of one version, wherever they are stored. Thread-compatible.
class ShardImages {
 public:
  virtual ~ShardImages() = default;
  /// Returns the seal of a rank's shard or of a node's parity shard. NotFound: there is no replica.
  virtual Result<ShardSeal> Seal(Rank shard) = 0;
  /// Reads the image bytes from `offset` on and verifies all of them against the seal. DataLoss:
  /// one of their chunks is corrupt; any other error: the bytes are not available now.
  virtual Status Read(Rank shard, uint64_t offset, std::span<std::byte> into) = 0;
};

/// Decodes the lost shards of one parity group from its surviving shards. Thread-compatible.
class GroupDecoder {
 public:
  /// Reads the group's plan and seals from its parity shard `parity`. `images` must outlive the
  /// decoder.
  static Result<std::unique_ptr<GroupDecoder>> Open(ShardImages& images, const std::string& job,
                                                    VersionId version, Rank parity);

  const GroupPlan& plan() const { return plan_; }
  /// Returns a rank's seal from the parity shard; NotFound for a rank of another group.
  Result<ShardSeal> Seal(Rank rank) const;
  /// Returns the group's data and parity shards that have no replica, in the order of the members.
  const std::vector<Rank>& missing() const { return missing_; }
  /// Returns OK when the rank's complete image can be decoded from the available shards. Otherwise
  /// DataLoss names the missing ones. NotFound: the rank is not in the group, or the group's parity
  /// has no seal of it.
  Status CheckDecodable(Rank rank) const;

  /// Decodes the image bytes of the rank from `offset` on. Decode does not verify them: the caller
  /// compares complete chunks with the seal. DataLoss: too many bytes are missing or corrupt at
  /// that position. NotFound: the rank is not in the group. InvalidArgument: the bytes extend
  /// beyond the rank's slot.
  Status Decode(Rank rank, uint64_t offset, std::span<std::byte> into);

 private:
  GroupDecoder(ShardImages& images, GroupPlan plan) : images_(images), plan_(std::move(plan)) {}

  struct Outcome {
    Status status;
    bool bad_bytes = false;  // a shard has corrupt bytes here
  };
  bool Has(Rank shard) const;
  bool HasAllShards(uint32_t position) const;
  Outcome Make(uint32_t stripe, uint32_t wanted, uint64_t at, std::span<std::byte> into);
  /// Returns true when `into` was filled, and false when all bytes are zeros. NotFound: a shard is
  /// missing.
  Result<bool> Fill(uint32_t stripe, uint32_t index, uint64_t at, std::span<std::byte> into);
  std::string MissingText() const;

  ShardImages& images_;
  const GroupPlan plan_;
  std::unique_ptr<ErasureCode> code_;
  std::map<Rank, ShardSeal> seals_;  // of the group's ranks
  std::vector<Rank> missing_;
  std::vector<std::vector<std::byte>> units_;  // by index in the stripe
};

/// Returns the length of the longest piece, at most `bytes`, that begins at offset `at` of a
/// stripe's segments and crosses no chunk or shard boundary in any member. Decoding in such pieces
/// limits the effect of a corrupt chunk to its own bytes.
uint64_t PieceInOneChunk(const GroupPlan& plan, uint32_t stripe, uint64_t at, uint64_t bytes);

}  // namespace holdfast
