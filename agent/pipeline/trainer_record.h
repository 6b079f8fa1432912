#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "storage/base/ids.h"
#include "storage/base/status.h"

// Which process has which rank's memory mapped, kept beside the sockets so that a restarted agent
// still refuses a second process while the first is alive. A hint for one boot: nothing is synced,
// and a file that is absent or torn means that nobody is known.

namespace holdfast::agent {

struct TrainerRecord {
  std::string job;
  Rank rank;
  pid_t pid = 0;
  uint64_t start_ticks = 0;      // tells a process from a later one with the same pid
  Incarnation incarnation = {};  // that it joined
  bool operator==(const TrainerRecord&) const = default;
};

Status WriteTrainers(const std::string& path, const std::vector<TrainerRecord>& records);
std::vector<TrainerRecord> ReadTrainers(const std::string& path);

}  // namespace holdfast::agent
