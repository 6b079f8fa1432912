#include "cli/export/export_layout.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "cli/core/text.h"
#include "storage/format/checksum.h"

namespace holdfast::cli {

namespace {

/// Data begins at a page, so that files are written and mapped efficiently.
constexpr uint64_t kDataAlign = kImageAlign;
/// Up to this many unneeded bytes are read, since they cost less than another request.
constexpr uint64_t kGapBytes = 4 * kChunkBytes;

/// Adds the string members of the object `key`.
void AddStrings(const nlohmann::json& from, const char* key,
                std::map<std::string, std::string>* to) {
  auto found = from.find(key);
  if (found == from.end() || !found->is_object()) return;
  for (const auto& [name, value] : found->items()) {
    if (value.is_string()) to->emplace(name, value.get<std::string>());
  }
}

/// Returns the part before the first dot; empty without a dot.
std::string EntryOf(const std::string& name) {
  size_t dot = name.find('.');
  return dot == std::string::npos ? std::string() : name.substr(0, dot);
}

std::string Quoted(const std::set<std::string>& names) {
  constexpr size_t kShownMax = 12;
  std::vector<std::string> shown;
  for (const std::string& name : names) {
    if (shown.size() == kShownMax) {
      shown.emplace_back("…");
      break;
    }
    shown.push_back("'" + name + "'");
  }
  return shown.empty() ? "none" : Join(shown, ", ");
}

/// Returns the entry that is the model, if it is unambiguous.
Result<std::string> FindModel(const std::set<std::string>& entries, const TorchNotes& notes) {
  std::set<std::string> candidates;
  for (const std::string& entry : entries) {
    auto known = notes.entries.find(entry);
    if (known == notes.entries.end() ? notes.entries.empty() : !known->second)
      candidates.insert(entry);
  }
  if (candidates.count("model") > 0) return std::string("model");
  if (candidates.size() == 1 && !notes.entries.empty()) return *candidates.begin();
  return Fail(InvalidArgumentError(
      "it is ambiguous which tensors are the model's: give --entry NAME, one of " +
      Quoted(entries) + ", or --all for all tensors by their full names"));
}

/// The pieces of each tensor, by rank: index of the shard, index of the tensor in its image.
using Pieces = std::map<std::string_view, std::vector<std::pair<uint32_t, uint32_t>>, std::less<>>;

class Planner {
 public:
  Planner(std::span<const ParsedImage> shards, const ExportForm& form)
      : shards_(shards), form_(form) {
    for (uint32_t shard = 0; shard < shards.size(); ++shard) {
      const auto& tensors = shards[shard].tensors;
      for (uint32_t i = 0; i < tensors.size(); ++i)
        pieces_[BaseTensorName(tensors[i].spec.name)].emplace_back(shard, i);
    }
    layout_.copies.resize(shards.size());
  }

  Result<ExportLayout> Plan(const std::vector<ChosenTensor>& chosen) {
    std::vector<std::vector<std::pair<TensorSpec, const ChosenTensor*>>> files(1);
    uint64_t bytes = 0;
    for (const ChosenTensor& tensor : chosen) {
      HOLDFAST_ASSIGN_OR_RETURN(TensorSpec spec, CompleteSpecOf(tensor));
      uint64_t more = BytesOf(spec);
      bool full = form_.file_bytes_max > 0 && bytes > 0 && bytes + more > form_.file_bytes_max;
      if (full) {
        files.emplace_back();
        bytes = 0;
      }
      bytes += more;
      layout_.tensor_bytes += more;
      files.back().emplace_back(std::move(spec), &tensor);
    }
    for (size_t i = 0; i < files.size(); ++i) {
      ExportFile file;
      file.name = form_.numbered
                      ? fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, files.size())
                      : "model.safetensors";
      HOLDFAST_RETURN_IF_ERROR(Place(std::move(files[i]), std::move(file)));
    }
    for (auto& copies : layout_.copies) {
      std::sort(copies.begin(), copies.end(), [](const ExportCopy& a, const ExportCopy& b) {
        return a.image_begin < b.image_begin;
      });
    }
    return std::move(layout_);
  }

