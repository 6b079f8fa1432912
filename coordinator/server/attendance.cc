#include "coordinator/server/attendance.h"

#include <algorithm>

namespace holdfast::coord {

void Attendance::Reset(const Records& records) {
  MutexLock lock(mutex_);
  ++loads_;
  agents_.clear();
  jobs_.clear();
  for (const LineageRecord& lineage : records.lineages) Record(lineage);
}

void Attendance::Update(const Event& event, std::span<const Effect> effects) {
  MutexLock lock(mutex_);
  for (const Effect& effect : effects) {
    if (const auto* lost = std::get_if<NodeDeclaredLost>(&effect)) agents_.erase(lost->node);
    if (const auto* put = std::get_if<PutLineage>(&effect)) Record(put->record);
  }
  const auto* attached = std::get_if<NodeAttached>(&event);
  if (attached == nullptr) return;
  const bool refused = std::any_of(effects.begin(), effects.end(), [&](const Effect& effect) {
    const auto* close = std::get_if<CloseAttach>(&effect);
    return close != nullptr && close->attach == attached->attach;
  });
  if (!refused) agents_[attached->node] = attached->agent_start;
}

uint64_t Attendance::loads() const {
  MutexLock lock(mutex_);
  return loads_;
}

bool Attendance::IsAttached(const std::string& node, uint64_t agent_start) const {
  MutexLock lock(mutex_);
  auto found = agents_.find(node);
  return found != agents_.end() && found->second == agent_start;
}

size_t Attendance::agents() const {
  MutexLock lock(mutex_);
  return agents_.size();
}

std::optional<Attendance::Running> Attendance::RunningOf(const std::string& job) const {
  MutexLock lock(mutex_);
  auto found = jobs_.find(job);
  if (found == jobs_.end()) return std::nullopt;
  return found->second;
}

void Attendance::Record(const LineageRecord& lineage) {
  Running& running = jobs_[lineage.job];
  if (lineage.incarnation >= running.incarnation) running = {lineage.incarnation, lineage.world};
}

}  // namespace holdfast::coord
