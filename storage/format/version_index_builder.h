#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/ids.h"
#include "storage/format/image.h"
#include "storage/format/version_index.h"

namespace holdfast {

/// The longest index that a builder makes.
inline constexpr uint64_t kIndexBytesMax = 1ULL << 31;

/// Builds the index of a version from the headers of shards, or from the indexes of nodes. Headers
/// that differ only in offsets, rank and length are stored once. The index of the same shards is
/// always the same bytes.
class VersionIndexBuilder {
 public:
  VersionIndexBuilder(std::string job, VersionId version, uint32_t world);
  ~VersionIndexBuilder();

  /// Adds the shard that `image` describes. `extras` are the last bytes of the image.
  Status Add(const ParsedImage& image, std::span<const std::byte> extras);
  /// Adds the shards of another index of the same version, except those that were added before.
  Status Add(const VersionIndex& part);
  bool Has(Rank rank) const { return shards_.contains(rank.value); }
  uint64_t shards() const { return shards_.size(); }

  /// Returns the bytes of the index.
  Result<std::string> Finish() const;

 private:
  struct Name {
    std::string text;
    bool marked = false;
    auto operator<=>(const Name&) const = default;
  };
  struct Tensor {
    uint32_t name = 0;
    DType dtype = DType::kU8;
    std::vector<uint64_t> shape;
    std::vector<uint64_t> global_shape;
    uint64_t begin = 0;
    uint32_t first_dimension = 0;  // among the dimensions of all tensors of the class
  };
  /// A column by member, in the order of their adding. The rest of a short column is zeros.
  using Column = std::vector<uint64_t>;
  /// The offsets of one dimension: unit · column. Dimensions that are cut alike share a column, so
  /// that adding a shard takes no work for each of them but to compare.
  struct Dimension {
    uint64_t unit = 0;  // 0: all offsets are 0
    uint32_t column = 0;
  };
  /// Shards of one class.
  struct Class {
    std::vector<Tensor> tensors;
    uint64_t tensor_bytes = 0;
    std::vector<Dimension> dimensions;  // of all tensors
    std::vector<uint32_t> members;      // ranks, in the order of their adding
    std::vector<Column> columns;        // the first one is empty: zeros
  };
  class NewMembers;
  struct Extra {
    std::string name;
    uint64_t bytes = 0;
    const std::string* content = nullptr;  // a key of contents_
  };
  struct Shard {
    uint32_t shard_class = 0;
    uint64_t data_offset = 0;
    uint64_t image_bytes = 0;
    std::vector<Extra> extras;
  };
  /// The tensors of an index that was joined, and the numbers of its classes here.
  struct Joined {
    std::string tensor_bytes;
    std::vector<uint32_t> classes;
  };
  struct Writer;

  uint32_t NameNumber(std::string_view text, bool marked);
  Class& ClassOf(std::vector<Tensor> tensors, uint64_t tensor_bytes, uint32_t* number);
  /// Returns the numbers of the classes of a part.
  Result<std::vector<uint32_t>> ClassesOf(const VersionIndex& part);
  static Status AddOffsets(const VersionIndex& part, const VersionIndex::Class& from,
                           std::span<const uint32_t> positions, Class& to);
  Status AddMember(uint32_t shard_class, Rank rank, Shard shard);
  const std::string* Content(std::string_view bytes);

  const std::string job_;
  const VersionId version_;
  const uint32_t world_;
  std::map<Name, uint32_t> name_numbers_;
  std::vector<const Name*> names_;
  std::vector<Class> classes_;
  std::unordered_map<std::string, uint32_t> class_numbers_;  // by all that the members share
  std::unordered_map<std::string, uint32_t> contents_;       // of extras; how often each occurs
  Joined joined_;                     // the latest; the nodes of a version mostly have the same
  uint64_t content_bytes_ = 0;        // of all contents_
  std::map<uint32_t, Shard> shards_;  // by rank
};

}  // namespace holdfast
