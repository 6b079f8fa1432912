#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <optional>

#include "base/config.h"
#include "base/fd.h"
#include "cli/core/progress.h"
#include "cli/core/text.h"
#include "cli/core/version_json.h"
#include "cli/offline/data_dirs.h"
#include "cli/offline/inspect.h"
#include "cli/offline/sealed_files.h"
#include "storage/volume/layout.h"
#include "storage/volume/marker.h"

namespace holdfast::cli {

std::string KeyValues::Render() const {
  size_t width = 0;
  for (const auto& [name, value] : rows_) width = std::max(width, name.size() + 1);
  std::string out;
  for (const auto& [name, value] : rows_)
    out += Pad(name + ":", width, false) + "  " + Printable(value) + "\n";
  return out;
}

Json SealJson(const ShardSeal& seal) {
  Json parts = Json::array();
  for (const SealPart& part : seal.parts) {
    parts.push_back({{"image_begin", part.image_begin},
                     {"image_end", part.image_end},
                     {"data_offset", part.data_offset},
                     {"file_bytes", part.file_bytes}});
  }
  return {{"job", seal.identity.job},
          {"version", VersionJson(seal.identity.version)},
          {"rank", seal.identity.rank.value},
          {"world", seal.identity.world},
          {"bytes", seal.image_bytes},
          {"chunks", seal.chunk_crcs.size()},
          {"digest", FormatDigest(seal.digest())},
          {"sealed_at", TimeJson(seal.wall_nanos)},
          {"parts", parts}};
}

void AddSeal(const ShardSeal& seal, KeyValues& values) {
  values.Add("shard", fmt::format("{} of a world of {}", ToString(seal.identity.key()),
                                  seal.identity.world));
  values.Add("image", fmt::format("{} ({} bytes) in {}", FormatBytes(seal.image_bytes),
                                  seal.image_bytes, Count(seal.chunk_crcs.size(), "chunk")));
  values.Add("digest", FormatDigest(seal.digest()));
  if (seal.wall_nanos != 0) values.Add("sealed", FormatUtc(seal.wall_nanos));
}

namespace {

namespace fs = std::filesystem;
constexpr std::string_view kSealMagic = "HFSEAL";

std::string FolderOf(const std::string& path) {
  std::string folder = fs::path(path).parent_path().string();
  return folder.empty() ? "." : folder;
}

/// The result of checking a file's bytes.
struct BytesResult {
  std::string text;
  bool checked = false;  // a seal was available to compare with
  std::vector<std::string> absent;
  uint64_t chunks_checked = 0;
  Status status;
};

/// Compares the files in `dir` with `seal`, as far as they exist.
BytesResult CheckAgainstSeal(Context& context, const std::string& dir, const ShardSeal& seal,
                             bool deep) {
  Progress progress("reading", seal.image_bytes, deep, context.clock);
  SealedFilesCheck check =
      CheckSealedFiles(dir, seal, deep, [&](uint64_t bytes) { progress.Add(bytes); });
  BytesResult result{"", true, check.absent, check.chunks_checked, check.status};
  if (!check.status.ok()) {
    result.text = "DAMAGED: " + check.status.message();
  } else if (!deep) {
    result.text = "structure ok (--deep compares every byte)";
  } else {
    result.text =
        fmt::format("{} of {} ok", check.chunks_checked, Count(seal.chunk_crcs.size(), "chunk"));
  }
  if (!check.absent.empty()) result.text += "; not in this directory: " + Join(check.absent, ", ");
  return result;
}

Json ToJson(const BytesResult& result) {
  return {{"ok", result.status.ok()},
          {"compared", result.checked},
          {"chunks_checked", result.chunks_checked},
          {"absent_parts", result.absent},
          {"message", result.status.message()}};
}

ExitCode ExitCodeFor(const BytesResult& result) {
  if (!result.status.ok()) return ExitCodeOf(result.status);
  return ExitCode::kOk;
}

/// Complete descriptions of the tensors, unlike the table, whose cells may be cut.
Json TensorsJson(const ParsedImage& image) {
  Json tensors = Json::array();
  for (const PlacedTensor& tensor : image.tensors) {
    tensors.push_back({{"name", tensor.spec.name},
                       {"dtype", NameOf(tensor.spec.dtype)},
                       {"shape", tensor.spec.shape},
                       {"global_shape", tensor.spec.global_shape},
                       {"offset", tensor.spec.offset},
                       {"begin", tensor.begin},
                       {"bytes", tensor.bytes()}});
  }
  return tensors;
}

/// "[0:512, 0:1024] of [2048, 1024]"; "whole" for an unsharded tensor.
std::string SliceText(const TensorSpec& spec) {
  if (!spec.sharded()) return "whole";
  std::vector<std::string> ranges;
  for (size_t d = 0; d < spec.shape.size(); ++d) {
    uint64_t begin = d < spec.offset.size() ? spec.offset[d] : 0;
    ranges.push_back(fmt::format("{}:{}", begin, begin + spec.shape[d]));
  }
  return "[" + Join(ranges, ", ") + "] of " + FormatShape(spec.global_shape);
}

/// Writes the tensors in the order of the file, then the extras.
void WriteTensors(Output& output, const ParsedImage& image) {
  Table tensors({{"TENSOR", false, true},
                 {"DTYPE", false, false},
                 {"SHAPE", false, true},
                 {"SLICE", false, true},
                 {"BYTES", true, false}});
  for (const PlacedTensor& tensor : image.tensors) {
    tensors.Add({{tensor.spec.name},
                 {std::string(NameOf(tensor.spec.dtype))},
                 {FormatShape(tensor.spec.shape)},
                 {SliceText(tensor.spec)},
                 {std::to_string(tensor.bytes())}});
  }
  if (!tensors.empty()) {
    output.Write("\n");
    output.WriteTable(tensors);
  }
  Table extras({{"EXTRA", false, true}, {"BYTES", true, false}});
  for (const PlacedExtra& extra : image.extras)
    extras.Add({{extra.name}, {std::to_string(extra.bytes())}});
  if (!extras.empty()) {
    output.Write("\n");
    output.WriteTable(extras);
  }
}

/// Returns the seal next to an image or part with a volume's file name, if it exists.
std::optional<Result<ShardSeal>> FindSealOf(const std::string& path) {
  auto name = ParseShardFileName(fs::path(path).filename().string());
  if (!name || name->seal || name->temporary) return std::nullopt;
  std::string seal = FolderOf(path) + "/" + SealName(name->rank);
  std::error_code error;
  if (!fs::exists(seal, error)) return std::nullopt;
  return ReadSealFile(seal);
}

/// Compares an image with the seal next to it. Without a seal, computes the digest, to compare with
/// another replica.
BytesResult CheckImage(Context& context, const InspectRequest& request, const ParsedImage& image) {
  auto seal = FindSealOf(request.path);
  if (seal && !*seal) return {"DAMAGED: " + seal->error().message(), true, {}, 0, seal->error()};
  if (seal) return CheckAgainstSeal(context, FolderOf(request.path), **seal, request.deep);
  BytesResult result{"no seal next to it to compare the bytes with", false, {}, 0, {}};
  if (!request.deep) return result;
  Progress progress("reading", image.image_bytes, true, context.clock);
  Result<uint64_t> digest =
      DigestOfFile(request.path, [&](uint64_t bytes) { progress.Add(bytes); });
  result.status = digest ? Status::Ok() : digest.error();
  result.text += digest ? "; digest " + FormatDigest(*digest) : "; " + digest.error().message();
  return result;
}

/// Returns the value of "what" in the JSON output.
std::string WhatIs(const ParsedImage& image) {
  if (image.format == 0) return "safetensors";
  return image.metadata.count("holdfast.part") > 0 ? "part" : "image";
}

/// Inspects an image, a part of one, or a safetensors file of another program.
Result<ExitCode> InspectImage(Context& context, const InspectRequest& request) {
  HOLDFAST_ASSIGN_OR_RETURN(ParsedImage image, ReadImageHeader(request.path));
  BytesResult result = CheckImage(context, request, image);
  std::string what = WhatIs(image);
  Output& output = context.output;
  if (output.json()) {
    Json extras = Json::array();
    for (const PlacedExtra& extra : image.extras)
      extras.push_back({{"name", extra.name}, {"bytes", extra.bytes()}});
    Json body = {{"what", what},
                 {"path", request.path},
                 {"format", image.format},
                 {"bytes", image.image_bytes},
                 {"data_offset", image.data_offset}};
    if (image.format != 0) {
      body["job"] = image.identity.job;
      body["version"] = VersionJson(image.identity.version);
      body["rank"] = image.identity.rank.value;
      body["world"] = image.identity.world;
    }
    body["metadata"] = image.metadata;
    body["tensors"] = TensorsJson(image);
    body["extras"] = extras;
    body["check"] = ToJson(result);
    output.WriteJson("inspect", body);
    return ExitCodeFor(result);
  }
  // Foreign files have no shard identity, and are described by their own metadata.
  KeyValues values;
  values.Add("file", request.path);
  if (what == "safetensors") {
    values.Add("kind", "safetensors file, not written by Holdfast");
  } else {
    std::string part = "image of a shard";
    if (what == "part") {
      part = fmt::format("part {} of {} of a shard", image.metadata["holdfast.part"],
                         image.metadata["holdfast.parts"]);
    }
    values.Add("kind", fmt::format("{}, format {}", part, image.format));
    values.Add("shard", fmt::format("{} of a world of {}", ToString(image.identity.key()),
                                    image.identity.world));
  }
  values.Add("size", fmt::format("{} ({} bytes), data at {}", FormatBytes(image.image_bytes),
                                 image.image_bytes, image.data_offset));
  values.Add("holds",
             Count(image.tensors.size(), "tensor") + ", " + Count(image.extras.size(), "extra"));
  for (const auto& [name, value] : image.metadata) {
    if (name.rfind("holdfast.", 0) != 0) values.Add(name, FitWidth(Printable(value), 120));
  }
  values.Add("bytes", result.text);
  output.Write(values.Render());
  WriteTensors(output, image);
  return ExitCodeFor(result);
}

Result<ExitCode> InspectSeal(Context& context, const InspectRequest& request) {
  HOLDFAST_ASSIGN_OR_RETURN(ShardSeal seal, ReadSealFile(request.path));
  BytesResult result = CheckAgainstSeal(context, FolderOf(request.path), seal, request.deep);
  Output& output = context.output;
  if (output.json()) {
    Json body = {{"what", "seal"}, {"path", request.path}};
    body.update(SealJson(seal));
    body["check"] = ToJson(result);
    output.WriteJson("inspect", body);
    return ExitCodeFor(result);
  }
  KeyValues values;
  values.Add("file", request.path);
  values.Add("kind", "seal of a shard");
  AddSeal(seal, values);
  values.Add("bytes", result.text);
  output.Write(values.Render());
  Table parts({{"PART", true, false},
               {"IMAGE BEGIN", true, false},
               {"IMAGE END", true, false},
               {"DATA AT", true, false},
               {"FILE BYTES", true, false},
               {"FILE", false, true}});
  auto count = static_cast<uint32_t>(seal.parts.size());
  for (uint32_t i = 0; i < count; ++i) {
    const SealPart& part = seal.parts[i];
    parts.Add({{std::to_string(i)},
               {std::to_string(part.image_begin)},
               {std::to_string(part.image_end)},
               {std::to_string(part.data_offset)},
               {std::to_string(part.file_bytes)},
               {PartName(seal.identity.rank, i, count)}});
  }
  if (!parts.empty()) {
    output.Write("\n");
    output.WriteTable(parts);
  }
  return ExitCodeFor(result);
}

Result<ExitCode> InspectMarker(Context& context, const InspectRequest& request) {
  HOLDFAST_ASSIGN_OR_RETURN(std::string text, ReadWholeFile(request.path, 64 << 10));
  HOLDFAST_ASSIGN_OR_RETURN(VolumeMarker marker, ParseMarker(text, request.path));
  if (context.output.json()) {
    context.output.WriteJson("inspect", {{"what", "marker"},
                                         {"path", request.path},
                                         {"cluster", marker.cluster},
                                         {"volume", marker.volume},
                                         {"index", marker.index}});
    return ExitCode::kOk;
  }
  KeyValues values;
  values.Add("file", request.path);
  values.Add("kind", "marker of a data directory");
  values.Add("cluster", marker.cluster);
  values.Add("volume", fmt::format("{}, directory {}", marker.volume, marker.index + 1));
  context.output.Write(values.Render());
  return ExitCode::kOk;
}

/// Returns the first bytes of a file; empty when it cannot be read. The caller's reader reports the
/// error.
std::string FirstBytes(const std::string& path, size_t count) {
  UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  std::string bytes(count, '\0');
  ssize_t n = fd.valid() ? ::read(fd.get(), bytes.data(), count) : 0;
  bytes.resize(n > 0 ? static_cast<size_t>(n) : 0);
  return bytes;
}

}  // namespace

Result<ExitCode> InspectFile(Context& context, const InspectRequest& request) {
  std::string name = fs::path(request.path).filename().string();
  auto shard_name = ParseShardFileName(name);
  bool named_seal = shard_name && shard_name->seal;
  if (named_seal || FirstBytes(request.path, kSealMagic.size()) == kSealMagic)
    return InspectSeal(context, request);
  if (name == kMarkerName) return InspectMarker(context, request);
  return InspectImage(context, request);
}

}  // namespace holdfast::cli