 private:
  static uint64_t BytesOf(const TensorSpec& spec) {
    // Cannot overflow: the check of the image's header limits the product to 2^62.
    uint64_t bytes = SizeOf(spec.dtype);
    for (uint64_t extent : spec.shape) bytes *= extent;
    return bytes;
  }

  const PlacedTensor& TensorAt(const std::pair<uint32_t, uint32_t>& place) const {
    return shards_[place.first].tensors[place.second];
  }

  /// Returns the spec of the complete tensor, on which all its pieces must agree.
  Result<TensorSpec> CompleteSpecOf(const ChosenTensor& tensor) const {
    auto found = pieces_.find(tensor.saved);
    if (found == pieces_.end())
      return Fail(DataLossError("no rank saved tensor '" + Printable(tensor.saved) + "'"));
    const TensorSpec& first = TensorAt(found->second.front()).spec;
    for (const auto& place : found->second) {
      const TensorSpec& other = TensorAt(place).spec;
      if (other.dtype != first.dtype || other.global_shape != first.global_shape) {
        return Fail(DataLossError(fmt::format(
            "the ranks disagree on tensor '{}': rank {} saved {} of {}, rank {} {} of {}",
            Printable(tensor.saved), shards_[found->second.front().first].identity.rank.value,
            NameOf(first.dtype), FormatShape(first.global_shape),
            shards_[place.first].identity.rank.value, NameOf(other.dtype),
            FormatShape(other.global_shape))));
      }
    }
    std::vector<uint64_t> zeros(first.global_shape.size());
    return TensorSpec{tensor.name, first.dtype, first.global_shape, first.global_shape, zeros};
  }

  /// Places the tensors of one file, and plans the source of each element.
  Status Place(std::vector<std::pair<TensorSpec, const ChosenTensor*>> tensors, ExportFile file) {
    // In descending order of element size, tensors are aligned without gaps.
    std::stable_sort(tensors.begin(), tensors.end(), [](const auto& a, const auto& b) {
      return SizeOf(a.first.dtype) > SizeOf(b.first.dtype);
    });
    uint64_t end = 0;
    nlohmann::ordered_json header;
    header["__metadata__"] = form_.metadata;
    for (auto& [spec, chosen] : tensors) {
      const uint64_t begin = end;
      end += BytesOf(spec);
      header[spec.name] = {
          {"dtype", NameOf(spec.dtype)}, {"shape", spec.shape}, {"data_offsets", {begin, end}}};
      file.tensors.push_back({spec, begin, end});
    }
    std::string json = header.dump();
    json.resize((8 + json.size() + kDataAlign - 1) / kDataAlign * kDataAlign - 8, ' ');
    if (json.size() > kHeaderBytesMax) {
      return InvalidArgumentError(
          "the tensors' names and shapes do not fit into a safetensors header of 100 MB: use "
          "--format hf with a smaller --max-shard-size");
    }
    const uint64_t json_bytes = json.size();
    static_assert(std::endian::native == std::endian::little);
    file.header.assign(reinterpret_cast<const char*>(&json_bytes), sizeof(json_bytes));
    file.header += json;
    file.bytes = file.header.size() + end;
    for (size_t i = 0; i < tensors.size(); ++i) {
      HOLDFAST_RETURN_IF_ERROR(Fill(file.tensors[i], tensors[i].second->saved, file.header.size()));
    }
    layout_.files.push_back(std::move(file));
    return Status::Ok();
  }

  /// Plans the source of each element of one tensor.
  Status Fill(const PlacedTensor& whole, const std::string& saved, uint64_t data_offset) {
    const auto& places = pieces_.find(saved)->second;
    std::vector<Box> boxes;
    boxes.reserve(places.size());
    for (const auto& place : places)
      boxes.push_back({TensorAt(place).spec.offset, TensorAt(place).spec.shape});
    const Box box{whole.spec.offset, whole.spec.shape};
    if (box.empty()) return Status::Ok();
    std::vector<Box> missing;
    const std::vector<BoxPart> parts = Cover(box, boxes, missing);
    if (!missing.empty()) {
      return DataLossError(
          fmt::format("tensor '{}' is incomplete: no rank saved {} of its shape {}",
                      Printable(saved), ToString(missing.front()), FormatShape(whole.spec.shape)));
    }
    for (const BoxPart& part : parts) {
      const auto& [shard, index] = places[part.from];
      const PlacedTensor& piece = shards_[shard].tensors[index];
      layout_.copies[shard].push_back(
          {BoxCopy(boxes[part.from], box, part.box, SizeOf(whole.spec.dtype)),
           shards_[shard].data_offset + piece.begin, shards_[shard].data_offset + piece.end,
           static_cast<uint32_t>(layout_.files.size()), data_offset + whole.begin});
    }
    return Status::Ok();
  }

