#include "storage/format/image.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <unordered_map>
#include <unordered_set>

#include "storage/format/header_text.h"

namespace holdfast {

namespace {

/// Returns why the tensor is invalid, or an empty text when it is valid. Sets `bytes` to its size.
std::string ProblemWith(const TensorSpec& spec, uint64_t* bytes) {
  if (spec.name.empty()) return "has no name";
  if (spec.name.size() > kTensorNameMax) {
    return fmt::format("has a name of {} bytes; at most {} are allowed", spec.name.size(),
                       kTensorNameMax);
  }
  if (!IsUtf8(spec.name)) return "has a name that is not UTF-8";
  if (spec.name == kMetadataKey) return "has a name that safetensors reserves";
  if (spec.name.starts_with(kExtraPrefix)) return "has a name that is reserved for extra state";
  if (SizeOf(spec.dtype) == 0) return "has an unknown dtype";
  if (spec.shape.size() > kDimensionsMax) {
    return fmt::format("has {} dimensions; at most {} are allowed", spec.shape.size(),
                       kDimensionsMax);
  }
  if (spec.global_shape.size() != spec.shape.size() || spec.offset.size() != spec.shape.size()) {
    return fmt::format("has {} dimensions, but {} in its global shape and {} in its offset",
                       spec.shape.size(), spec.global_shape.size(), spec.offset.size());
  }
  uint64_t global_bytes = 0;
  if (!TensorBytes(spec.dtype, spec.shape, bytes) ||
      !TensorBytes(spec.dtype, spec.global_shape, &global_bytes)) {
    return fmt::format("has too many bytes to count: shape {}, global shape {}",
                       ShapeForMessage(spec.shape), ShapeForMessage(spec.global_shape));
  }
  for (size_t d = 0; d < spec.shape.size(); ++d) {
    if (spec.shape[d] > spec.global_shape[d] ||
        spec.offset[d] > spec.global_shape[d] - spec.shape[d]) {
      return fmt::format("is not inside its global tensor: shape {} at {} in {}",
                         ShapeForMessage(spec.shape), ShapeForMessage(spec.offset),
                         ShapeForMessage(spec.global_shape));
    }
  }
  return {};
}

Status ProblemsStatus(const std::vector<std::string>& problems) {
  constexpr size_t kShownMax = 50;
  std::string text;
  for (size_t i = 0; i < problems.size() && i < kShownMax; ++i) {
    if (i > 0) text += "; ";
    text += problems[i];
  }
  if (problems.size() > kShownMax) {
    text += fmt::format("; and {} more", problems.size() - kShownMax);
  }
  return InvalidArgumentError(text);
}

}  // namespace

std::string_view BaseTensorName(std::string_view name) {
  const size_t at = name.rfind(kSliceSeparator);
  if (at == std::string_view::npos || at == 0 || at + 1 == name.size()) return name;
  const std::string_view number = name.substr(at + 1);
  const bool further = number.find_first_not_of("0123456789") == std::string_view::npos;
  return further ? name.substr(0, at) : name;
}

Result<ImageLayout> ImageLayout::Plan(std::vector<TensorSpec> tensors,
                                      std::span<const uint64_t> places, uint32_t format) {
  if (tensors.size() > kTensorsMax) {
    return Fail(InvalidArgumentError(fmt::format("{} tensors in one shard; at most {} are allowed",
                                                 tensors.size(), kTensorsMax)));
  }
  std::vector<std::string> problems;
  std::vector<uint64_t> bytes(tensors.size());
  std::unordered_set<std::string_view> names;
  for (size_t i = 0; i < tensors.size(); ++i) {
    std::string problem = ProblemWith(tensors[i], &bytes[i]);
    if (problem.empty() && !names.insert(tensors[i].name).second) problem = "occurs twice";
    if (!problem.empty()) {
      problems.push_back("tensor " + QuoteForMessage(tensors[i].name) + " " + problem);
    }
  }
  if (!problems.empty()) return Fail(ProblemsStatus(problems));

  ImageLayout layout;
  layout.format_ = format;
  layout.original_index_.resize(tensors.size());
  std::iota(layout.original_index_.begin(), layout.original_index_.end(), 0U);
  std::sort(layout.original_index_.begin(), layout.original_index_.end(),
            [&](uint32_t a, uint32_t b) {
              const uint32_t size_a = SizeOf(tensors[a].dtype);
              const uint32_t size_b = SizeOf(tensors[b].dtype);
              if (size_a != size_b) return size_a > size_b;
              if (!places.empty() && places[a] != places[b]) return places[a] < places[b];
              return tensors[a].name < tensors[b].name;
            });
  layout.tensors_.reserve(tensors.size());
  SlicesText slices(format);
  for (uint32_t index : layout.original_index_) {
    const uint64_t begin = layout.tensor_bytes_;
    const uint64_t end = begin + bytes[index];
    if (end >= kImageBytesMax) {
      return Fail(InvalidArgumentError("the tensors together have too many bytes to count"));
    }
    TensorSpec& spec = tensors[index];
    AppendTensorEntry(spec.name, spec.dtype, spec.shape, begin, end, &layout.tensors_json_);
    slices.Add(spec);
    layout.tensors_.push_back({std::move(spec), begin, end});
    layout.tensor_bytes_ = end;
  }
  layout.slices_json_ = slices.Escaped();
  if (HeaderBytesBound(layout.tensors_json_.size(), 0, layout.slices_json_.size()) >
      kHeaderBytesMax) {
    return Fail(InvalidArgumentError(
        "the tensors' names and shapes do not fit into a safetensors header of 100 MB: save fewer "
        "tensors per rank, or use shorter names"));
  }
  return layout;
}

Result<std::string> ImageLayout::RenderHeader(const ShardIdentity& identity,
                                              std::span<const ExtraSize> extras) const {
  if (tensors_.size() + extras.size() > kTensorsMax) {
    return Fail(InvalidArgumentError(
        fmt::format("{} tensors and {} entries of extra state; at most {} together are allowed",
                    tensors_.size(), extras.size(), kTensorsMax)));
  }
  std::unordered_set<std::string_view> names;
  std::string entries;
  std::string name;
  uint64_t begin = tensor_bytes_;
  for (const ExtraSize& extra : extras) {
    HOLDFAST_RETURN_IF_ERROR(ValidateName("extra state", extra.name));
    if (!names.insert(extra.name).second) {
      return Fail(
          InvalidArgumentError("extra state " + QuoteForMessage(extra.name) + " occurs twice"));
    }
    uint64_t end = 0;
    if (__builtin_add_overflow(begin, extra.bytes, &end) || end >= kImageBytesMax) {
      return Fail(InvalidArgumentError("extra state " + QuoteForMessage(extra.name) +
                                       " has too many bytes to count"));
    }
    name.assign(kExtraPrefix).append(extra.name);
    AppendTensorEntry(name, DType::kU8, std::span(&extra.bytes, 1), begin, end, &entries);
    begin = end;
  }
  return AssembleHeader(
      identity,
      {.format = format_, .tensors = tensors_json_, .extras = entries, .slices = slices_json_}, 0);
}

std::optional<std::string> ImageLayout::WithoutTensors(std::string_view json) const {
  // As AssembleHeader writes them: the slices are the last field of the metadata, the tensors
  // follow, then the extras.
  std::string before("\"");
  before.append(kSlicesKey).append("\":\"");
  const size_t at = json.find(before);
  if (at == std::string_view::npos) return std::nullopt;
  const size_t slices = at + before.size();
  std::string same(slices_json_);
  same.append("\"}");
  const size_t metadata_end = slices + same.size();
  if (!tensors_json_.empty()) same.append(",").append(tensors_json_);
  if (!json.substr(slices).starts_with(same)) return std::nullopt;
  const std::string_view after = json.substr(slices + same.size());
  if (after.empty() || (after[0] != ',' && after[0] != '}')) return std::nullopt;
  // The brackets of the slices remain.
  return std::string(json.substr(0, slices + 1))
      .append(json.substr(metadata_end - 3, 3))
      .append(after);
}

uint64_t ImageLayout::ImageBytesMax(uint64_t extra_bytes, uint64_t extra_count) const {
  // An upper bound for a name of 128 bytes, three numbers of 20 digits and the JSON around them.
  constexpr uint64_t kExtraEntryMax = 320;
  uint64_t entries = 0;
  uint64_t total = 0;
  if (__builtin_mul_overflow(kExtraEntryMax, extra_count, &entries) || entries >= kImageBytesMax ||
      __builtin_add_overflow(
          HeaderBytesBound(tensors_json_.size(), entries, slices_json_.size()) + tensor_bytes_,
          extra_bytes, &total)) {
    return ~uint64_t{0};
  }
  return total;
}

namespace {

/// Appends one sentence for each difference between `saved` and `wanted`.
void DescribeOne(const TensorSpec& saved, const TensorSpec& wanted,
                 std::vector<std::string>* sentences) {
  const std::string name = QuoteForMessage(wanted.name);
  if (saved.dtype != wanted.dtype) {
    sentences->push_back(fmt::format("tensor {} was saved as {} but is requested as {}.", name,
                                     NameOf(saved.dtype), NameOf(wanted.dtype)));
  }
  auto compare = [&](std::string_view what, const std::vector<uint64_t>& was,
                     const std::vector<uint64_t>& is) {
    if (was == is) return;
    sentences->push_back(fmt::format("tensor {} was saved with {} {} but is requested with {}.",
                                     name, what, ShapeForMessage(was), ShapeForMessage(is)));
  };
  compare("shape", saved.shape, wanted.shape);
  compare("global shape", saved.global_shape, wanted.global_shape);
  compare("offset", saved.offset, wanted.offset);
}

}  // namespace

std::vector<std::string> DescribeDifferences(std::span<const PlacedTensor> saved,
                                             std::span<const TensorSpec> wanted) {
  std::unordered_map<std::string_view, const TensorSpec*> unmatched;
  unmatched.reserve(saved.size());
  for (const PlacedTensor& tensor : saved) unmatched.emplace(tensor.spec.name, &tensor.spec);
  std::unordered_set<std::string_view> seen;
  seen.reserve(wanted.size());
  std::vector<std::string> sentences;
  for (const TensorSpec& spec : wanted) {
    if (!seen.insert(spec.name).second) {
      sentences.push_back("tensor " + QuoteForMessage(spec.name) + " is requested twice.");
      continue;
    }
    auto found = unmatched.find(spec.name);
    if (found == unmatched.end()) {
      sentences.push_back("tensor " + QuoteForMessage(spec.name) +
                          " is requested but was not saved.");
      continue;
    }
    DescribeOne(*found->second, spec, &sentences);
  }
  for (const PlacedTensor& tensor : saved) {
    if (!seen.contains(tensor.spec.name)) {
      sentences.push_back("tensor " + QuoteForMessage(tensor.spec.name) +
                          " was saved but is not requested.");
    }
  }
  return sentences;
}

}  // namespace holdfast
