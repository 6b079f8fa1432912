#include "agent/pipeline/parity_service.h"

#include <utility>

namespace holdfast::agent {

void ParityService::SetJobState(const JobState& job) {
  reach_.SetGroup(job.job, job.group);
  auto keeper = keepers_.find(job.job);
  if (keeper == keepers_.end()) {
    if (!job.group) return;
    keeper = keepers_.emplace(job.job, std::make_unique<ParityKeeper>(tools_, job.job)).first;
  }
  keeper->second->SetJobState(job);
}

void ParityService::Stop(const std::string& job) {
  reach_.SetGroup(job, std::nullopt);
  auto keeper = keepers_.extract(job);
  if (keeper.empty()) return;
  // The keeper's thread may be in the middle of a build: another thread waits for it.
  std::shared_ptr<ParityKeeper> last = std::move(keeper.mapped());
  static_cast<void>(background_.Post([last] {}));
}

bool ParityService::Post(const std::string& job, std::function<void()> task) {
  auto keeper = keepers_.find(job);
  if (keeper == keepers_.end()) return false;
  keeper->second->Post(std::move(task));
  return true;
}

}  // namespace holdfast::agent
