#include "storage/volume/marker.h"

#include <fmt/format.h>

#include <charconv>
#include <optional>

#include "base/ids.h"
#include "base/log.h"
#include "base/random.h"
#include "storage/format/checksum.h"
#include "storage/volume/layout.h"

namespace holdfast {
namespace {

constexpr uint64_t kMarkerBytesMax = 4096;

uint32_t CrcOf(std::string_view text) { return Crc32c(std::as_bytes(std::span(text))); }

/// Returns the value of the line "key = value" at the start of `text` and removes the line.
std::optional<std::string> TakeValue(std::string_view& text, std::string_view key) {
  size_t end = text.find('\n');
  if (end == std::string_view::npos) return std::nullopt;
  std::string_view line = text.substr(0, end);
  text.remove_prefix(end + 1);
  std::string prefix = std::string(key) + " = ";
  if (!line.starts_with(prefix)) return std::nullopt;
  line.remove_prefix(prefix.size());
  if (line.size() >= 2 && line.front() == '"' && line.back() == '"') {
    line = line.substr(1, line.size() - 2);
  }
  return std::string(line);
}

bool ToNumber(const std::optional<std::string>& text, uint32_t* number) {
  if (!text) return false;
  auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), *number);
  return error == std::errc() && end == text->data() + text->size();
}

/// Returns the first entry of a directory that a volume did not make, or the marker's name if the
/// directory has a marker; empty if there is neither.
Result<std::string> FirstEntry(Directory& dir) {
  HOLDFAST_ASSIGN_OR_RETURN(auto entries, dir.List("."));
  std::string first;
  for (const DirectoryEntry& entry : entries) {
    if (entry.name == kMarkerName) return entry.name;
    const bool ours = entry.name == kLostAndFoundName || IsRootTemporary(entry.name);
    if (!ours && first.empty()) first = entry.name;
  }
  return first;
}

/// Reads the marker of one directory; nothing when the directory is empty.
Result<std::optional<VolumeMarker>> ReadMarker(Directory& dir) {
  std::string entry;
  // A shared directory gets its marker from the first of several nodes. A marker that appears after
  // the first read is read again.
  for (int tries = 0; tries < 2 && (tries == 0 || entry == kMarkerName); ++tries) {
    auto text = dir.ReadSmallFile(std::string(kMarkerName), kMarkerBytesMax);
    if (text) {
      HOLDFAST_ASSIGN_OR_RETURN(VolumeMarker marker,
                                ParseMarker(*text, dir.path() + "/" + std::string(kMarkerName)));
      return std::optional(marker);
    }
    if (text.error().code() != ErrorCode::kNotFound) return Fail(text.error());
    HOLDFAST_ASSIGN_OR_RETURN(entry, FirstEntry(dir));
    if (entry.empty()) return std::optional<VolumeMarker>();
  }
  return Fail(FailedPreconditionError(fmt::format(
      "data directory {} is not empty (it contains '{}') and does not belong to Holdfast: it has "
      "no file {}. Choose an empty directory, or move its contents away",
      dir.path(), entry, kMarkerName)));
}

Status WriteMarker(Directory& dir, const VolumeMarker& marker) {
  std::string temporary = TemporaryName(std::string(kMarkerName));
  Status written = dir.WriteSmallFile(temporary, RenderMarker(marker));
  if (written.ok()) written = dir.Rename(temporary, std::string(kMarkerName));
  if (!written.ok()) {
    static_cast<void>(dir.RemoveFile(temporary));
    return written.WithContext("marking data directory " + dir.path());
  }
  return dir.SyncDirectory(".");
}

Status CheckMarker(const Directory& dir, const VolumeMarker& marker, const VolumeMarker& first,
                   const std::string& first_path, uint32_t index, const std::string& cluster) {
  if (marker.volume.starts_with(kSharedVolumePrefix)) {
    return FailedPreconditionError(fmt::format(
        "directory {} belongs to a tier that all nodes share: choose another directory for "
        "data_dirs",
        dir.path()));
  }
  if (marker.cluster != cluster) {
    return FailedPreconditionError(fmt::format(
        "data directory {} belongs to cluster '{}', but this cluster is '{}': choose another "
        "directory, or correct the cluster's name",
        dir.path(), marker.cluster, cluster));
  }
  if (marker.volume != first.volume) {
    return FailedPreconditionError(fmt::format(
        "data directory {} belongs to another volume ({}) than {} ({}): list only directories of "
        "one volume",
        dir.path(), marker.volume, first_path, first.volume));
  }
  if (marker.index != index) {
    return FailedPreconditionError(
        fmt::format("data directory {} is number {} of its volume but is listed as number {}: list "
                    "data_dirs in their original order",
                    dir.path(), marker.index + 1, index + 1));
  }
  return Status::Ok();
}

Status MissingError(const Directory& dir, uint32_t index) {
  return FailedPreconditionError(fmt::format(
      "data directory {} is empty but should be number {} of its volume: is its device mounted? If "
      "the device is lost, move the contents of the other data directories away and start again",
      dir.path(), index + 1));
}

}  // namespace

std::string RenderMarker(const VolumeMarker& marker) {
  std::string text =
      fmt::format("holdfast = {}\ncluster = \"{}\"\nvolume = \"{}\"\nindex = {}\ncount = {}\n",
                  kVolumeFormat, marker.cluster, marker.volume, marker.index, marker.count);
  return text + fmt::format("crc32c = \"{:08x}\"\n", CrcOf(text));
}

