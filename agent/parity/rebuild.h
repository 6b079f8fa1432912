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

/// A run of a shard's image that is wanted, and where it goes.
struct ImageRange {
  uint64_t begin = 0;
  std::span<std::byte> into;
};

/// Makes parts of a rank's or a member's parity shard from what the group has of it: members decode
/// them in shares and send only what they decoded. Nothing is checked here: whoever asks compares
/// the chunks with the shard's seal. `progress` gets the bytes as they come, from several threads.
/// Blocks.
Status DecodeRanges(const GroupAccess& access, const ShardIdentity& identity,
                    std::span<const ImageRange> ranges,
                    const std::function<void(uint64_t)>& progress, Clock::TimePoint deadline);

/// Brings a lost shard back into `image` (seal.image_bytes long) and checks every chunk against
/// `seal`: DataLoss names the first that differs. Blocks.
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
