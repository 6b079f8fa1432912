#include "coordinator/ui/history.h"

#include <algorithm>
#include <optional>
#include <set>

#include "coordinator/api/convert.h"
#include "coordinator/view/goodput.h"

namespace holdfast::ui {
namespace {
using coord::AnyVersion;

constexpr int64_t kHourNanos = 3'600'000'000'000;
constexpr int64_t kDayNanos = 24 * kHourNanos;
constexpr int64_t kMsNanos = 1'000'000;

/// The share of an arena that no segment reserves, rounded down.
uint32_t FreePercent(const coordinator::ArenaUse& arena) {
  if (arena.bytes() == 0 || arena.reserved_bytes() >= arena.bytes()) return 0;
  const uint64_t free = arena.bytes() - arena.reserved_bytes();
  return static_cast<uint32_t>(100.0 * static_cast<double>(free) /
                               static_cast<double>(arena.bytes()));
}

void Lower(std::optional<uint32_t>& least, uint32_t percent) {
  least = std::min(least.value_or(percent), percent);
}

Json OrNull(std::optional<uint32_t> percent) { return percent ? Json(*percent) : Json(nullptr); }

template <typename Item>
void Add(std::deque<Item>& items, Item item, size_t most) {
  items.push_back(std::move(item));
  if (items.size() > most) items.pop_front();
}
}  // namespace

void History::Observe(const view::ClusterSnapshot& cluster) {
  const int64_t now = cluster.now_wall_nanos;
  std::set<std::string> present;
  for (const auto& status : cluster.status.jobs()) {
    if (!jobs_.contains(status.job()) && jobs_.size() >= kJobsMax) continue;
    present.insert(status.job());
    ObserveJob(status, now, jobs_[status.job()]);
  }
  std::erase_if(jobs_, [&](const auto& job) { return !present.contains(job.first); });
  for (const auto& run : cluster.runs.runs()) {
    const auto job = jobs_.find(run.spec().job());
    if (job != jobs_.end() && run.started_wall_nanos() > 0) {
      job->second.since_wall_nanos = run.started_wall_nanos();
    }
  }
  ObserveCapacity(cluster.status, now);
}

void History::ObserveJob(const coordinator::JobStatus& status, int64_t now, Job& job) {
  const bool first = job.since_wall_nanos == 0;
  if (first) job.since_wall_nanos = now;
  job.ended_wall_nanos = status.ended_wall_nanos();
  if (status.incarnation() != job.incarnation) {
    if (!first && job.incarnation != 0) Add(job.restarts, {status.incarnation(), now}, kMarksMax);
    job.incarnation = status.incarnation();
    job.progress.clear();
  }
  PerTier<std::optional<VersionId>> committed;
  committed[Tier::kMemory] = AnyVersion(status.memory_committed());
  committed[Tier::kPeer] = AnyVersion(status.peer_committed());
  committed[Tier::kDisk] = AnyVersion(status.disk_committed());
  committed[Tier::kRemote] = AnyVersion(status.remote_committed());
  for (const TierTraits& traits : kTierTable) {
    const std::optional<VersionId> version = committed[traits.tier];
    std::deque<Mark>& marks = job.marks[traits.tier];
    if (!version) continue;
    if (!marks.empty() && marks.back().version == *version) continue;
    // The time of a first observation is not that of the commit.
    const int64_t when = first ? status.committed_wall_nanos() : now;
    if (when > 0) Add(marks, {*version, when}, kMarksMax);
  }
  const bool moved = job.progress.empty() || job.progress.back().step != status.newest_seen_step();
  if (moved) Add(job.progress, {status.newest_seen_step(), now}, kSamplesMax);
}

void History::ObserveCapacity(const coordinator::GetStatusReply& status, int64_t now) {
  if (!capacity_.empty() && now - capacity_.back().wall_nanos < kSampleNanos) return;
  Capacity sample{.wall_nanos = now};
  for (const auto& node : status.nodes()) {
    sample.memory_bytes += node.held_memory_bytes();
    sample.parity_bytes += node.held_parity_bytes();
    sample.disk_bytes += node.held_disk_bytes();
    if (!node.alive()) continue;
    if (node.disk_free_percent() > 0) Lower(sample.disk_free_percent, node.disk_free_percent());
    if (!node.has_arena()) continue;
    sample.arena_bytes += node.arena().bytes();
    sample.arena_reserved_bytes += node.arena().reserved_bytes();
    Lower(sample.arena_free_percent, FreePercent(node.arena()));
  }
  Add(capacity_, sample, kSamplesMax);
}

std::optional<double> History::StepSeconds(const Job& job) {
  if (job.progress.size() < 3) return std::nullopt;
  const Progress& first = job.progress.front();
  const Progress& last = job.progress.back();
  if (last.step <= first.step) return std::nullopt;
  return static_cast<double>(last.wall_nanos - first.wall_nanos) / 1e9 /
         static_cast<double>(last.step - first.step);
}

Json History::JobJson(const std::string& name, const Job& job,
                      const coordinator::ListIncidentsReply& incidents, int64_t now) const {
  std::vector<coordinator::Incident> own;
  for (const auto& incident : incidents.incidents()) {
    if (incident.job() == name) own.push_back(incident);
  }
  const std::optional<double> step_seconds = StepSeconds(job);
  const int64_t until = job.ended_wall_nanos > 0 ? job.ended_wall_nanos : now;
  const auto measure = [&](int64_t window) {
    return view::GoodputJson(
        view::Measure(own, {std::max(job.since_wall_nanos, now - window), until, step_seconds}));
  };
  Json marks = Json::object();
  for (const TierTraits& traits : kTierTable) {
    Json lane = Json::array();
    for (const Mark& mark : job.marks[traits.tier]) {
      lane.push_back({VersionJson(mark.version), mark.wall_nanos / kMsNanos});
    }
    marks[std::string(traits.name)] = std::move(lane);
  }
  Json restarts = Json::array();
  for (const Restart& restart : job.restarts) {
    restarts.push_back({restart.incarnation, restart.wall_nanos / kMsNanos});
  }
  return {{"job", name},
          {"since_ms", job.since_wall_nanos / kMsNanos},
          {"step_seconds", step_seconds ? Json(*step_seconds) : Json(nullptr)},
          {"marks", std::move(marks)},
          {"restarts", std::move(restarts)},
          {"hour", measure(kHourNanos)},
          {"day", measure(kDayNanos)}};
}

Json History::ToJson(const coordinator::ListIncidentsReply& incidents,
                     int64_t now_wall_nanos) const {
  Json jobs = Json::array();
  for (const auto& [name, job] : jobs_) {
    jobs.push_back(JobJson(name, job, incidents, now_wall_nanos));
  }
  Json capacity = Json::array();
  for (const Capacity& sample : capacity_) {
    capacity.push_back({sample.wall_nanos / kMsNanos, sample.memory_bytes, sample.parity_bytes,
                        sample.disk_bytes, OrNull(sample.disk_free_percent), sample.arena_bytes,
                        sample.arena_reserved_bytes, OrNull(sample.arena_free_percent)});
  }
  return {{"jobs", std::move(jobs)}, {"capacity", std::move(capacity)}};
}

}  // namespace holdfast::ui
