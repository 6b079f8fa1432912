#include "coordinator/server/owner_table.h"

#include <algorithm>

#include "coordinator/state/job.h"

namespace holdfast::coord {

void OwnerTable::PutOwner(const JobRecord& record) {
  // The record of a forgotten job stays until all nodes have removed its replicas.
  if (record.incarnation.value != 0 && record.forgotten_upto == record.incarnation) {
    owners_[record.job].job.reset();
    return Drop(record.job);
  }
  owners_[record.job].job =
      record.uid == kNoOwner ? std::optional<uid_t>() : std::optional<uid_t>(record.uid);
}

void OwnerTable::Drop(const std::string& job) {
  const auto found = owners_.find(job);
  if (found != owners_.end() && !found->second.job && !found->second.run) owners_.erase(found);
}

void OwnerTable::Load(const Records& records) {
  owners_.clear();
  changed_.clear();
  for (const JobRecord& record : records.jobs) PutOwner(record);
  for (const RunRecord& record : records.runs) owners_[record.spec.job].run = record.spec.uid;
}

void OwnerTable::Update(std::span<const Effect> effects) {
  for (const Effect& effect : effects) {
    if (const auto* put = std::get_if<PutJob>(&effect)) {
      PutOwner(put->record);
      changed_.insert(put->record.job);
    } else if (const auto* run = std::get_if<PutRun>(&effect)) {
      owners_[run->record.spec.job].run = run->record.spec.uid;
      changed_.insert(run->record.spec.job);
    } else if (const auto* erased = std::get_if<EraseJob>(&effect)) {
      owners_[erased->job].job.reset();
      Drop(erased->job);
      changed_.insert(erased->job);
    } else if (const auto* ended = std::get_if<EraseRun>(&effect)) {
      owners_[ended->job].run.reset();
      Drop(ended->job);
      changed_.insert(ended->job);
    }
  }
}

JobOwner OwnerTable::Find(const std::string& job) const {
  const auto found = owners_.find(job);
  return found == owners_.end() ? JobOwner{} : JobOwner{true, found->second.uid()};
}

size_t OwnerTable::CountOf(uint32_t uid) const {
  return static_cast<size_t>(std::ranges::count_if(
      owners_, [uid](const auto& entry) { return entry.second.uid() == uid; }));
}

void OwnerTable::Publish(JobOwners& owners) {
  for (const std::string& job : changed_) {
    const JobOwner owner = Find(job);
    if (owner.exists) {
      owners.Set(job, owner.uid);
    } else {
      owners.Erase(job);
    }
  }
  changed_.clear();
}

std::map<std::string, std::optional<uid_t>> OwnerTable::All() const {
  std::map<std::string, std::optional<uid_t>> all;
  for (const auto& [job, owners] : owners_) all[job] = owners.uid();
  return all;
}

}  // namespace holdfast::coord