  std::span<const ParsedImage> shards_;
  const ExportForm& form_;
  Pieces pieces_;
  ExportLayout layout_;
};

}  // namespace

Status TorchNotes::Add(std::string_view json) {
  auto parsed = nlohmann::json::parse(json, nullptr, false);
  if (!parsed.is_object()) return DataLossError("the PyTorch client's notes are not valid JSON");
  AddStrings(parsed, "types", &types);
  AddStrings(parsed, "aliases", &aliases);
  auto parts = parsed.find("parts");
  if (parts != parsed.end() && parts->is_object()) {
    for (const auto& [name, value] : parts->items()) entries.emplace(name, value.is_array());
  }
  return Status::Ok();
}

Result<Selection> ChooseTensors(const std::vector<std::string>& saved, const TorchNotes& notes,
                                const Choice& choice) {
  std::set<std::string> entries;
  for (const std::string& name : saved) {
    if (std::string entry = EntryOf(name); !entry.empty()) entries.insert(std::move(entry));
  }
  std::string entry = choice.entry;
  if (entry.empty() && !choice.all && choice.find_model) {
    HOLDFAST_ASSIGN_OR_RETURN(entry, FindModel(entries, notes));
  }
  const std::string prefix = entry.empty() ? "" : entry + ".";
  auto within = [&prefix](const std::string& name) {
    return name.starts_with(prefix) && name.size() > prefix.size();
  };
  std::map<std::string, std::string> chosen;   // name → saved
  std::map<std::string, std::string> written;  // saved → name
  for (const std::string& name : saved) {
    if (!within(name)) continue;
    chosen.emplace(name.substr(prefix.size()), name);
    written.emplace(name, name.substr(prefix.size()));
  }
  Selection selection;
  for (const auto& [alias, target] : notes.aliases) {
    if (!within(alias)) continue;
    const std::string name = alias.substr(prefix.size());
    auto [found, added] = written.emplace(target, name);
    // Tied to a tensor of another entry, which must be exported as well.
    if (added) chosen.emplace(name, target);
    if (!added && found->second != name) selection.aliases.emplace(name, found->second);
  }
  if (chosen.empty()) {
    return Fail(InvalidArgumentError(
        entry.empty() ? "the version has no tensors"
                      : fmt::format("the version has no tensors of an entry '{}'; it has {}",
                                    Printable(entry), Quoted(entries))));
  }
  for (const auto& [name, source] : chosen) {
    selection.tensors.push_back({name, source});
    if (auto type = notes.types.find(source); type != notes.types.end())
      selection.types.emplace(name, type->second);
  }
  return selection;
}

Result<ExportLayout> PlanExport(std::span<const ParsedImage> shards,
                                const std::vector<ChosenTensor>& tensors, const ExportForm& form) {
  return Planner(shards, form).Plan(tensors);
}

std::vector<std::pair<uint64_t, uint64_t>> RangesOf(std::span<const ExportCopy> copies,
                                                    uint64_t image_bytes) {
  std::vector<std::pair<uint64_t, uint64_t>> ranges;
  for (const ExportCopy& copy : copies) {
    uint64_t begin = (copy.image_begin + copy.copy.source_begin()) / kChunkBytes * kChunkBytes;
    uint64_t end = copy.image_begin + copy.copy.source_end();
    end = std::min(image_bytes, (end + kChunkBytes - 1) / kChunkBytes * kChunkBytes);
    if (!ranges.empty() && begin <= ranges.back().second + kGapBytes) {
      ranges.back().first = std::min(ranges.back().first, begin);
      ranges.back().second = std::max(ranges.back().second, end);
    } else {
      ranges.emplace_back(begin, end);
    }
  }
  return ranges;
}

}  // namespace holdfast::cli
