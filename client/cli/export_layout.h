#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "storage/format/image.h"
#include "storage/format/overlap.h"

// From the headers of a version's shards to files of whole tensors. Pure: nothing is read or
// written here.

namespace holdfast::cli {

/// What the PyTorch client says of tensors beside them (docs/formats/torch.md). Empty for what
/// another client saved.
struct TorchNotes {
  std::map<std::string, std::string> types;  // name → its type in torch, where stored as another
  std::map<std::string, std::string> aliases;  // tied tensors: name → under which one is saved
  std::map<std::string, bool> entries;         // of the state; true: an optimizer

  /// Takes in the extra `torch.layout` or `torch.dcp` of one shard. DataLoss when it is neither.
  Status Add(std::string_view json);
};

/// One tensor to write: under which name, and under which the version has it.
struct ChosenTensor {
  std::string name;
  std::string saved;
  bool operator==(const ChosenTensor&) const = default;
};

/// Which tensors: all of them by their names, or those of one entry without its name in front.
struct Choice {
  std::string entry;
  bool all = false;
  /// Neither is given: true finds the entry that is the model, false takes all.
  bool find_model = false;
};
/// What is written, by name, and what is to be said of it: names as they are written.
struct Selection {
  std::vector<ChosenTensor> tensors;
  std::map<std::string, std::string> aliases;  // tied: name → which of the tensors it is
  std::map<std::string, std::string> types;    // name → its type in torch, as in TorchNotes
};
/// InvalidArgument lists the entries when the choice finds nothing, or is not one.
Result<Selection> ChooseTensors(const std::vector<std::string>& saved, const TorchNotes& notes,
                                const Choice& choice);

/// One safetensors file.
struct ExportFile {
  std::string name;
  std::string header;                 // the bytes before the data
  std::vector<PlacedTensor> tensors;  // whole ones, by place
  uint64_t bytes = 0;                 // all of it
};

/// Elements that one piece of a shard gives to a file.
struct ExportCopy {
  BoxCopy copy;
  uint64_t image_begin = 0;  // of the piece
  uint64_t image_end = 0;
  uint32_t file = 0;
  uint64_t file_begin = 0;  // of the whole tensor
};

struct ExportLayout {
  std::vector<ExportFile> files;
  /// For each shard what is copied from it, by place in its image; no element twice.
  std::vector<std::vector<ExportCopy>> copies;
  uint64_t tensor_bytes = 0;
};

struct ExportForm {
  /// A file ends before the tensor with which it would have more bytes of data; 0: one file.
  uint64_t file_bytes_max = 0;
  bool numbered = false;  // model-00001-of-00002.safetensors
  std::map<std::string, std::string> metadata;
};

/// `shards` by rank. Every whole tensor is put together from the boxes that the ranks saved; of
/// replicas the lowest rank's counts. DataLoss names a tensor of which elements are missing, or
/// whose shards disagree.
Result<ExportLayout> PlanExport(std::span<const ParsedImage> shards,
                                const std::vector<ChosenTensor>& tensors, const ExportForm& form);

/// Bytes [first, second) of a shard's image, chunk-aligned, that `copies` need; gaps that are
/// cheaper to read than to leave out are included. None is longer than `bytes_max`.
std::vector<std::pair<uint64_t, uint64_t>> RangesOf(std::span<const ExportCopy> copies,
                                                    uint64_t image_bytes, uint64_t bytes_max);

}  // namespace holdfast::cli
