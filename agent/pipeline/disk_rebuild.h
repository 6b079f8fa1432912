#pragma once

#include "agent/pipeline/coordinator_link.h"
#include "agent/pipeline/restore_tools.h"

namespace holdfast::agent {

/// Brings a shard straight onto this node's disks: a rank's or a parity shard that the parity group
/// decodes, or, without a group, a rank's shard that another node has. Works window by window, and
/// therefore needs no arena memory and little other memory, for a shard of any size. The job may be
/// running or finished. Each chunk of a rank's shard is checked against its seal before it is
/// written; the digest of a parity shard is checked before it is published. On success the shard is
/// durable and reported. OutOfSpace: the disks have no room. Blocks.
Status RebuildOnDisk(const RestoreTools& tools, const PrepareTask& prepare);

}  // namespace holdfast::agent
