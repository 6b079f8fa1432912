#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "storage/format/image.h"
#include "storage/format/overlap.h"

// Plans files of complete tensors from the headers of a version's shards. Pure: reads and writes
// nothing.

namespace holdfast::cli {

/// The PyTorch client's notes on tensors (docs/formats/torch.md). Empty for versions that another
/// client saved.
struct TorchNotes {
  std::map<std::string, std::string> types;  // name → its type in torch, where stored as another
  std::map<std::string, std::string> aliases;  // tied tensors: name → the name it is saved under
  std::map<std::string, bool> entries;         // of the state; true: an optimizer

  /// Adds the extra `torch.layout` or `torch.dcp` of one shard. DataLoss when it is neither.
  Status Add(std::string_view json);
};

/// One tensor to write: its name in the file, and its name in the version.
struct ChosenTensor {
  std::string name;
  std::string saved;
  bool operator==(const ChosenTensor&) const = default;
};

/// The tensors to write: all by their names, or those of one entry without the entry's prefix.
struct Choice {
  std::string entry;
  bool all = false;
  /// Without `entry` and `all`: true chooses the entry that is the model, false all tensors.
  bool find_model = false;
};
/// The chosen tensors and the notes on them, by the names that are written.
struct Selection {
  std::vector<ChosenTensor> tensors;
  std::map<std::string, std::string> aliases;  // tied: name → which of the tensors it is
  std::map<std::string, std::string> types;    // name → its type in torch, as in TorchNotes
};
/// InvalidArgument lists the entries when the choice is ambiguous or selects nothing.
Result<Selection> ChooseTensors(const std::vector<std::string>& saved, const TorchNotes& notes,
                                const Choice& choice);

/// One safetensors file.
struct ExportFile {
  std::string name;
  std::string header;                 // the bytes before the data
  std::vector<PlacedTensor> tensors;  // complete ones, by offset
  uint64_t bytes = 0;                 // of the file
};

/// The elements of a file that come from one piece of a shard.
struct ExportCopy {
  BoxCopy copy;
  uint64_t image_begin = 0;  // of the piece
  uint64_t image_end = 0;
  uint32_t file = 0;
  uint64_t file_begin = 0;  // of the complete tensor
};

struct ExportLayout {
  std::vector<ExportFile> files;
  /// For each shard the copies from it, by offset in its image. No element is copied twice.
  std::vector<std::vector<ExportCopy>> copies;
  uint64_t tensor_bytes = 0;
};

struct ExportForm {
  /// A new file begins before the tensor that would exceed this many bytes of data; 0: one file.
  uint64_t file_bytes_max = 0;
  bool numbered = false;  // model-00001-of-00002.safetensors
  std::map<std::string, std::string> metadata;
};

/// Plans the files. `shards` are ordered by rank. Complete tensors are assembled from the boxes
/// that the ranks saved; of tensor replicas the lowest rank's is used. DataLoss names a tensor with
/// missing elements, or whose shards disagree.
Result<ExportLayout> PlanExport(std::span<const ParsedImage> shards,
                                const std::vector<ChosenTensor>& tensors, const ExportForm& form);

/// Returns the chunk-aligned byte ranges [first, second) of a shard's image that `copies` need,
/// including gaps that are cheaper to read than to skip.
std::vector<std::pair<uint64_t, uint64_t>> RangesOf(std::span<const ExportCopy> copies,
                                                    uint64_t image_bytes);

}  // namespace holdfast::cli
