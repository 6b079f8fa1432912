#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "agent/parity/member_streams.h"
#include "agent/parity/row_exchange.h"
#include "storage/format/seal.h"

namespace holdfast::agent {

/// Builds this node's parity shard of one version in `slot`: leads this node's stripe (reads the k
/// segments, encodes all m parities, keeps the first and offers the others in `rows`), reads its
/// further rows from the leaders of their stripes, and collects the group's seals. Segments are
/// read while they are being copied, so this begins before the version is sealed. Blocks until
/// done, cancelled or `deadline`; `world` is that of the trainers. After an error the content of
/// the slot is undefined.
Result<ShardSeal> BuildParity(const GroupAccess& access, uint32_t world, RowExchange& rows,
                              std::span<std::byte> slot, Clock& clock, Clock::TimePoint deadline);

}  // namespace holdfast::agent
