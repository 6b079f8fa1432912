#include "storage/volume/recovery.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/log.h"
#include "storage/volume/quarantine.h"
#include "storage/volume/shard_reader.h"

namespace holdfast {
namespace {

/// Compares the listed file lengths with the seal.
Status CheckLengths(const DirectoryList& dirs, const ShardSeal& seal,
                    const std::map<std::pair<uint32_t, std::string>, uint64_t>& lengths) {
  auto count = static_cast<uint32_t>(seal.parts.size());
  for (uint32_t part = 0; part < count; ++part) {
    std::string name = PartName(seal.identity.rank, part, count);
    std::string full = dirs[part]->path() + "/" +
                       VersionPath(seal.identity.job, seal.identity.version) + "/" + name;
    auto found = lengths.find({part, name});
    if (found == lengths.end()) return DataLossError(full + " is missing");
    if (found->second != seal.parts[part].file_bytes) {
      return DataLossError(fmt::format("{} has {} bytes, but its seal has {}", full, found->second,
                                       seal.parts[part].file_bytes));
    }
  }
  return Status::Ok();
}

}  // namespace

std::string Recovery::Absolute(uint32_t index, const std::string& path) const {
  return dirs_[index]->path() + "/" + path;
}

void Recovery::PlanQuarantine(uint32_t index, std::string path, std::string why) {
  to_quarantine_.push_back({index, std::move(path), std::move(why)});
}

void Recovery::PlanDrop(uint32_t index, std::string path) {
  to_drop_.push_back({index, std::move(path), {}});
}

Status Recovery::Scan() {
  for (uint32_t i = 0; i < dirs_.size(); ++i) HOLDFAST_RETURN_IF_ERROR(ScanRoot(i));
  for (const auto& [version, ranks] : found_) {
    for (const auto& [rank, files] : ranks) {
      Decide(ShardKey{version.first, version.second, rank}, files);
    }
  }
  for (const auto& [key, stored] : inventory_.shards) report_.shards.push_back(stored);
  for (const Unwanted& item : to_quarantine_) {
    report_.quarantined.push_back(Absolute(item.index, item.path) + ": " + item.why);
  }
  for (const Unwanted& item : to_drop_) report_.dropped.push_back(Absolute(item.index, item.path));
  for (const Tombstone& tombstone : tombstones_) {
    report_.dropped.push_back(Absolute(tombstone.index, tombstone.path));
  }
  return Status::Ok();
}

Status Recovery::ScanRoot(uint32_t index) {
  HOLDFAST_ASSIGN_OR_RETURN(auto entries, dirs_[index]->List("."));
  for (const DirectoryEntry& entry : entries) {
    if (entry.name == kMarkerName || entry.name == kQuarantineName ||
        entry.name == kLostAndFoundName || entry.name == kAgentFileName ||
        entry.name == kSeenLifeName || entry.name == kCommitsName) {
      continue;
    }
    if (IsRootTemporary(entry.name) && !entry.is_directory) {
      PlanDrop(index, entry.name);
    } else if (entry.is_directory && ValidateJobName(entry.name).ok()) {
      HOLDFAST_RETURN_IF_ERROR(ScanJob(index, entry.name));
    } else {
      PlanQuarantine(index, entry.name, "the name does not belong in a data directory");
    }
  }
  return Status::Ok();
}

Status Recovery::ScanJob(uint32_t index, const std::string& job) {
  job_paths_.emplace(index, job);
  HOLDFAST_ASSIGN_OR_RETURN(auto entries, dirs_[index]->List(job));
  for (const DirectoryEntry& entry : entries) {
    std::string path = job + "/" + entry.name;
    auto parsed = ParseVersionDirectoryName(entry.name);
    if (!parsed || !entry.is_directory) {
      PlanQuarantine(index, path, "not a version's directory");
    } else if (parsed->tombstone) {
      tombstones_.push_back({index, path});
    } else {
      HOLDFAST_RETURN_IF_ERROR(ScanVersion(index, job, parsed->version));
    }
  }
  return Status::Ok();
}

Status Recovery::ScanVersion(uint32_t index, const std::string& job, VersionId version) {
  std::string version_path = VersionPath(job, version);
  version_paths_.emplace(index, version_path);
  HOLDFAST_ASSIGN_OR_RETURN(auto entries, dirs_[index]->List(version_path));
  for (const DirectoryEntry& entry : entries) {
    auto parsed = ParseShardFileName(entry.name);
    if (!parsed || entry.is_directory) {
      PlanQuarantine(index, version_path + "/" + entry.name, "not a shard's file");
    } else if (parsed->seal && !parsed->temporary && index != 0) {
      PlanQuarantine(index, version_path + "/" + entry.name,
                     "a seal outside the first data directory");
    } else {
      found_[{job, version}][parsed->rank].push_back({index, entry.name, *parsed, entry.bytes});
    }
  }
  return Status::Ok();
}

void Recovery::Decide(const ShardKey& key, const std::vector<FoundFile>& files) {
  std::string version_path = VersionPath(key.job, key.version);
  std::vector<FoundFile> finals;
  bool sealed = false;
  for (const FoundFile& file : files) {
    if (file.parsed.temporary) {
      PlanDrop(file.index, version_path + "/" + file.name);
      continue;
    }
    finals.push_back(file);
    sealed = sealed || file.parsed.seal;
  }
  if (sealed) {
    DecideSealed(key, finals);
    return;
  }
  for (const FoundFile& file : finals) PlanDrop(file.index, version_path + "/" + file.name);
}

void Recovery::DecideSealed(const ShardKey& key, const std::vector<FoundFile>& files) {
  std::string version_path = VersionPath(key.job, key.version);
  auto seal = LoadSeal(dirs_, key);
  if (!seal && seal.error().code() != ErrorCode::kDataLoss) {
    bool newer = seal.error().code() == ErrorCode::kUnsupported;
    Log(LogLevel::kWarn, newer ? "NewerFormatRefused" : "SealUnreadable",
        {Kv("shard", ToString(key)), Kv("error", seal.error().ToString()),
         Kv("action", "left in place, not offered")});
    inventory_.untouchable.insert(key);
    return;
  }
  std::map<std::pair<uint32_t, std::string>, uint64_t> lengths;
  for (const FoundFile& file : files) lengths[{file.index, file.name}] = file.bytes;
  Status sound = seal ? CheckLengths(dirs_, *seal, lengths) : seal.error();
  if (seal && (sound.ok() || keep_damaged_)) {
    auto count = static_cast<uint32_t>(seal->parts.size());
    inventory_.shards[key] = {seal->identity, seal->image_bytes, seal->digest(), count, seal->life};
    for (const FoundFile& file : files) {
      bool belongs = file.parsed.seal ||
                     (file.index < count && file.name == PartName(key.rank, file.index, count));
      if (!belongs) PlanDrop(file.index, version_path + "/" + file.name);
    }
  }
  if (sound.ok()) return;
  // Move the seal last: a crash before that leaves a seal without data, which the next start finds.
  auto plan = [&](bool seals) {
    for (const FoundFile& file : files) {
      if (file.parsed.seal == seals) {
        PlanQuarantine(file.index, version_path + "/" + file.name, sound.message());
      }
    }
  };
  plan(false);
  plan(true);
}

Status Recovery::CleanUp() {
  Quarantine();
  Drop();
  RemoveEmptyDirectories();
  return SyncPublished();
}

void Recovery::Quarantine() {
  for (const Unwanted& item : to_quarantine_) {
    Status moved = MoveToQuarantine(*dirs_[item.index], item.path);
    Log(LogLevel::kWarn, moved.ok() ? "Quarantined" : "QuarantineFailed",
        {Kv("path", Absolute(item.index, item.path)), Kv("why", item.why),
         Kv("status", moved.ToString())});
  }
}

void Recovery::Drop() {
  auto report = [&](uint32_t index, const std::string& path, const Status& status) {
    bool removed = status.ok() || status.code() == ErrorCode::kNotFound;
    Log(removed ? LogLevel::kInfo : LogLevel::kWarn, removed ? "UnpublishedDropped" : "DropFailed",
        {Kv("path", Absolute(index, path)), Kv("status", status.ToString())});
  };
  for (const Unwanted& item : to_drop_) {
    report(item.index, item.path, dirs_[item.index]->RemoveFile(item.path));
  }
  for (const Tombstone& tombstone : tombstones_) {
    report(tombstone.index, tombstone.path,
           DeleteTombstone(*dirs_[tombstone.index], tombstone.path));
  }
}

void Recovery::RemoveEmptyDirectories() {
  for (const auto* paths : {&version_paths_, &job_paths_}) {
    for (const auto& [index, path] : *paths) {
      auto entries = dirs_[index]->List(path);
      if (!entries || !entries->empty()) continue;
      Status removed = dirs_[index]->RemoveDirectory(path);
      if (!removed.ok()) {
        Log(LogLevel::kWarn, "EmptyDirectoryNotRemoved",
            {Kv("path", Absolute(index, path)), Kv("status", removed.ToString())});
      }
    }
  }
}

Status Recovery::SyncPublished() {
  std::set<std::string> paths;
  for (const auto& [key, stored] : inventory_.shards) {
    paths.insert(key.job);
    paths.insert(VersionPath(key.job, key.version));
  }
  for (const std::string& path : paths) HOLDFAST_RETURN_IF_ERROR(dirs_[0]->SyncDirectory(path));
  for (const auto& dir : dirs_) HOLDFAST_RETURN_IF_ERROR(dir->SyncDirectory("."));
  return Status::Ok();
}

}  // namespace holdfast
