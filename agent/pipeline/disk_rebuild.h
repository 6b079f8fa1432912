#pragma once

#include "agent/pipeline/restore.h"

namespace holdfast::agent {

/// Has the parity group decode a shard, a rank's or a node's parity, straight onto this node's
/// disks: window by window, so that neither the arena nor much other memory is needed, however
/// large the shard is and whether its job runs or not. Each chunk of a rank's shard is checked
/// against its seal before it is written, and a parity shard's digest before it is published. On
/// success it is durable and reported. OutOfSpace: the disks have no room. Blocks.
Status RebuildOnDisk(const RestoreTools& tools, const PrepareShard& prepare);

}  // namespace holdfast::agent
