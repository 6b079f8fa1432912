#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>

#include "agent/parity/member_streams.h"
#include "storage/format/seal.h"

namespace holdfast::agent {

/// The seal of a lost shard, from the parity shard of the first member that has one and gives it.
Result<ShardSeal> FetchSeal(const GroupAccess& access, Rank rank, Clock::TimePoint deadline);

/// Brings a lost shard back into `image` (seal.image_bytes long): members decode its
/// segments in shares and send only what they decoded. Every chunk is checked against `seal`:
/// DataLoss names the first that differs. `progress` gets the bytes that have come. Blocks.
Status RebuildShard(const GroupAccess& access, const ShardSeal& seal, std::span<std::byte> image,
                    const std::function<void(uint64_t)>& progress, Clock::TimePoint deadline);

/// Makes the parity shard of the member at `position` again, into `image`: what BuildParity() once
/// made, byte for byte, or makes it for the first time of a version that never had parity. Members
/// decode its rows in shares. Blocks.
Result<ShardSeal> RebuildParity(const GroupAccess& access, uint32_t position, uint32_t world,
                                std::span<std::byte> image,
                                const std::function<void(uint64_t)>& progress, Clock& clock,
                                Clock::TimePoint deadline);

}  // namespace holdfast::agent
