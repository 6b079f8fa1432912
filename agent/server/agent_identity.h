#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "storage/base/status.h"

namespace holdfast::agent {

/// Which agent this is, and which start of it. Format: docs/formats/volume.md.
struct AgentIdentity {
  uint64_t id = 0;      // random, for the life of the volume
  uint64_t starts = 0;  // counts them, from 1
  bool operator==(const AgentIdentity&) const = default;

  /// Orders the processes of one agent. The low bits are random, so that two processes differ even
  /// where the count could not be stored.
  uint64_t StartNumber() const;
};

std::string RenderIdentity(const AgentIdentity& identity);
/// DataLoss when `text` is not what RenderIdentity() wrote.
Result<AgentIdentity> ParseIdentity(std::string_view text);

/// Counts one more start of the agent whose volume is `data_dirs` (opened, so that no other process
/// has them), beside the markers. Durable in every directory when it returns OK; one directory is
/// enough to find it again. A volume without the file is a new agent's. IoError or OutOfSpace when
/// no directory took it.
Result<AgentIdentity> CountStart(const std::vector<std::string>& data_dirs);

}  // namespace holdfast::agent
