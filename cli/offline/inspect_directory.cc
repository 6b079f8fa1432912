#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <optional>

#include "base/config.h"
#include "cli/core/interrupt.h"
#include "cli/core/progress.h"
#include "cli/core/text.h"
#include "cli/core/version_json.h"
#include "cli/offline/data_dirs.h"
#include "cli/offline/inspect.h"
#include "cli/offline/sealed_files.h"
#include "storage/volume/commits_file.h"
#include "storage/volume/layout.h"
#include "storage/volume/marker.h"

namespace holdfast::cli {

namespace {

namespace fs = std::filesystem;

/// One shard in a version's directory.
struct FoundShard {
  std::string seal_path;
  Rank rank;
  ShardSeal seal;  // valid when `sealed`
  bool sealed = false;
  std::vector<std::string> absent;
  uint64_t chunks_checked = 0;
  Status status;
};

/// The part of a version that is in one directory.
struct FoundVersion {
  std::string path;
  std::string job;  // by the names of the directories
  std::string version;
  std::vector<FoundShard> shards;
  std::vector<std::string> unsealed;  // data without a seal: never published
  uint64_t bytes = 0;
  uint32_t world = 0;
  std::optional<VersionCommit> commit;  // that the data directory knows
  std::string contradiction;            // why the shards here are not the committed ones

