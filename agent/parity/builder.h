#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "agent/parity/member_streams.h"
#include "agent/parity/row_exchange.h"
#include "storage/format/seal.h"

namespace holdfast::agent {

/// Makes this node's parity shard of one version in `slot`: leads its own stripe (pulls the k
/// segments, encodes all m parities, keeps the first and offers the others in `rows`), takes its
/// further rows from the leaders of their stripes, collects the group's seals. Segments are read
/// behind the copies that fill them, so this begins before the version is sealed. Blocks until
/// done, cancelled or `deadline`; `world` is the trainers'. The slot's bytes mean nothing after an
/// error.
Result<ShardSeal> BuildParity(const GroupAccess& access, uint32_t world, RowExchange& rows,
                              std::span<std::byte> slot, Clock& clock, Clock::TimePoint deadline);

}  // namespace holdfast::agent
