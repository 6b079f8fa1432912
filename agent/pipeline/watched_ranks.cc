#include "agent/pipeline/watched_ranks.h"

#include "storage/base/log.h"

namespace holdfast::agent {

void WatchedRanks::Join(const WatchedRank& who, SegmentControl& control) {
  MutexLock lock(mutex_);
  std::erase_if(entries_, [&who](const auto& entry) {
    const WatchedRank& other = entry.second.who;
    return other.job == who.job && other.incarnation < who.incarnation;
  });
  Entry& entry = entries_[{who.job, who.rank}];
  entry.who = who;
  entry.control = &control;
  entry.reader.emplace(control);
  entry.complained = false;
}

void WatchedRanks::Leave(const std::string& job, Rank rank, bool orderly) {
  MutexLock lock(mutex_);
  auto found = entries_.find({job, rank});
  if (found == entries_.end()) return;
  found->second.reader.reset();
  found->second.control = nullptr;
  if (orderly) entries_.erase(found);
}

std::vector<RankSight> WatchedRanks::Look(uint64_t now_ns) {
  MutexLock lock(mutex_);
  std::vector<RankSight> sights;
  for (auto& [key, entry] : entries_) {
    RankSight& sight = sights.emplace_back();
    sight.who = entry.who;
    const std::optional<ProcessStat> stat = StatOf(entry.who.process.pid);
    sight.alive = stat && stat->start_ticks == entry.who.process.start_ticks &&
                  stat->state != 'Z' && stat->state != 'X';
    if (sight.alive) sight.process_state = stat->state;
    if (!entry.reader) continue;
    auto telemetry = entry.reader->Read(now_ns);
    if (telemetry) {
      sight.telemetry = *std::move(telemetry);
    } else if (!std::exchange(entry.complained, true)) {
      Log(LogLevel::kWarn, "TelemetryRefused",
          {Kv("job", key.first), Kv("rank", key.second.value),
           Kv("error", telemetry.error().ToString())});
    }
  }
  return sights;
}

std::optional<ProcessName> WatchedRanks::ProcessOf(const std::string& job, Rank rank) {
  MutexLock lock(mutex_);
  auto found = entries_.find({job, rank});
  if (found == entries_.end()) return std::nullopt;
  return found->second.who.process;
}

void WatchedRanks::Sample(const std::string& job, uint32_t operations) {
  MutexLock lock(mutex_);
  for (auto& [key, entry] : entries_) {
    if (key.first == job && entry.control != nullptr) {
      RequestSampling(entry.control->collectives, operations);
    }
  }
}

}  // namespace holdfast::agent