  ExitCode exit_code() const {
    ExitCode code = contradiction.empty() ? ExitCode::kOk : ExitCode::kFinding;
    for (const FoundShard& shard : shards) {
      if (!shard.status.ok()) code = Worse(code, ExitCode::kFinding);
    }
    return code;
  }
};

std::vector<std::string> NamesIn(const std::string& dir, Status* error_out) {
  std::error_code error;
  std::vector<std::string> names;
  fs::directory_iterator it(dir, error);
  for (; !error && it != fs::directory_iterator(); it.increment(error))
    names.push_back(it->path().filename().string());
  if (error) *error_out = ErrnoStatus(error.value(), "cannot list " + dir);
  std::sort(names.begin(), names.end());
  return names;
}

/// Checks that a seal has the job, version and rank of its path.
Status CheckPlace(const FoundVersion& version, const FoundShard& shard) {
  const ShardIdentity& identity = shard.seal.identity;
  bool job_differs = !version.job.empty() && identity.job != version.job;
  bool version_differs = !version.version.empty() && ToString(identity.version) != version.version;
  if (identity.rank == shard.rank && !job_differs && !version_differs) return Status::Ok();
  return DataLossError(shard.seal_path + " is the seal of " + ToString(identity.key()) +
                       ", which does not belong in this directory");
}

/// Reads one seal and checks its files.
FoundShard CheckSealInDirectory(const std::string& dir, const std::string& name,
                                const FoundVersion& version, bool deep, Progress& progress) {
  FoundShard shard;
  shard.seal_path = dir + "/" + name;
  shard.rank = ParseShardFileName(name)->rank;
  Result<ShardSeal> seal = ReadSealFile(shard.seal_path);
  if (!seal) {
    shard.status = seal.error();
    return shard;
  }
  shard.seal = *std::move(seal);
  shard.sealed = true;
  shard.status = CheckPlace(version, shard);
  if (!shard.status.ok()) return shard;
  SealedFilesCheck check =
      CheckSealedFiles(dir, shard.seal, deep, [&](uint64_t bytes) { progress.Add(bytes); });
  shard.status = check.status;
  shard.absent = check.absent;
  shard.chunks_checked = check.chunks_checked;
  if (shard.status.ok() && check.absent.size() == shard.seal.parts.size())
    shard.status = DataLossError("no file of " + shard.seal_path + " is in this directory");
  return shard;
}

/// Reads everything in a version's directory. Skips names that a volume would not write.
Result<FoundVersion> ReadVersionDirectory(const std::string& dir, bool deep, Progress& progress) {
  FoundVersion version;
  version.path = dir;
  std::error_code error;
  fs::path absolute = fs::absolute(dir, error).lexically_normal();
  if (ParseVersionDirectoryName(absolute.filename().string())) {
    version.version = ToString(ParseVersionDirectoryName(absolute.filename().string())->version);
    if (IsDataDir(absolute.parent_path().parent_path().string()))
      version.job = absolute.parent_path().filename().string();
  }
  Status listed;
  std::vector<std::string> names = NamesIn(dir, &listed);
  HOLDFAST_RETURN_IF_ERROR(listed);
  for (const std::string& name : names) {
    auto parsed = ParseShardFileName(name);
    if (!parsed) continue;
    bool has_seal = std::binary_search(names.begin(), names.end(), SealName(parsed->rank));
    if (parsed->temporary || (!parsed->seal && !has_seal)) version.unsealed.push_back(name);
    if (!parsed->seal || parsed->temporary) continue;
    version.shards.push_back(CheckSealInDirectory(dir, name, version, deep, progress));
    HOLDFAST_RETURN_IF_ERROR(Interrupt::Check());
    const FoundShard& shard = version.shards.back();
    version.bytes += shard.seal.image_bytes;
    version.world = std::max(version.world, shard.seal.identity.world);
  }
  std::sort(version.shards.begin(), version.shards.end(),
            [](const FoundShard& a, const FoundShard& b) { return a.rank < b.rank; });
  return version;
}

/// Returns the commits that a data directory knows. Only the first one of a node has any.
Result<std::vector<VersionCommit>> CommitsIn(const std::string& data_dir) {
  const std::string path = data_dir + "/" + std::string(kCommitsName);
  auto text = ReadWholeFile(path, 2 << 20);
  if (!text && text.error().code() == ErrorCode::kNotFound) return std::vector<VersionCommit>{};
  if (!text) return Fail(text.error());
  return ParseCommits(*text);
}

/// Finds the commit of the version, and compares the shards with it if all ranks are here.
void FindCommit(const std::vector<VersionCommit>& commits, FoundVersion& version) {
  std::vector<uint64_t> digests;
  for (const FoundShard& shard : version.shards) {
    if (!shard.sealed || IsParity(shard.rank)) continue;
    const ShardSeal& seal = shard.seal;
    const auto commit = std::ranges::find_if(commits, [&](const VersionCommit& one) {
      return one.job == seal.identity.job && one.version == seal.identity.version &&
             one.life == seal.life;
    });
    if (commit != commits.end()) version.commit = *commit;
    if (shard.rank.value == digests.size()) digests.push_back(seal.digest());
  }
  if (!version.commit || digests.size() != version.commit->world) return;
  if (CommitDigest(digests) == version.commit->digest) return;
  version.contradiction =
      fmt::format("the digests of its shards combine to {}, but the commit has {}",
                  FormatDigest(CommitDigest(digests)), FormatDigest(version.commit->digest));
}

std::string ResultText(const FoundShard& shard, bool deep) {
  if (!shard.status.ok()) return "DAMAGED";
  std::string text =
      deep ? fmt::format("ok, {}/{} chunks", shard.chunks_checked, shard.seal.chunk_crcs.size())
           : "structure ok";
  if (!shard.absent.empty()) text += ", parts elsewhere";
  return text;
}

Json ToJson(const FoundVersion& version) {
  Json shards = Json::array();
  for (const FoundShard& shard : version.shards) {
    Json one = {{"seal", shard.seal_path}};
    if (IsParity(shard.rank)) {
      one["parity"] = ParityNode(shard.rank);
    } else {
      one["rank"] = shard.rank.value;
    }
    if (shard.sealed) one.update(SealJson(shard.seal));
    one["ok"] = shard.status.ok();
    one["chunks_checked"] = shard.chunks_checked;
    one["absent_parts"] = shard.absent;
    one["message"] = shard.status.message();
    shards.push_back(std::move(one));
  }
  return {{"path", version.path},
          {"bytes", version.bytes},
          {"world", version.world},
          {"commit_digest",
           version.commit ? Json(FormatDigest(version.commit->digest)) : Json(nullptr)},
          {"contradiction", version.contradiction},
          {"shards", shards},
          {"unsealed", version.unsealed}};
}

/// Writes complete messages below a table, whose cells may be cut.
void WriteFindings(Output& output, const FoundVersion& version) {
  for (const FoundShard& shard : version.shards) {
    if (!shard.status.ok())
      output.Write(output.Tint("DAMAGED", Tone::kBad) + " " + Printable(shard.status.message()) +
                   "\n");
  }
  if (!version.contradiction.empty()) {
    output.Write(output.Tint("NOT AS COMMITTED", Tone::kBad) + " " +
                 Printable(version.path + ": " + version.contradiction) + "\n");
  }
  for (const std::string& name : version.unsealed)
    output.Write("note: " + Printable(version.path + "/" + name) +
                 " has no seal: it was never published\n");
}

/// Prints one row per shard.
Result<ExitCode> InspectVersion(Context& context, const InspectRequest& request) {
  Output& output = context.output;
  Result<FoundVersion> version = FoundVersion();
  {
    Progress progress("reading", 0, request.deep, context.clock);
    version = ReadVersionDirectory(request.path, request.deep, progress);
  }
  if (!version) return Fail(version.error());
  if (!version->job.empty()) {
    std::error_code error;
    const fs::path dir = fs::absolute(request.path, error).lexically_normal();
    HOLDFAST_ASSIGN_OR_RETURN(const auto commits,
                              CommitsIn(dir.parent_path().parent_path().string()));
    FindCommit(commits, *version);
  }
  if (output.json()) {
    Json body = {{"what", "version"}, {"deep", request.deep}};
    body.update(ToJson(*version));
    output.WriteJson("inspect", body);
    return version->exit_code();
  }
  KeyValues values;
  values.Add("directory", request.path);
  values.Add("kind", "shards of one version");
  values.Add("holds", fmt::format("{} of a world of {}, {}", Count(version->shards.size(), "shard"),
                                  version->world, FormatBytes(version->bytes)));
  if (version->commit) values.Add("commit digest", FormatDigest(version->commit->digest));
  output.Write(values.Render() + "\n");
  Table table({{"RANK", true, false},
               {"SHARD", false, true},
               {"SIZE", true, false},
               {"PARTS", true, false},
               {"DIGEST", false, false},
               {"SEALED", false, true},
               {"RESULT", false, false}});
  for (const FoundShard& shard : version->shards) {
    const ShardSeal& seal = shard.seal;
    Tone tone = shard.status.ok() ? Tone::kGood : Tone::kBad;
    table.Add({{IsParity(shard.rank) ? ShardName(shard.rank) : std::to_string(shard.rank.value)},
               {shard.sealed ? ToString(seal.identity.key()) : "?"},
               {shard.sealed ? FormatBytes(seal.image_bytes) : "?"},
               {std::to_string(seal.parts.size())},
               {shard.sealed ? FormatDigest(seal.digest()) : "?"},
               {seal.wall_nanos != 0 ? FormatUtc(seal.wall_nanos) : "-"},
               {ResultText(shard, request.deep), tone}});
  }
  output.WriteTable(table);
  WriteFindings(output, *version);
  return version->exit_code();
}

/// Returns the versions' directories in a job's directory or a data directory.
std::vector<std::string> VersionDirsOf(const std::string& path, bool data_dir, Status* error) {
  std::vector<std::string> dirs;
  std::vector<std::string> jobs = {path};
  if (data_dir) {
    jobs.clear();
    for (const std::string& name : NamesIn(path, error)) {
      std::error_code ignored;
      if (ValidateJobName(name).ok() && name != kLostAndFoundName &&
          fs::is_directory(path + "/" + name, ignored))
        jobs.push_back(path + "/" + name);
    }
  }
  for (const std::string& job : jobs) {
    for (const std::string& name : NamesIn(job, error)) {
      auto parsed = ParseVersionDirectoryName(name);
      if (parsed && !parsed->tombstone) dirs.push_back(job + "/" + name);
    }
  }
  return dirs;
}

/// A data directory, or the directory of one job in it.
struct FoundTree {
  std::optional<VolumeMarker> marker;  // of a data directory
  std::vector<FoundVersion> versions;