Result<VolumeMarker> ParseMarker(std::string_view text, const std::string& where) {
  std::string_view rest = text;
  uint32_t format = 0;
  VolumeMarker marker;
  bool sound = ToNumber(TakeValue(rest, "holdfast"), &format);
  if (sound && format > kVolumeFormat) {
    return Fail(UnsupportedError(fmt::format(
        "{}: the data directory has format {}, but this build reads up to {}: use a newer Holdfast",
        where, format, kVolumeFormat)));
  }
  if (sound) {
    marker.cluster = TakeValue(rest, "cluster").value_or("");
    marker.volume = TakeValue(rest, "volume").value_or("");
    sound = ToNumber(TakeValue(rest, "index"), &marker.index) &&
            ToNumber(TakeValue(rest, "count"), &marker.count);
  }
  if (!sound || RenderMarker(marker) != text) {
    return Fail(DataLossError(where +
                              ": the marker is damaged; restore it from a backup, or move the "
                              "directory's contents away"));
  }
  return marker;
}

Status ClaimDirectories(const std::vector<std::unique_ptr<Directory>>& dirs,
                        const std::string& cluster) {
  std::vector<std::optional<VolumeMarker>> found;
  for (const auto& dir : dirs) {
    HOLDFAST_ASSIGN_OR_RETURN(auto marker, ReadMarker(*dir));
    found.push_back(std::move(marker));
  }
  VolumeMarker first{cluster, RandomHex(8), 0, 1};
  for (const auto& marker : found) {
    if (marker) {
      first = *marker;
      break;
    }
  }
  bool fresh = !found[0].has_value();
  uint32_t count = fresh ? 1 : found[0]->count;
  for (uint32_t i = 0; i < dirs.size(); ++i) {
    if (found[i]) {
      HOLDFAST_RETURN_IF_ERROR(
          CheckMarker(*dirs[i], *found[i], first, dirs[0]->path(), i, cluster));
      if (fresh) return MissingError(*dirs[0], 0);
    } else if (!fresh && i < count) {
      return MissingError(*dirs[i], i);
    }
  }
  if (count > dirs.size()) {
    return FailedPreconditionError(
        fmt::format("the volume that begins in {} has {} data directories, but only {} are listed: "
                    "list all of them, in their original order",
                    dirs[0]->path(), count, dirs.size()));
  }
  // The count in the first directory is updated last, so that a crash between the markers leaves a
  // smaller volume rather than one with a missing directory.
  if (fresh) HOLDFAST_RETURN_IF_ERROR(WriteMarker(*dirs[0], {cluster, first.volume, 0, 1}));
  uint32_t wanted = static_cast<uint32_t>(dirs.size());
  for (uint32_t i = 1; i < wanted; ++i) {
    if (found[i]) continue;
    HOLDFAST_RETURN_IF_ERROR(WriteMarker(*dirs[i], {cluster, first.volume, i, wanted}));
  }
  if (count != wanted) {
    HOLDFAST_RETURN_IF_ERROR(WriteMarker(*dirs[0], {cluster, first.volume, 0, wanted}));
  }
  // The process that wrote an existing marker may have ended before its sync.
  for (const auto& dir : dirs) HOLDFAST_RETURN_IF_ERROR(dir->SyncDirectory("."));
  if (fresh) {
    Log(LogLevel::kInfo, "VolumeCreated",
        {Kv("volume", first.volume), Kv("cluster", cluster), Kv("directories", wanted)});
  }
  return Status::Ok();
}

Status ClaimShared(Directory& dir, const std::string& cluster, const std::string& volume) {
  HOLDFAST_ASSIGN_OR_RETURN(const auto found, ReadMarker(dir));
  if (!found) return WriteMarker(dir, {cluster, volume, 0, 1});
  if (found->cluster != cluster || found->volume != volume) {
    return FailedPreconditionError(fmt::format(
        "directory {} belongs to '{}' of cluster '{}', and not to '{}' of cluster '{}'; it is not "
        "touched",
        dir.path(), found->volume, found->cluster, volume, cluster));
  }
  return Status::Ok();
}

Status OrderDirectories(std::vector<std::unique_ptr<Directory>>* dirs) {
  std::vector<std::unique_ptr<Directory>> ordered(dirs->size());
  std::string volume;
  uint32_t count = 0;
  for (auto& dir : *dirs) {
    HOLDFAST_ASSIGN_OR_RETURN(auto marker, ReadMarker(*dir));
    if (!marker) {
      return FailedPreconditionError(dir->path() + " is empty: it contains no checkpoints");
    }
    if (volume.empty()) volume = marker->volume;
    if (marker->volume != volume) {
      return FailedPreconditionError(dir->path() +
                                     " belongs to another volume than the directories before it");
    }
    if (marker->index >= dirs->size() || ordered[marker->index]) {
      return FailedPreconditionError(
          fmt::format("{} is data directory number {} of its volume: give all directories of the "
                      "volume, each once",
                      dir->path(), marker->index + 1));
    }
    if (marker->index == 0) count = marker->count;
    ordered[marker->index] = std::move(dir);
  }
  if (count > ordered.size()) {
    return FailedPreconditionError(
        fmt::format("the volume that begins in {} has {} data directories, but only {} are given: "
                    "give all of them",
                    ordered[0]->path(), count, ordered.size()));
  }
  *dirs = std::move(ordered);
  return Status::Ok();
}

}  // namespace holdfast
