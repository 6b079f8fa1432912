#include "agent/server/sight_filter.h"

#include <algorithm>

namespace holdfast::agent {
namespace {
constexpr size_t kGapsKept = 16;
}  // namespace

uint64_t SightFilter::Lived(uint64_t age_ns, uint64_t now_ns) const {
  uint64_t lived = age_ns;
  for (const Gap& gap : gaps_) {
    const uint64_t since_gap = now_ns - gap.end_ns;
    if (age_ns > since_gap) lived -= std::min({lived, gap.length_ns, age_ns - since_gap});
  }
  return lived;
}

bool SightFilter::IsKnownDead(const RankSight& sight) const {
  if (sight.alive) return false;
  auto found = dead_.find({sight.who.job, sight.who.rank});
  return found != dead_.end() && found->second.incarnation == sight.who.incarnation &&
         found->second.process == sight.who.process && found->second.told >= kDeadTold;
}

std::vector<RankSight> SightFilter::Take(std::vector<RankSight> sights, uint64_t now_ns) {
  if (looked_ns_ != 0 && now_ns - looked_ns_ > look_every_ns_ + late_ns_) {
    gaps_.push_back({now_ns, now_ns - looked_ns_ - look_every_ns_});
    if (gaps_.size() > kGapsKept) gaps_.pop_front();
  }
  looked_ns_ = now_ns;
  std::erase_if(sights, [this](const RankSight& sight) { return IsKnownDead(sight); });
  if (gaps_.empty()) return sights;
  for (RankSight& sight : sights) {
    RankTelemetry& telemetry = sight.telemetry;
    telemetry.silent_ns = Lived(telemetry.silent_ns, now_ns);
    telemetry.progress.age_ns = Lived(telemetry.progress.age_ns, now_ns);
    for (InFlightView& flight : telemetry.in_flight) flight.age_ns = Lived(flight.age_ns, now_ns);
  }
  return sights;
}

void SightFilter::Told(const std::vector<RankSight>& sights) {
  // Whoever is out of sight has been replaced, or was left out above.
  std::erase_if(dead_, [&sights](const auto& entry) {
    return entry.second.told < kDeadTold &&
           std::none_of(sights.begin(), sights.end(), [&entry](const RankSight& sight) {
             return sight.who.job == entry.first.first && sight.who.rank == entry.first.second;
           });
  });
  for (const RankSight& sight : sights) {
    const auto key = std::pair(sight.who.job, sight.who.rank);
    if (sight.alive) {
      dead_.erase(key);
      continue;
    }
    Dead& dead = dead_[key];
    if (dead.incarnation != sight.who.incarnation || dead.process != sight.who.process) {
      dead = {sight.who.incarnation, sight.who.process, 0};
    }
    ++dead.told;
  }
}

}  // namespace holdfast::agent
