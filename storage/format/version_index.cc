#include "storage/format/version_index.h"

#include <algorithm>
#include <bit>
#include <charconv>
#include <cstring>

#include "storage/format/checksum.h"
#include "storage/format/image.h"

namespace holdfast {

static_assert(std::endian::native == std::endian::little, "formats are little-endian in memory");

namespace {
using index::ClassRow;
using index::ColumnRow;
using index::ExtraRow;
using index::Head;
using index::NameRow;
using index::OffsetRow;
using index::Section;
using index::ShardRow;
using index::TensorRow;
using index::UseRow;

constexpr uint64_t kChecksumBytes = 8;

Status BadIndex(const std::string& what) {
  return DataLossError("the version index is damaged: " + what);
}

/// Returns whether rows [first, first + count) exist in a section of `rows` rows.
bool Within(uint64_t first, uint64_t count, uint64_t rows) {
  return first <= rows && count <= rows - first;
}

Status CheckSection(const char* name, const Section& section, uint64_t row_bytes,
                    uint64_t index_bytes) {
  const bool sound = section.at % 8 == 0 && section.at >= sizeof(Head) &&
                     section.at <= index_bytes &&
                     section.count <= (index_bytes - section.at) / row_bytes;
  if (sound) return Status::Ok();
  return BadIndex(std::string("its section of ") + name + " is outside of it");
}
}  // namespace

Result<VersionIndex> VersionIndex::Open(std::span<const std::byte> bytes) {
  Head head;
  if (bytes.size() < sizeof(head) + kChecksumBytes) {
    return Fail(BadIndex("it is shorter than its head"));
  }
  std::memcpy(&head, bytes.data(), sizeof(head));
  if (head.magic != index::kMagic) return Fail(BadIndex("it has another format"));
  if (head.bytes != bytes.size() || bytes.size() % 8 != 0 ||
      reinterpret_cast<uintptr_t>(bytes.data()) % 8 != 0) {
    return Fail(BadIndex("its length is " + std::to_string(bytes.size()) + " bytes and not " +
                         std::to_string(head.bytes)));
  }
  const uint64_t end = bytes.size() - kChecksumBytes;
  const auto check = [&](const char* name, const Section& section, uint64_t row_bytes) {
    return CheckSection(name, section, row_bytes, end);
  };
  HOLDFAST_RETURN_IF_ERROR(check("shards", head.shards, sizeof(ShardRow)));
  HOLDFAST_RETURN_IF_ERROR(check("classes", head.classes, sizeof(ClassRow)));
  HOLDFAST_RETURN_IF_ERROR(check("members", head.members, sizeof(uint32_t)));
  HOLDFAST_RETURN_IF_ERROR(check("tensors", head.tensors, sizeof(TensorRow)));
  HOLDFAST_RETURN_IF_ERROR(check("numbers", head.numbers, sizeof(uint64_t)));
  HOLDFAST_RETURN_IF_ERROR(check("offsets", head.offsets, sizeof(OffsetRow)));
  HOLDFAST_RETURN_IF_ERROR(check("columns", head.columns, sizeof(ColumnRow)));
  HOLDFAST_RETURN_IF_ERROR(check("values", head.values, sizeof(uint32_t)));
  HOLDFAST_RETURN_IF_ERROR(check("names", head.names, sizeof(NameRow)));
  HOLDFAST_RETURN_IF_ERROR(check("uses", head.uses, sizeof(UseRow)));
  HOLDFAST_RETURN_IF_ERROR(check("extras", head.extras, sizeof(ExtraRow)));
  HOLDFAST_RETURN_IF_ERROR(check("text", head.text, 1));
  if (head.shards.count > head.world || head.world == 0) {
    return Fail(BadIndex("it has " + std::to_string(head.shards.count) + " shards of " +
                         std::to_string(head.world)));
  }
  VersionIndex index(bytes, head);
  HOLDFAST_ASSIGN_OR_RETURN(index.job_, index.Text(0, head.job_bytes));
  return index;
}

Status VersionIndex::Verify() const {
  const auto covered = bytes_.first(bytes_.size() - kChecksumBytes);
  uint64_t stored = 0;
  std::memcpy(&stored, bytes_.data() + covered.size(), sizeof(stored));
  return stored == Crc32c(covered) ? Status::Ok() : BadIndex("its checksum does not match");
}

Result<std::string_view> VersionIndex::Text(uint64_t at, uint64_t bytes) const {
  if (!Within(at, bytes, head_.text.count)) return Fail(BadIndex("a text is outside of it"));
  return std::string_view(reinterpret_cast<const char*>(bytes_.data()) + head_.text.at + at, bytes);
}

Result<VersionIndex::Shard> VersionIndex::ShardAt(uint64_t index) const {
  if (index >= head_.shards.count) return Fail(BadIndex("a shard is outside of it"));
  const ShardRow& row = Rows<ShardRow>(head_.shards)[index];
  if (row.rank >= head_.world || row.data_offset > row.image_bytes) {
    return Fail(BadIndex("a shard has an impossible rank or length"));
  }
  return Shard{Rank{row.rank},  row.shard_class, row.position, row.data_offset,
               row.image_bytes, row.first_extra, row.extras};
}

Result<VersionIndex::Shard> VersionIndex::ShardOf(Rank rank) const {
  const auto rows = Rows<ShardRow>(head_.shards);
  const auto found =
      std::lower_bound(rows.begin(), rows.end(), rank.value,
                       [](const ShardRow& row, uint32_t wanted) { return row.rank < wanted; });
  if (found == rows.end() || found->rank != rank.value) {
    return Fail(
        NotFoundError("the version index has no shard of rank " + std::to_string(rank.value)));
  }
  return ShardAt(static_cast<uint64_t>(found - rows.begin()));
}

Result<std::vector<VersionIndex::Extra>> VersionIndex::ExtrasOf(const Shard& shard) const {
  if (!Within(shard.first_extra, shard.extras, head_.extras.count)) {
    return Fail(BadIndex("the extras of a shard are outside of it"));
  }
  HOLDFAST_ASSIGN_OR_RETURN(const Class of, ClassAt(shard.shard_class));
  const auto rows = Rows<ExtraRow>(head_.extras).subspan(shard.first_extra, shard.extras);
  std::vector<Extra> extras;
  uint64_t begin = shard.data_offset + of.tensor_bytes;
  for (const ExtraRow& row : rows) {
    if (begin > shard.image_bytes || row.bytes > shard.image_bytes - begin) {
      return Fail(BadIndex("an extra is outside of its image"));
    }
    Extra extra;
    HOLDFAST_ASSIGN_OR_RETURN(extra.name, Text(row.name, row.name_bytes));
    extra.bytes = row.bytes;
    extra.begin = begin;
    if (row.content != 0) {
      HOLDFAST_ASSIGN_OR_RETURN(extra.content, Text(row.content - 1, row.bytes));
    }
    begin += row.bytes;
    extras.push_back(extra);
  }
  return extras;
}

Result<VersionIndex::Class> VersionIndex::ClassAt(uint64_t index) const {
  if (index >= head_.classes.count) return Fail(BadIndex("a class is outside of it"));
  const ClassRow& row = Rows<ClassRow>(head_.classes)[index];
  if (!Within(row.first_tensor, row.tensors, head_.tensors.count) ||
      !Within(row.first_member, row.members, head_.members.count) ||
      row.tensor_bytes >= 1ULL << 62) {
    return Fail(BadIndex("the rows of a class are outside of it"));
  }
  const auto members = Rows<uint32_t>(head_.members).subspan(row.first_member, row.members);
  return Class{row.tensors, members, row.tensor_bytes, row.first_tensor};
}

Result<VersionIndex::Tensor> VersionIndex::TensorAt(const Class& of, uint64_t index) const {
  if (index >= of.tensors) return Fail(BadIndex("a tensor is outside of its class"));
  const TensorRow& row = Rows<TensorRow>(head_.tensors)[of.first_tensor + index];
  const uint64_t dimensions = row.dimensions;
  const auto dtype = DTypeFromNumber(row.dtype);
  if (!dtype || dimensions > kDimensionsMax || row.begin > of.tensor_bytes ||
      !Within(row.first_number, 2 * dimensions, head_.numbers.count) ||
      !Within(row.first_offset, dimensions, head_.offsets.count)) {
    return Fail(BadIndex("a tensor has an impossible type or place"));
  }
  const auto numbers = Rows<uint64_t>(head_.numbers).subspan(row.first_number, 2 * dimensions);
  Tensor tensor{row.name,
                *dtype,
                numbers.first(dimensions),
                numbers.subspan(dimensions),
                Rows<OffsetRow>(head_.offsets).subspan(row.first_offset, dimensions),
                row.begin};
  // The arithmetic of boxes needs sizes below 2^62, and boxes inside of their global shape.
  uint64_t bytes = SizeOf(*dtype);
  uint64_t global_bytes = bytes;
  for (uint64_t d = 0; d < dimensions; ++d) {
    if (tensor.shape[d] > tensor.global_shape[d] ||
        __builtin_mul_overflow(bytes, tensor.shape[d], &bytes) ||
        __builtin_mul_overflow(global_bytes, std::max<uint64_t>(tensor.global_shape[d], 1),
                               &global_bytes) ||
        global_bytes >= 1ULL << 62) {
      return Fail(BadIndex("a tensor has an impossible shape"));
    }
  }
  if (bytes > of.tensor_bytes - row.begin) {
    return Fail(BadIndex("a tensor is outside of its image"));
  }
  return tensor;
}

Result<VersionIndex::Column> VersionIndex::ColumnAt(uint32_t index, const Class& of) const {
  if (index >= head_.columns.count) return Fail(BadIndex("a column is outside of it"));
  const ColumnRow& row = Rows<ColumnRow>(head_.columns)[index];
  const uint64_t count = row.count;
  if (count != of.members.size() || !Within(row.first, 2 * count, head_.values.count)) {
    return Fail(BadIndex("a column is outside of it or has another length than its class"));
  }
  const auto values = Rows<uint32_t>(head_.values).subspan(row.first, 2 * count);
  return Column{values.first(count), values.subspan(count)};
}

Result<std::vector<uint64_t>> VersionIndex::OffsetOf(const Tensor& tensor, const Class& of,
                                                     uint32_t position) const {
  if (position >= of.members.size()) return Fail(BadIndex("a shard is no member of its class"));
  std::vector<uint64_t> offset(tensor.shape.size());
  for (size_t d = 0; d < offset.size(); ++d) {
    const OffsetRow& row = tensor.offsets[d];
    if (row.column != index::kNoColumn) {
      HOLDFAST_ASSIGN_OR_RETURN(const Column column, ColumnAt(row.column, of));
      if (__builtin_mul_overflow(row.unit, column.values[position], &offset[d])) {
        return Fail(BadIndex("an offset is too large"));
      }
    }
    if (offset[d] > tensor.global_shape[d] - tensor.shape[d]) {
      return Fail(BadIndex("a slice is outside of its global shape"));
    }
  }
  return offset;
}

Result<std::vector<uint64_t>> VersionIndex::ValuesOf(uint32_t column, const Class& of,
                                                     std::span<const uint32_t> positions) const {
  HOLDFAST_ASSIGN_OR_RETURN(const Column found, ColumnAt(column, of));
  std::vector<uint64_t> values;
  values.reserve(positions.size());
  for (const uint32_t position : positions) {
    if (position >= found.values.size()) return Fail(BadIndex("a column is too short"));
    values.push_back(found.values[position]);
  }
  return values;
}

Result<VersionIndex::Name> VersionIndex::NameAt(uint64_t index) const {
  if (index >= head_.names.count) return Fail(BadIndex("a name is outside of it"));
  const NameRow& row = Rows<NameRow>(head_.names)[index];
  if (!Within(row.first_use, row.uses, head_.uses.count) || row.marked > 1 ||
      row.bytes > kTensorNameMax) {
    return Fail(BadIndex("the uses of a name are outside of it"));
  }
  Name name;
  HOLDFAST_ASSIGN_OR_RETURN(name.text, Text(row.text, row.bytes));
  name.marked = row.marked == 1;
  name.uses = Rows<UseRow>(head_.uses).subspan(row.first_use, row.uses);
  return name;
}

Result<std::string> VersionIndex::TensorBytes() const {
  std::string all;
  uint64_t text_end = 0;
  for (const NameRow& row : Rows<NameRow>(head_.names)) {
    text_end = std::max(text_end, uint64_t{row.text} + row.bytes);
  }
  if (text_end > head_.text.count) return Fail(BadIndex("a text is outside of it"));
  const auto put = [&](const Section& section, uint64_t bytes) {
    all.append(reinterpret_cast<const char*>(bytes_.data()) + section.at, bytes);
    all.append(reinterpret_cast<const char*>(&bytes), sizeof(bytes));
  };
  put(head_.tensors, head_.tensors.count * sizeof(TensorRow));
  put(head_.numbers, head_.numbers.count * sizeof(uint64_t));
  put(head_.names, head_.names.count * sizeof(NameRow));
  put(head_.text, text_end);
  for (const ClassRow& row : Rows<ClassRow>(head_.classes)) {
    const uint64_t of_class[] = {row.first_tensor, row.tensors, row.tensor_bytes};
    all.append(reinterpret_cast<const char*>(of_class), sizeof(of_class));
  }
  return all;
}

Result<std::optional<uint64_t>> VersionIndex::FindRow(std::string_view text, bool marked) const {
  uint64_t low = 0;
  uint64_t high = head_.names.count;
  while (low < high) {
    const uint64_t middle = low + (high - low) / 2;
    HOLDFAST_ASSIGN_OR_RETURN(const Name name, NameAt(middle));
    if (std::pair(name.text, name.marked) < std::pair(text, marked)) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  if (low == head_.names.count) return std::optional<uint64_t>();
  HOLDFAST_ASSIGN_OR_RETURN(const Name name, NameAt(low));
  const bool same = name.text == text && name.marked == marked;
  return same ? std::optional(low) : std::nullopt;
}

Result<VersionIndex::Found> VersionIndex::Find(std::string_view name) const {
  HOLDFAST_ASSIGN_OR_RETURN(const auto plain, FindRow(name, false));
  if (plain) {
    HOLDFAST_ASSIGN_OR_RETURN(const Name row, NameAt(*plain));
    return Found{row.uses, std::nullopt};
  }
  const size_t mark = name.rfind(kRankMark);
  if (mark == std::string_view::npos) return Found{};
  const std::string_view digits = name.substr(mark + kRankMark.size());
  uint32_t rank = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), rank);
  const bool number = error == std::errc() && end == digits.data() + digits.size() &&
                      digits == std::to_string(rank);
  if (!number) return Found{};
  HOLDFAST_ASSIGN_OR_RETURN(const auto marked,
                            FindRow(name.substr(0, name.size() - digits.size()), true));
  if (!marked) return Found{};
  HOLDFAST_ASSIGN_OR_RETURN(const Name row, NameAt(*marked));
  return Found{row.uses, Rank{rank}};
}

