#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/ids.h"
#include "base/json/values.h"
#include "base/tiers.h"
#include "coordinator/api/coordinator.pb.h"
#include "coordinator/view/health.h"

namespace holdfast::ui {

/// Most marks of one tier of one job, and most samples, so that memory stays bounded.
inline constexpr size_t kMarksMax = 400;
inline constexpr size_t kSamplesMax = 360;
inline constexpr size_t kJobsMax = 64;
inline constexpr int64_t kSampleNanos = 10'000'000'000;

/// What happened to the jobs and to the capacity of the nodes, as far as the coordinator's page
/// needs it. In memory only: it begins with the coordinator. Thread-compatible.
class History {
 public:
  /// Compares the cluster with the previous one. Jobs that are gone are forgotten.
  void Observe(const view::ClusterSnapshot& cluster);
  /// The JSON form, with goodput of the last hour and day of each job.
  Json ToJson(const coordinator::ListIncidentsReply& incidents, int64_t now_wall_nanos) const;

 private:
  struct Mark {
    VersionId version;
    int64_t wall_nanos = 0;
  };
  struct Restart {
    uint64_t incarnation = 0;
    int64_t wall_nanos = 0;
  };
  struct Progress {
    uint64_t step = 0;
    int64_t wall_nanos = 0;
  };
  struct Job {
    int64_t since_wall_nanos = 0;  // first seen, or the start of its run
    int64_t ended_wall_nanos = 0;
    uint64_t incarnation = 0;
    PerTier<std::deque<Mark>> marks;
    std::deque<Restart> restarts;
    std::deque<Progress> progress;  // of this incarnation
  };
  struct Capacity {
    int64_t wall_nanos = 0;
    uint64_t memory_bytes = 0;
    uint64_t parity_bytes = 0;
    uint64_t disk_bytes = 0;
    // Of the nodes that are up and report the value; the percentages are the least of all of them.
    std::optional<uint32_t> disk_free_percent = {};
    std::optional<uint32_t> arena_free_percent = {};
    uint64_t arena_bytes = 0;
    uint64_t arena_reserved_bytes = 0;
  };

  void ObserveJob(const coordinator::JobStatus& status, int64_t now, Job& job);
  void ObserveCapacity(const coordinator::GetStatusReply& status, int64_t now);
  static std::optional<double> StepSeconds(const Job& job);
  Json JobJson(const std::string& name, const Job& job,
               const coordinator::ListIncidentsReply& incidents, int64_t now) const;

  std::map<std::string, Job> jobs_;
  std::deque<Capacity> capacity_;
};

}  // namespace holdfast::ui
