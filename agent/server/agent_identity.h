#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"

namespace holdfast::agent {

/// The identity of an agent and the number of its starts. Format: docs/formats/volume.md.
struct AgentIdentity {
  uint64_t id = 0;      // random, constant for the life of the volume
  uint64_t starts = 0;  // number of starts, from 1
  bool operator==(const AgentIdentity&) const = default;

  /// Returns a number that orders the processes of one agent. The low bits are random, so that two
  /// processes differ even where the count could not be stored.
  uint64_t StartNumber() const;
};

/// Returns the content of the identity file.
std::string RenderIdentity(const AgentIdentity& identity);
/// Parses the content of an identity file. DataLoss when RenderIdentity() did not write `text`.
Result<AgentIdentity> ParseIdentity(std::string_view text);

/// Counts a start of the agent with the volume `data_dirs` and returns its identity. The volume
/// must be open, so that no other process uses it. The count is written next to the markers,
/// synced, in every directory that can store it; one directory is enough to find the count again.
/// Without a valid identity file in any directory, the agent is new. IoError or OutOfSpace when no
/// directory could store the count.
Result<AgentIdentity> CountStart(const std::vector<std::string>& data_dirs);

}  // namespace holdfast::agent
