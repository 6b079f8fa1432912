#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>

#include "agent/parity/member_streams.h"
#include "storage/format/seal.h"

namespace holdfast::agent {

/// Returns the seal of a lost shard from the first readable parity shard of the group.
Result<ShardSeal> FetchSeal(const GroupAccess& access, Rank rank, Clock::TimePoint deadline);

/// A requested range of a shard's image and its destination.
struct WantedRange {
  uint64_t begin = 0;
  std::span<std::byte> into;
};

/// Decodes ranges of a rank's shard, or of a member's parity shard, from the group. Members decode
/// shares of the ranges and send only the result. The bytes are not verified: the caller must
/// compare the chunks with the shard's seal. `progress` gets the numbers of received bytes, from
/// several threads. Blocks.
Status DecodeRanges(const GroupAccess& access, const ShardIdentity& identity,
                    std::span<const WantedRange> ranges,
                    const std::function<void(uint64_t)>& progress, Clock::TimePoint deadline);

/// Rebuilds the parity shard of the member at `position` in `image`, with the same bytes that
/// BuildParity() produces. The version need not have had parity before. Members decode shares of
/// its rows. Returns the shard's seal. Blocks.
Result<ShardSeal> RebuildParity(const GroupAccess& access, uint32_t position, uint32_t world,
                                std::span<std::byte> image,
                                const std::function<void(uint64_t)>& progress, Clock& clock,
                                Clock::TimePoint deadline);

}  // namespace holdfast::agent
