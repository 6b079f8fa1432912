#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/ids.h"
#include "storage/format/dtype.h"
#include "storage/format/overlap.h"
#include "storage/format/version_index_rows.h"

// The index of a version: which shard has which part of which tensor. docs/formats/version-index.md
// describes the bytes.

namespace holdfast {

/// A name that ends in this mark and the rank of its shard is stored without the rank, so that
/// equal shards have equal names.
inline constexpr std::string_view kRankMark = "@rank";

/// A view of the bytes of an index, which it does not own. A lookup reads only the rows that it
/// needs. The bytes are untrusted: every number is checked before it is used, and DataLoss
/// names what is wrong.
class VersionIndex {
 public:
  /// Checks the head and the bounds of the sections.
  static Result<VersionIndex> Open(std::span<const std::byte> bytes);
  /// Compares the checksum, which covers all bytes.
  Status Verify() const;

  std::string_view job() const { return job_; }
  VersionId version() const { return {Incarnation{head_.incarnation}, Step{head_.step}}; }
  /// The number of ranks that saved the version.
  uint32_t world() const { return head_.world; }
  /// The number of shards that the index describes. The index of one node has only its shards.
  uint64_t shards() const { return head_.shards.count; }
  std::span<const std::byte> bytes() const { return bytes_; }

  struct Shard {
    Rank rank;
    uint32_t shard_class = 0;
    uint32_t position = 0;
    uint64_t data_offset = 0;  // of the tensors in the image
    uint64_t image_bytes = 0;
    uint32_t first_extra = 0;
    uint32_t extras = 0;
  };
  Result<Shard> ShardAt(uint64_t index) const;
  /// NotFound when the index does not describe the rank.
  Result<Shard> ShardOf(Rank rank) const;

  struct Extra {
    std::string_view name;
    uint64_t bytes = 0;
    uint64_t begin = 0;                       // in the image
    std::optional<std::string_view> content;  // when the index has it
  };
  Result<std::vector<Extra>> ExtrasOf(const Shard& shard) const;

  struct Class {
    uint64_t tensors = 0;
    std::span<const uint32_t> members;  // ranks, by position
    uint64_t tensor_bytes = 0;
    uint64_t first_tensor = 0;
  };
  uint64_t classes() const { return head_.classes.count; }
  /// The number of tensors of all classes together.
  uint64_t tensors() const { return head_.tensors.count; }
  Result<Class> ClassAt(uint64_t index) const;

  /// A tensor of all shards of a class.
  struct Tensor {
    uint64_t name = 0;  // index of the name
    DType dtype = DType::kU8;
    std::span<const uint64_t> shape;
    std::span<const uint64_t> global_shape;
    std::span<const index::OffsetRow> offsets;
    uint64_t begin = 0;  // after the shard's data_offset
  };
  Result<Tensor> TensorAt(const Class& of, uint64_t index) const;
  /// The place of the tensor in its global tensor, for one member of its class.
  Result<std::vector<uint64_t>> OffsetOf(const Tensor& tensor, const Class& of,
                                         uint32_t position) const;

  /// Returns the values of a column of the class, for the members at `positions`. The unit of an
  /// offset times a value is the offset.
  Result<std::vector<uint64_t>> ValuesOf(uint32_t column, const Class& of,
                                         std::span<const uint32_t> positions) const;

  struct Name {
    std::string_view text;  // ends in kRankMark when `marked`
    bool marked = false;
    std::span<const index::UseRow> uses;
  };
  uint64_t names() const { return head_.names.count; }
  Result<Name> NameAt(uint64_t index) const;

  /// The bytes that describe the tensors of all classes without their offsets. Indexes in which
  /// these are equal have the same tensors in the same classes.
  Result<std::string> TensorBytes() const;

  /// The uses of one name. A name with a rank's mark is in the shard of that rank alone.
  struct Found {
    std::span<const index::UseRow> uses;
    std::optional<Rank> only;
  };
  /// Returns no uses when the version has no tensor of that name.
  Result<Found> Find(std::string_view name) const;

  /// Calls `take` with the rank and the offset of the members of the class whose part of the tensor
  /// overlaps `box`, until `take` returns false. `turn` chooses the member to begin with.
  Status ForEachOverlap(const Class& of, const Tensor& tensor, const Box& box, uint64_t turn,
                        const std::function<bool(Rank, Box)>& take) const;

 private:
  VersionIndex(std::span<const std::byte> bytes, const index::Head& head)
      : bytes_(bytes), head_(head) {}

  template <typename Row>
  std::span<const Row> Rows(const index::Section& section) const {
    return {reinterpret_cast<const Row*>(bytes_.data() + section.at), section.count};
  }
  Result<std::string_view> Text(uint64_t at, uint64_t bytes) const;
  struct Column {
    std::span<const uint32_t> values;
    std::span<const uint32_t> order;
  };
  Result<Column> ColumnAt(uint32_t index, const Class& of) const;
  Result<std::optional<uint64_t>> FindRow(std::string_view text, bool marked) const;

  std::span<const std::byte> bytes_;
  index::Head head_;
  std::string_view job_;
};

}  // namespace holdfast