Status VersionIndex::ForEachOverlap(const Class& of, const Tensor& tensor, const Box& box,
                                    uint64_t turn,
                                    const std::function<bool(Rank, Box)>& take) const {
  // The dimension with the fewest members whose offsets fit chooses the candidates.
  uint64_t candidates = of.members.size();
  std::span<const uint32_t> order;  // empty: the members in their own order
  for (size_t d = 0; d < tensor.shape.size(); ++d) {
    const OffsetRow& row = tensor.offsets[d];
    const uint64_t begin = box.offset[d];
    uint64_t end = 0;
    if (__builtin_add_overflow(begin, box.shape[d], &end)) end = UINT64_MAX;
    if (row.column == index::kNoColumn || row.unit == 0) {
      if (begin >= tensor.shape[d]) return Status::Ok();
      continue;
    }
    // unit · value < end, and unit · value + shape > begin.
    const uint64_t least = begin < tensor.shape[d] ? 0 : (begin - tensor.shape[d]) / row.unit + 1;
    const uint64_t most = end == 0 ? 0 : (end - 1) / row.unit;
    HOLDFAST_ASSIGN_OR_RETURN(const Column column, ColumnAt(row.column, of));
    const auto value = [&](uint32_t position) -> uint64_t {
      return position < column.values.size() ? column.values[position] : UINT64_MAX;
    };
    const auto from =
        std::partition_point(column.order.begin(), column.order.end(),
                             [&](uint32_t position) { return value(position) < least; });
    const auto to = std::partition_point(
        from, column.order.end(), [&](uint32_t position) { return value(position) <= most; });
    const auto count = static_cast<uint64_t>(to - from);
    if (count < candidates || (order.empty() && count == candidates)) {
      candidates = count;
      order = {from, to};
    }
    if (candidates == 0) return Status::Ok();
  }
  for (uint64_t i = 0; i < candidates; ++i) {
    const uint64_t at = (i + turn) % candidates;
    const uint32_t position = order.empty() ? static_cast<uint32_t>(at) : order[at];
    HOLDFAST_ASSIGN_OR_RETURN(auto offset, OffsetOf(tensor, of, position));
    const Rank rank{of.members[position]};
    Box piece{std::move(offset), {tensor.shape.begin(), tensor.shape.end()}};
    if (!Intersect(piece, box) && !box.shape.empty()) continue;
    if (!take(rank, std::move(piece))) return Status::Ok();
  }
  return Status::Ok();
}

}  // namespace holdfast
