#include "storage/volume/quarantine.h"

#include "base/random.h"
#include "storage/volume/layout.h"

namespace holdfast {
namespace {
constexpr size_t kKeptNameBytes = 220;  // leaves space for the random suffix in a 255-byte name

std::string ParentOf(const std::string& path) {
  size_t slash = path.rfind('/');
  return slash == std::string::npos ? "." : path.substr(0, slash);
}
}  // namespace

Status MoveToQuarantine(Directory& dir, const std::string& path) {
  std::string quarantine(kQuarantineName);
  Status made = dir.MakeDirectory(quarantine);
  if (made.ok()) made = dir.SyncDirectory(".");
  if (!made.ok() && made.code() != ErrorCode::kAlreadyExists) return made;
  std::string name = path;
  for (char& c : name) {
    if (c == '/') c = '+';
  }
  name = name.substr(0, kKeptNameBytes) + "." + RandomHex(8);
  HOLDFAST_RETURN_IF_ERROR(dir.Rename(path, quarantine + "/" + name));
  // Sync the new entry first: in the other order a power cut could lose both entries.
  HOLDFAST_RETURN_IF_ERROR(dir.SyncDirectory(quarantine));
  return dir.SyncDirectory(ParentOf(path));
}

Status QuarantineShard(const std::vector<std::unique_ptr<Directory>>& dirs, const ShardKey& key) {
  std::string version_path = VersionPath(key.job, key.version);
  Status first_error;
  auto move = [&](Directory& dir, const std::string& name) {
    Status moved = MoveToQuarantine(dir, version_path + "/" + name);
    if (first_error.ok() && !moved.ok()) first_error = moved;
  };
  for (const auto& dir : dirs) {
    auto entries = dir->List(version_path);
    if (!entries) {
      if (entries.error().code() == ErrorCode::kNotFound) continue;
      return entries.error();
    }
    for (const DirectoryEntry& entry : *entries) {
      auto name = ParseShardFileName(entry.name);
      if (name && name->rank == key.rank && !name->seal && !name->temporary) {
        move(*dir, entry.name);
      }
    }
  }
  HOLDFAST_RETURN_IF_ERROR(first_error);
  Status moved = MoveToQuarantine(*dirs[0], version_path + "/" + SealName(key.rank));
  return moved.code() == ErrorCode::kNotFound ? Status::Ok() : moved;
}

}  // namespace holdfast
