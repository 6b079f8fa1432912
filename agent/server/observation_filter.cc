#include "agent/server/observation_filter.h"

#include <algorithm>

namespace holdfast::agent {
namespace {
constexpr size_t kGapsKept = 16;
}  // namespace

uint64_t ObservationFilter::RunningPart(uint64_t age_ns, uint64_t now_ns) const {
  uint64_t running = age_ns;
  for (const Gap& gap : gaps_) {
    const uint64_t since_gap = now_ns - gap.end_ns;
    if (age_ns > since_gap) running -= std::min({running, gap.length_ns, age_ns - since_gap});
  }
  return running;
}

bool ObservationFilter::IsKnownDead(const ObservedRank& observed) const {
  if (observed.alive) return false;
  auto found = dead_.find({observed.who.job, observed.who.rank});
  return found != dead_.end() && found->second.incarnation == observed.who.incarnation &&
         found->second.process == observed.who.process && found->second.reports >= kDeadReports;
}

std::vector<ObservedRank> ObservationFilter::Take(std::vector<ObservedRank> observations,
                                                  uint64_t now_ns) {
  if (polled_ns_ != 0 && now_ns - polled_ns_ > interval_ns_ + late_ns_) {
    gaps_.push_back({now_ns, now_ns - polled_ns_ - interval_ns_});
    if (gaps_.size() > kGapsKept) gaps_.pop_front();
  }
  polled_ns_ = now_ns;
  std::erase_if(observations,
                [this](const ObservedRank& observed) { return IsKnownDead(observed); });
  if (gaps_.empty()) return observations;
  for (ObservedRank& observed : observations) {
    RankTelemetry& telemetry = observed.telemetry;
    telemetry.silent_ns = RunningPart(telemetry.silent_ns, now_ns);
    telemetry.progress.age_ns = RunningPart(telemetry.progress.age_ns, now_ns);
    for (InFlight& flight : telemetry.in_flight) {
      flight.age_ns = RunningPart(flight.age_ns, now_ns);
    }
  }
  return observations;
}

void ObservationFilter::RecordSent(const std::vector<ObservedRank>& observations) {
  // A rank without an observation has been replaced. One that Take() dropped has kDeadReports
  // reports, and its entry must stay.
  std::erase_if(dead_, [&observations](const auto& entry) {
    const auto is_entry = [&entry](const ObservedRank& observed) {
      return observed.who.job == entry.first.first && observed.who.rank == entry.first.second;
    };
    return entry.second.reports < kDeadReports &&
           std::none_of(observations.begin(), observations.end(), is_entry);
  });
  for (const ObservedRank& observed : observations) {
    const auto key = std::pair(observed.who.job, observed.who.rank);
    if (observed.alive) {
      dead_.erase(key);
      continue;
    }
    Dead& dead = dead_[key];
    if (dead.incarnation != observed.who.incarnation || dead.process != observed.who.process) {
      dead = {observed.who.incarnation, observed.who.process, 0};
    }
    ++dead.reports;
  }
}

}  // namespace holdfast::agent
