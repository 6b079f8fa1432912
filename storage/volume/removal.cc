#include "storage/volume/removal.h"

#include "base/crash_point.h"
#include "storage/volume/layout.h"
#include "storage/volume/quarantine.h"

namespace holdfast {

Status MakeTombstones(const std::vector<std::unique_ptr<Directory>>& dirs, const std::string& job,
                      VersionId version, std::vector<Tombstone>* made) {
  std::string from = VersionPath(job, version);
  for (uint32_t i = 0; i < dirs.size(); ++i) {
    std::string to = TombstoneName(from);
    Status renamed = dirs[i]->Rename(from, to);
    if (renamed.code() == ErrorCode::kNotFound) continue;
    HOLDFAST_RETURN_IF_ERROR(renamed);
    made->push_back({i, to});
    HOLDFAST_RETURN_IF_ERROR(dirs[i]->SyncDirectory(job));
  }
  HOLDFAST_CRASH_POINT("volume.remove_after_tombstone");
  if (made->empty()) return NotFoundError(from + " is not on this node's disks");
  return Status::Ok();
}

Status DeleteTombstone(Directory& dir, const std::string& path) {
  HOLDFAST_ASSIGN_OR_RETURN(auto entries, dir.List(path));
  for (const DirectoryEntry& entry : entries) {
    std::string inner = path + "/" + entry.name;
    bool ours = !entry.is_directory && ParseShardFileName(entry.name).has_value();
    HOLDFAST_RETURN_IF_ERROR(ours ? dir.RemoveFile(inner) : MoveToQuarantine(dir, inner));
    HOLDFAST_CRASH_POINT("volume.remove_mid_unlink");
  }
  HOLDFAST_RETURN_IF_ERROR(dir.RemoveDirectory(path));
  return dir.SyncDirectory(path.substr(0, path.rfind('/')));
}

}  // namespace holdfast
