#pragma once

#include <cstdint>
#include <type_traits>

// The rows of a version index as they are stored. docs/formats/version-index.md describes each
// field.

namespace holdfast::index {

inline constexpr uint64_t kMagic = 0x3130584449564648;  // "HFVIDX01"
inline constexpr uint32_t kNoColumn = UINT32_MAX;

/// Rows [at, at + count · size of a row) of one kind.
struct Section {
  uint64_t at = 0;
  uint64_t count = 0;
};

struct Head {
  uint64_t magic = kMagic;
  uint64_t bytes = 0;
  uint64_t incarnation = 0;
  uint64_t step = 0;
  uint32_t world = 0;
  uint32_t job_bytes = 0;
  Section shards;
  Section classes;
  Section members;
  Section tensors;
  Section numbers;
  Section offsets;
  Section columns;
  Section values;
  Section names;
  Section uses;
  Section extras;
  Section text;
};

/// Sorted by rank.
struct ShardRow {
  uint32_t rank = 0;
  uint32_t shard_class = 0;
  uint32_t position = 0;  // among the members of the class
  uint32_t first_extra = 0;
  uint32_t extras = 0;
  uint32_t zero = 0;
  uint64_t data_offset = 0;
  uint64_t image_bytes = 0;
};

/// Shards whose headers differ only in the offsets of their slices, in their rank and in the length
/// of the header.
struct ClassRow {
  uint32_t first_tensor = 0;
  uint32_t tensors = 0;
  uint32_t first_member = 0;
  uint32_t members = 0;
  uint64_t tensor_bytes = 0;
};

struct TensorRow {
  uint32_t name = 0;  // index of a NameRow
  uint16_t dtype = 0;
  uint16_t dimensions = 0;
  uint32_t first_number = 0;  // shape, then global shape
  uint32_t first_offset = 0;  // one OffsetRow for each dimension
  uint64_t begin = 0;
};

/// The offset of member p is unit · value p of the column.
struct OffsetRow {
  uint64_t unit = 0;
  uint32_t column = kNoColumn;  // all offsets are 0
  uint32_t zero = 0;
};

/// `count` values by position, then the `count` positions in order of their values.
struct ColumnRow {
  uint32_t first = 0;
  uint32_t count = 0;
};

/// Sorted by text, then by `marked`.
struct NameRow {
  uint32_t text = 0;
  uint32_t bytes = 0;
  uint32_t first_use = 0;
  uint32_t uses = 0;
  uint32_t marked = 0;  // 1: the rank of the shard follows the text
  uint32_t zero = 0;
};

struct UseRow {
  uint32_t shard_class = 0;
  uint32_t tensor = 0;  // among the tensors of the class
};

struct ExtraRow {
  uint32_t name = 0;  // in the text
  uint32_t name_bytes = 0;
  uint64_t bytes = 0;
  uint64_t content = 0;  // in the text, plus 1; 0: only in the shard
};

static_assert(std::has_unique_object_representations_v<Head> && sizeof(Head) == 232);
static_assert(std::has_unique_object_representations_v<ShardRow> && sizeof(ShardRow) == 40);
static_assert(std::has_unique_object_representations_v<ClassRow> && sizeof(ClassRow) == 24);
static_assert(std::has_unique_object_representations_v<TensorRow> && sizeof(TensorRow) == 24);
static_assert(std::has_unique_object_representations_v<OffsetRow> && sizeof(OffsetRow) == 16);
static_assert(std::has_unique_object_representations_v<ColumnRow> && sizeof(ColumnRow) == 8);
static_assert(std::has_unique_object_representations_v<NameRow> && sizeof(NameRow) == 24);
static_assert(std::has_unique_object_representations_v<UseRow> && sizeof(UseRow) == 8);
static_assert(std::has_unique_object_representations_v<ExtraRow> && sizeof(ExtraRow) == 24);

}  // namespace holdfast::index
