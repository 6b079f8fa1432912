#include "cli/offline/data_dirs.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <system_error>

#include "base/fd.h"
#include "cli/core/text.h"
#include "storage/volume/layout.h"
#include "storage/volume/marker.h"

namespace holdfast::cli {

namespace {

namespace fs = std::filesystem;
constexpr uint64_t kMarkerBytesMax = 64 << 10;

/// Returns the sorted entries of `dir`. Errors name the directory.
Result<std::vector<fs::directory_entry>> ListSorted(const std::string& dir) {
  std::error_code error;
  std::vector<fs::directory_entry> entries;
  fs::directory_iterator it(dir, error);
  for (; !error && it != fs::directory_iterator(); it.increment(error)) entries.push_back(*it);
  if (error) return Fail(ErrnoStatus(error.value(), "cannot list " + dir));
  std::sort(entries.begin(), entries.end());
  return entries;
}

bool IsDirectory(const fs::directory_entry& entry) {
  std::error_code error;
  return entry.is_directory(error) && !entry.is_symlink(error);
}

/// Scans the files of one version for unreadable seals and unpublished files.
Status ScanVersion(const std::string& dir, const std::string& job, VersionId version,
                   std::set<ShardKey>& sealed, OfflineVolume& out) {
  HOLDFAST_ASSIGN_OR_RETURN(auto entries, ListSorted(dir));
  for (const auto& entry : entries) {
    auto name = ParseShardFileName(entry.path().filename().string());
    if (!name) continue;
    if (name->temporary) {
      out.leftovers.push_back(entry.path().string());
    } else if (name->seal) {
      Result<std::string> bytes = ReadWholeFile(entry.path().string(), kSealBytesMax);
      Status error = bytes ? Status::Ok() : bytes.error();
      const ShardKey key{job, version, name->rank};
      sealed.insert(key);
      if (bytes) {
        Result<ShardSeal> seal = DecodeSeal(std::as_bytes(std::span(*bytes)));
        if (!seal) {
          error = seal.error().WithContext(entry.path().string());
        } else if (seal->identity.key() != key) {
          error = DataLossError(entry.path().string() + " is the seal of " +
                                ToString(seal->identity.key()));
        }
      }
      if (!error.ok())
        out.damaged.push_back({entry.path().string(), job, version, name->rank, error});
    } else {
      out.unsealed.insert({job, version, name->rank});  // removed again if its seal is found
    }
  }
  return Status::Ok();
}

/// The volume lists the seals that it can read; this scan finds the others.
Status ScanDataDir(const std::string& dir, std::set<ShardKey>& sealed, OfflineVolume& out) {
  HOLDFAST_ASSIGN_OR_RETURN(auto jobs, ListSorted(dir));
  for (const auto& job : jobs) {
    std::string name = job.path().filename().string();
    if (!IsDirectory(job) || !ValidateJobName(name).ok() || name == kLostAndFoundName) continue;
    HOLDFAST_ASSIGN_OR_RETURN(auto versions, ListSorted(job.path().string()));
    for (const auto& version : versions) {
      auto parsed = ParseVersionDirectoryName(version.path().filename().string());
      if (!IsDirectory(version) || !parsed) continue;
      if (parsed->tombstone) {
        out.leftovers.push_back(version.path().string());
        continue;
      }
      HOLDFAST_RETURN_IF_ERROR(
          ScanVersion(version.path().string(), name, parsed->version, sealed, out));
    }
  }
  return Status::Ok();
}

/// A directory and its marker.
struct Marked {
  std::string dir;
  VolumeMarker marker;
};

/// Reads a marker. The error explains what a data directory is, since a wrong path is the most
/// likely mistake.
Result<Marked> ReadMarker(const std::string& dir) {
  std::string path = (fs::path(dir) / kMarkerName).string();
  Result<std::string> text = ReadWholeFile(path, kMarkerBytesMax);
  if (!text && text.error().code() == ErrorCode::kNotFound) {
    std::error_code error;
    if (!fs::is_directory(dir, error)) return Fail(NotFoundError("there is no directory " + dir));
    return Fail(FailedPreconditionError(
        dir + " is not a data directory: it has no file named " + std::string(kMarkerName) +
        "; give the directories in data_dirs of the agent's configuration"));
  }
  if (!text) return Fail(text.error());
  HOLDFAST_ASSIGN_OR_RETURN(VolumeMarker marker, ParseMarker(*text, path));
  return Marked{dir, std::move(marker)};
}

/// Opens one volume. `marked` are its directories, in any order.
Result<OfflineVolume> OpenOne(std::vector<Marked> marked, Clock& clock) {
  std::sort(marked.begin(), marked.end(),
            [](const Marked& a, const Marked& b) { return a.marker.index < b.marker.index; });
  OfflineVolume opened;
  for (size_t i = 0; i < marked.size(); ++i) {
    if (marked[i].marker.index != i) {
      return Fail(FailedPreconditionError(
          fmt::format("data directory {} of the volume to which {} belongs is missing: give all "
                      "data directories of that node",
                      i + 1, marked[0].dir)));
    }
    opened.dirs.push_back(marked[i].dir);
  }
  if (marked[0].marker.count > marked.size()) {
    return Fail(FailedPreconditionError(
        fmt::format("{} is one of {} data directories of a volume, but only {} given: give all of "
                    "that node",
                    marked[0].dir, marked[0].marker.count,
                    marked.size() == 1 ? "it was" : std::to_string(marked.size()) + " were")));
  }
  opened.cluster = marked[0].marker.cluster;
  HOLDFAST_ASSIGN_OR_RETURN(opened.volume, OpenVolumeReadOnly(opened.dirs, IoOptions(), clock));
  opened.shards = opened.volume->List();
  std::set<ShardKey> sealed;
  for (const std::string& dir : opened.dirs) {
    HOLDFAST_RETURN_IF_ERROR(ScanDataDir(dir, sealed, opened));
  }
  for (const ShardKey& key : sealed) opened.unsealed.erase(key);
  return opened;
}

}  // namespace

std::string OfflineVolume::PathOf(const ShardKey& key) const {
  return dirs[0] + "/" + VersionPath(key.job, key.version) + "/" + SealName(key.rank);
}

bool IsDataDir(const std::string& dir) {
  std::error_code error;
  return fs::is_regular_file(fs::path(dir) / kMarkerName, error);
}

Result<std::vector<OfflineVolume>> OpenDataDirs(const std::vector<std::string>& dirs,
                                                Clock& clock) {
  std::map<std::string, std::vector<Marked>> volumes;
  std::vector<std::string> order;
  for (const std::string& dir : dirs) {
    HOLDFAST_ASSIGN_OR_RETURN(Marked marked, ReadMarker(dir));
    auto& group = volumes[marked.marker.volume];
    if (group.empty()) order.push_back(marked.marker.volume);
    group.push_back(std::move(marked));
  }
  std::vector<OfflineVolume> opened;
  for (const std::string& volume : order) {
    HOLDFAST_ASSIGN_OR_RETURN(OfflineVolume one, OpenOne(std::move(volumes[volume]), clock));
    opened.push_back(std::move(one));
  }
  return opened;
}

Result<std::vector<OfflineVersion>> VersionsOf(const std::vector<OfflineVolume>& volumes,
                                               const std::string& job) {
  std::map<std::pair<std::string, VersionId>, OfflineVersion> found;
  for (size_t v = 0; v < volumes.size(); ++v) {
    for (const StoredShard& shard : volumes[v].shards) {
      const ShardIdentity& identity = shard.identity;
      if (!job.empty() && identity.job != job) continue;
      if (IsParity(identity.rank)) continue;  // a restore does not need parity shards
      OfflineVersion& version = found[{identity.job, identity.version}];
      if (version.world == 0) {
        version.job = identity.job;
        version.version = identity.version;
        version.world = identity.world;
      } else if (version.world != identity.world) {
        return Fail(DataLossError(fmt::format("the shards of {}/{} disagree: worlds of {} and {}",
                                              identity.job, ToString(identity.version),
                                              version.world, identity.world)));
      }
      auto& holders = version.ranks[identity.rank.value];
      if (holders.empty()) version.bytes += shard.image_bytes;
      holders.push_back(v);
    }
  }
  std::vector<OfflineVersion> versions;
  for (auto& [key, version] : found) versions.push_back(std::move(version));
  std::stable_sort(versions.begin(), versions.end(), [](const auto& a, const auto& b) {
    return a.job != b.job ? a.job < b.job : a.version > b.version;
  });
  return versions;
}

Result<std::string> ReadWholeFile(const std::string& path, uint64_t bytes_max) {
  UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!fd.valid()) return Fail(ErrnoStatus(errno, "cannot open " + path));
  struct stat info {};
  if (::fstat(fd.get(), &info) != 0) return Fail(ErrnoStatus(errno, "cannot stat " + path));
  if (!S_ISREG(info.st_mode)) return Fail(InvalidArgumentError(path + " is not a regular file"));
  auto bytes = static_cast<uint64_t>(info.st_size);
  if (bytes > bytes_max)
    return Fail(DataLossError(
        fmt::format("{} has {} bytes, but such a file has at most {}", path, bytes, bytes_max)));
  std::string text(bytes, '\0');
  for (size_t done = 0; done < bytes;) {
    ssize_t n = ::read(fd.get(), text.data() + done, bytes - done);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return Fail(ErrnoStatus(errno, "cannot read " + path));
    if (n == 0) return Fail(DataLossError(path + " was truncated while it was read"));
    done += static_cast<size_t>(n);
  }
  return text;
}

}  // namespace holdfast::cli