  ExitCode exit_code() const {
    ExitCode code = ExitCode::kOk;
    for (const FoundVersion& version : versions) code = Worse(code, version.exit_code());
    return code;
  }
};

Result<FoundTree> ReadTree(Context& context, const InspectRequest& request, bool data_dir) {
  FoundTree tree;
  if (data_dir) {
    std::string path = request.path + "/" + std::string(kMarkerName);
    HOLDFAST_ASSIGN_OR_RETURN(std::string text, ReadWholeFile(path, 64 << 10));
    HOLDFAST_ASSIGN_OR_RETURN(tree.marker, ParseMarker(text, path));
  }
  Status listed;
  std::vector<std::string> dirs = VersionDirsOf(request.path, data_dir, &listed);
  HOLDFAST_RETURN_IF_ERROR(listed);
  std::error_code error;
  const fs::path here = fs::absolute(request.path, error).lexically_normal();
  HOLDFAST_ASSIGN_OR_RETURN(const auto commits,
                            CommitsIn(data_dir ? request.path : here.parent_path().string()));
  Progress progress("reading", 0, request.deep, context.clock);
  for (const std::string& dir : dirs) {
    HOLDFAST_ASSIGN_OR_RETURN(FoundVersion version,
                              ReadVersionDirectory(dir, request.deep, progress));
    FindCommit(commits, version);
    tree.versions.push_back(std::move(version));
  }
  return tree;
}

Json ToJson(const FoundTree& tree, const InspectRequest& request) {
  Json body = {
      {"what", tree.marker ? "data_dir" : "job"}, {"path", request.path}, {"deep", request.deep}};
  if (tree.marker) {
    body.update({{"cluster", tree.marker->cluster},
                 {"volume", tree.marker->volume},
                 {"index", tree.marker->index}});
  }
  Json list = Json::array();
  for (const FoundVersion& version : tree.versions) {
    Json one = {{"job", version.job}, {"version", version.version}};
    one.update(ToJson(version));
    list.push_back(std::move(one));
  }
  body["versions"] = list;
  return body;
}

/// Writes one row per version.
void WriteTree(Output& output, const FoundTree& tree, const InspectRequest& request) {
  KeyValues values;
  values.Add("directory", request.path);
  values.Add("kind", tree.marker ? "data directory" : "a job's versions in a data directory");
  if (tree.marker) {
    values.Add("cluster", tree.marker->cluster);
    values.Add("volume",
               fmt::format("{}, directory {}", tree.marker->volume, tree.marker->index + 1));
  }
  output.Write(values.Render() + "\n");
  Table table({{"JOB", false, true},
               {"VERSION", false, false},
               {"SHARDS", true, false},
               {"WORLD", true, false},
               {"SIZE", true, false},
               {"COMMIT", false, false},
               {"RESULT", false, false}});
  for (const FoundVersion& version : tree.versions) {
    bool ok = version.exit_code() == ExitCode::kOk;
    std::string good = request.deep ? "ok, every byte here" : "structure ok";
    table.Add({{version.job},
               {version.version},
               {std::to_string(version.shards.size())},
               {std::to_string(version.world)},
               {FormatBytes(version.bytes)},
               {version.commit ? FormatDigest(version.commit->digest) : "-"},
               {ok ? good : "DAMAGED", ok ? Tone::kGood : Tone::kBad}});
  }
  if (table.empty()) {
    output.Write("it contains no version\n");
  } else {
    output.WriteTable(table);
  }
  for (const FoundVersion& version : tree.versions) WriteFindings(output, version);
}

/// Inspects a data directory, or the versions of one job in it.
Result<ExitCode> InspectTree(Context& context, const InspectRequest& request, bool data_dir) {
  HOLDFAST_ASSIGN_OR_RETURN(const FoundTree tree, ReadTree(context, request, data_dir));
  if (context.output.json()) {
    context.output.WriteJson("inspect", ToJson(tree, request));
  } else {
    WriteTree(context.output, tree, request);
  }
  return tree.exit_code();
}

/// Returns whether `dir` contains files of shards. A copy of a version's directory may have any
/// name.
bool HoldsShards(const std::string& dir) {
  Status ignored;
  std::vector<std::string> names = NamesIn(dir, &ignored);
  return std::any_of(names.begin(), names.end(),
                     [](const std::string& name) { return ParseShardFileName(name).has_value(); });
}

std::vector<std::string> SafetensorsIn(const std::string& dir) {
  Status ignored;
  std::vector<std::string> names = NamesIn(dir, &ignored);
  std::erase_if(names, [](const std::string& name) {
    return !name.ends_with(".safetensors") || name.front() == '.';
  });
  return names;
}

/// Prints one row per file of a folder that `restore`, `export` or another program wrote.
Result<ExitCode> InspectFolder(Context& context, const InspectRequest& request,
                               const std::vector<std::string>& names) {
  ExitCode code = ExitCode::kOk;
  Json files = Json::array();
  std::vector<std::string> damage;
  Table table({{"FILE", false, true},
               {"SHARD", false, true},
               {"TENSORS", true, false},
               {"SIZE", true, false},
               {"RESULT", false, false}});
  for (const std::string& name : names) {
    HOLDFAST_RETURN_IF_ERROR(Interrupt::Check());
    const auto image = ReadImageHeader(request.path + "/" + name);
    if (!image) {
      code = Worse(code, ExitCodeOf(image.error()));
      damage.push_back(image.error().message());
      files.push_back({{"file", name}, {"ok", false}, {"message", image.error().message()}});
      table.Add({{name}, {"?"}, {"?"}, {"?"}, {"DAMAGED", Tone::kBad}});
      continue;
    }
    const bool ours = image->format != 0;
    const std::string shard = ours ? ToString(image->identity.key()) : "-";
    files.push_back({{"file", name},
                     {"ok", true},
                     {"shard", ours ? Json(shard) : Json(nullptr)},
                     {"tensors", image->tensors.size()},
                     {"bytes", image->image_bytes}});
    table.Add({{name},
               {shard},
               {std::to_string(image->tensors.size())},
               {FormatBytes(image->image_bytes)},
               {"header ok", Tone::kGood}});
  }
  Output& output = context.output;
  if (output.json()) {
    output.WriteJson("inspect", {{"what", "folder"}, {"path", request.path}, {"files", files}});
    return code;
  }
  KeyValues values;
  values.Add("directory", request.path);
  values.Add("kind", "folder of safetensors files, without seals");
  output.Write(values.Render() + "\n");
  output.WriteTable(table);
  for (const std::string& text : damage) {
    output.Write(output.Tint("DAMAGED", Tone::kBad) + " " + Printable(text) + "\n");
  }
  return code;
}

}  // namespace

Result<ExitCode> InspectDirectory(Context& context, const InspectRequest& request) {
  std::error_code error;
  fs::path absolute = fs::absolute(request.path, error).lexically_normal();
  if (IsDataDir(request.path)) return InspectTree(context, request, true);
  if (IsDataDir(absolute.parent_path().string())) return InspectTree(context, request, false);
  if (ParseVersionDirectoryName(absolute.filename().string()) || HoldsShards(request.path))
    return InspectVersion(context, request);
  const std::vector<std::string> files = SafetensorsIn(request.path);
  if (!files.empty()) return InspectFolder(context, request, files);
  return Fail(FailedPreconditionError(
      request.path +
      " is neither a data directory nor a version's directory: it has no file named " +
      std::string(kMarkerName) + " and no rank-N.seal; to inspect one file, name the file"));
}

}  // namespace holdfast::cli
