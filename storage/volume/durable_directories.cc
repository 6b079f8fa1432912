#include "storage/volume/durable_directories.h"

namespace holdfast {

Status DurableDirectories::Make(uint32_t index, const std::string& job,
                                const std::string& version_path, const FileAccess& access) {
  for (const std::string& path : {job, version_path}) {
    Status made = dirs_[index]->MakeDirectory(path);
    if (!made.ok() && made.code() != ErrorCode::kAlreadyExists) return made;
    // A refusal is reported with the first file.
    if (access.group) static_cast<void>(dirs_[index]->SetAccess(path, {{}, access.group}));
  }
  return Status::Ok();
}

Status DurableDirectories::Sync(uint32_t index, const std::string& job,
                                const std::string& version_path) {
  HOLDFAST_RETURN_IF_ERROR(SyncEntry(index, ".", job));
  return SyncEntry(index, job, version_path);
}

Status DurableDirectories::SyncEntry(uint32_t index, const std::string& parent,
                                     const std::string& child) {
  uint64_t forgotten_before = 0;
  {
    MutexLock lock(mutex_);
    if (durable_.contains({index, child})) return Status::Ok();
    forgotten_before = forgotten_;
  }
  HOLDFAST_RETURN_IF_ERROR(dirs_[index]->SyncDirectory(parent));
  MutexLock lock(mutex_);
  // A removal in the meantime may have replaced the synced directory with a new one.
  if (forgotten_before == forgotten_) durable_.emplace(index, child);
  return Status::Ok();
}

void DurableDirectories::Forget(const std::string& version_path) {
  MutexLock lock(mutex_);
  ++forgotten_;
  for (uint32_t index = 0; index < dirs_.size(); ++index) durable_.erase({index, version_path});
}

}  // namespace holdfast
