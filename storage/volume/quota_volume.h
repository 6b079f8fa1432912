#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "storage/volume/volume.h"

namespace holdfast {

/// The text of a refusal begins with this.
inline constexpr const char* kDiskQuota = "disk quota";
/// Names the quota of a job, in refusals and as the topic of warnings.
inline std::string DiskQuotaOf(const std::string& job) {
  return std::string(kDiskQuota) + " of job '" + job + "'";
}

struct DiskQuotas {
  uint64_t job_bytes = 0;   // of one job; 0: no limit
  uint64_t user_bytes = 0;  // of all jobs of one user other than root; 0: no limit
  /// Returns the user of a job. Nothing: not known; the job then counts for no user.
  std::function<std::optional<uid_t>(const std::string& job)> owner;
  /// How long a shard without room waits for the removal of older versions.
  std::chrono::milliseconds patience{2'000};
};

/// Returns the volume itself if both limits are 0, else one that refuses a shard, with OutOfSpace,
/// when the published shards of its job or of its user and those being written would have more
/// bytes than the quota. Parity shards and shards that other nodes have lost count for their job,
/// too. A refusal removes nothing. A write without room first waits for removals, which retention
/// directs when a newer version is committed. After a refusal, the job's writes do not wait again
/// until something is removed, so that a full quota does not hold up the slots in memory.
std::unique_ptr<Volume> WithQuotas(std::unique_ptr<Volume> volume, DiskQuotas quotas, Clock& clock);

}  // namespace holdfast
