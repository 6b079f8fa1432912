#include "cli/doctor/capacity_checks.h"

#include <fmt/format.h>

#include <map>
#include <optional>

#include "base/config.h"

namespace holdfast::cli {
namespace {

constexpr uint64_t kSlots = 3;  // of each rank, unless its trainer asks for another number

}  // namespace

uint64_t SavedBytesOf(const std::string& node, const coordinator::GetStatusReply& status,
                      CoordinatorClient& client) {
  uint64_t bytes = 0;
  for (const coordinator::JobStatus& job : status.jobs()) {
    if (job.state() != "running") continue;
    const auto plan = client.PlanAllReplicas(job.job(), std::nullopt, false);
    if (!plan) continue;  // nothing is committed yet
    std::map<uint32_t, uint64_t> ranks;
    for (const coordinator::ShardSource& source : plan->sources()) {
      if (source.node() == node) ranks[source.rank()] = source.image_bytes();
    }
    for (const auto& [rank, image_bytes] : ranks) bytes += image_bytes;
  }
  return bytes;
}

Findings CheckCapacity(const Capacity& capacity) {
  if (capacity.save_bytes == 0) {
    return {{"capacity", Readiness::kSkipped,
             "no job saves here: --save-bytes SIZE gives what this node's ranks save at a step",
             ""}};
  }
  Findings findings;
  const uint64_t arena = kSlots * capacity.save_bytes;
  Finding memory{"arena", Readiness::kOk,
                 fmt::format("{} for {} slots of {}", FormatBytes(capacity.arena_bytes), kSlots,
                             FormatBytes(capacity.save_bytes)),
                 ""};
  if (capacity.arena_bytes < arena) {
    memory.readiness = Readiness::kFail;
    memory.what += fmt::format(": {} are needed, and more for parity", FormatBytes(arena));
    memory.remedy = fmt::format("set arena.bytes to at least {}", FormatBytes(arena));
  }
  findings.push_back(memory);
  if (capacity.keep_last == 0) return findings;
  // One more version is written before the oldest one is removed.
  const uint64_t disk = (capacity.keep_last + 1) * capacity.save_bytes;
  Finding disks{
      "retention", Readiness::kOk,
      fmt::format("{} on disk for {} + 1 versions of {}", FormatBytes(capacity.disk_bytes),
                  capacity.keep_last, FormatBytes(capacity.save_bytes)),
      ""};
  if (capacity.disk_bytes < disk) {
    disks.readiness = Readiness::kFail;
    disks.what += fmt::format(": {} are needed, and more for parity", FormatBytes(disk));
    disks.remedy =
        "add a disk to data_dirs, or keep fewer versions (`holdfast retain`, "
        "retention.keep_last)";
  }
  findings.push_back(disks);
  return findings;
}

}  // namespace holdfast::cli
