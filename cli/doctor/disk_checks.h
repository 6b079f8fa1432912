#pragma once

#include <cstdint>
#include <string>

#include "agent/config/config.h"
#include "cli/doctor/finding.h"

namespace holdfast::cli {

/// Writes to the disk of a data directory for two seconds, reads the bytes back and compares them.
/// At most `bytes_max` bytes and a quarter of the free space; no file stays. Creates nothing else.
Finding CheckDataDir(const std::string& path, const agent::AgentConfig& config, uint64_t bytes_max);

/// The free bytes of a directory's file system, for this user; 0 when they cannot be read.
uint64_t FreeBytes(const std::string& path);

}  // namespace holdfast::cli
