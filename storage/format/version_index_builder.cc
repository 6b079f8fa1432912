#include "storage/format/version_index_builder.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <optional>
#include <set>
#include <span>
#include <utility>

#include "storage/format/checksum.h"

namespace holdfast {
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

// The content of an extra is in the index when several shards have it, or when it is small.
constexpr uint64_t kContentMax = 64 << 10;
constexpr uint64_t kSmallContent = 1 << 10;
constexpr uint64_t kContentsMax = 256 << 20;  // of all shards

template <typename Number>
void Append(Number number, std::string* out) {
  out->append(reinterpret_cast<const char*>(&number), sizeof(number));
}

/// Returns the name without the rank of its shard, if it ends in that rank's mark.
std::pair<std::string_view, bool> WithoutRank(std::string_view name, Rank rank) {
  const std::string digits = std::to_string(rank.value);
  const bool marked =
      name.ends_with(digits) && name.substr(0, name.size() - digits.size()).ends_with(kRankMark);
  return {marked ? name.substr(0, name.size() - digits.size()) : name, marked};
}

Status PartError(const std::string& what) {
  return DataLossError("the index of a node is damaged: " + what);
}

Status TooLong() {
  return ResourceExhaustedError(
      "the index of the version would be longer than the limit of " +
      std::to_string(kIndexBytesMax) +
      " bytes: its shards have too many tensors that differ in more than their offsets");
}
}  // namespace

/// Appends the offsets of new members to the dimensions of a class, dimension after dimension.
/// Dimensions that shared a column still share one if their new offsets are alike, too. `members`
/// is the number of members before.
class VersionIndexBuilder::NewMembers {
 public:
  NewMembers(Class& of, size_t members) : class_(of), members_(members) {}

  /// The new offsets of `dimension` are unit · values. `alike` is the same number for equal
  /// values. Each dimension of the class once; call it also for offsets that are all 0.
  void Append(uint32_t dimension, uint64_t unit, uint32_t alike, std::span<const uint64_t> values) {
    Dimension& known = class_.dimensions[dimension];
    if (unit == 0) alike = 0;
    const uint64_t common = known.unit == unit ? unit : std::gcd(known.unit, unit);
    if (common == 0) return;
    const Key key{known.column, alike, known.unit / common, unit / common};
    if (key != latest_key_ || latest_ == 0) {
      auto [entry, added] = columns_.try_emplace(key, 0);
      if (added) entry->second = Make(key, values);
      latest_key_ = key;
      latest_ = entry->second;
    }
    known = {common, latest_};
  }

 private:
  struct Key {
    uint32_t column = 0;
    uint32_t alike = 0;
    uint64_t before = 0;  // factor of the values that the column has
    uint64_t now = 0;     // factor of the new values
    auto operator<=>(const Key&) const = default;
  };

  /// Returns the number of the column with the values before and the new ones.
  uint32_t Make(const Key& key, std::span<const uint64_t> values) {
    // The first successor of a column gets its memory. Others copy what it was before.
    const bool in_place = key.column != 0 && key.before == 1 && taken_.insert(key.column).second;
    uint32_t number = key.column;
    if (!in_place) {
      number = static_cast<uint32_t>(class_.columns.size());
      Column& copy = class_.columns.emplace_back();
      const Column& from = class_.columns[key.column];
      copy.reserve(members_ + values.size());
      for (size_t i = 0; i < std::min(from.size(), members_); ++i) {
        copy.push_back(from[i] * key.before);
      }
    }
    if (key.now == 0) return number;  // zeros
    Column& column = class_.columns[number];
    column.resize(members_);
    for (const uint64_t value : values) column.push_back(value * key.now);
    return number;
  }

  Class& class_;
  const size_t members_;
  std::map<Key, uint32_t> columns_;  // that were made
  std::set<uint32_t> taken_;
  Key latest_key_;
  uint32_t latest_ = 0;
};

VersionIndexBuilder::VersionIndexBuilder(std::string job, VersionId version, uint32_t world)
    : job_(std::move(job)), version_(version), world_(world) {}

VersionIndexBuilder::~VersionIndexBuilder() = default;

uint32_t VersionIndexBuilder::NameNumber(std::string_view text, bool marked) {
  const auto [entry, added] =
      name_numbers_.try_emplace(Name{std::string(text), marked}, name_numbers_.size());
  if (added) names_.push_back(&entry->first);
  return entry->second;
}

VersionIndexBuilder::Class& VersionIndexBuilder::ClassOf(std::vector<Tensor> tensors,
                                                         uint64_t tensor_bytes, uint32_t* number) {
  std::string key;
  Append(tensor_bytes, &key);
  for (const Tensor& tensor : tensors) {
    Append(tensor.name, &key);
    Append(static_cast<uint32_t>(tensor.dtype), &key);
    Append(tensor.begin, &key);
    Append(tensor.shape.size(), &key);
    for (uint64_t length : tensor.shape) Append(length, &key);
    for (uint64_t length : tensor.global_shape) Append(length, &key);
  }
  const auto [entry, added] =
      class_numbers_.try_emplace(std::move(key), static_cast<uint32_t>(classes_.size()));
  *number = entry->second;
  if (added) {
    Class& made = classes_.emplace_back();
    size_t dimensions = 0;
    for (Tensor& tensor : tensors) {
      tensor.first_dimension = static_cast<uint32_t>(dimensions);
      dimensions += tensor.shape.size();
    }
    made.tensors = std::move(tensors);
    made.tensor_bytes = tensor_bytes;
    made.dimensions.resize(dimensions);
    made.columns.resize(1);
  }
  return classes_[*number];
}

const std::string* VersionIndexBuilder::Content(std::string_view bytes) {
  if (bytes.size() > kContentMax) return nullptr;
  auto entry = contents_.find(std::string(bytes));
  if (entry == contents_.end()) {
    if (content_bytes_ + bytes.size() > kContentsMax) return nullptr;
    content_bytes_ += bytes.size();
    entry = contents_.emplace(bytes, 0).first;
  }
  ++entry->second;
  return &entry->first;
}

Status VersionIndexBuilder::AddMember(uint32_t shard_class, Rank rank, Shard shard) {
  shard.shard_class = shard_class;
  classes_[shard_class].members.push_back(rank.value);
  shards_.emplace(rank.value, std::move(shard));
  return Status::Ok();
}

Status VersionIndexBuilder::Add(const ParsedImage& image, std::span<const std::byte> extras) {
  const ShardIdentity& identity = image.identity;
  if (identity.job != job_ || identity.version != version_ || identity.world != world_ ||
      identity.rank.value >= world_) {
    return InvalidArgumentError("the shard " + ToString(identity.key()) +
                                " is not of the version that is indexed");
  }
  if (Has(identity.rank)) return Status::Ok();
  std::vector<Tensor> tensors;
  tensors.reserve(image.tensors.size());
  uint64_t tensor_bytes = 0;
  for (const PlacedTensor& placed : image.tensors) {
    const auto [text, marked] = WithoutRank(BaseTensorName(placed.spec.name), identity.rank);
    tensors.push_back({NameNumber(text, marked), placed.spec.dtype, placed.spec.shape,
                       placed.spec.global_shape, placed.begin, 0});
    tensor_bytes = std::max(tensor_bytes, placed.end);
  }
  uint32_t number = 0;
  Class& of = ClassOf(std::move(tensors), tensor_bytes, &number);
  NewMembers added(of, of.members.size());
  constexpr uint64_t kOnce[] = {1};
  for (size_t i = 0; i < image.tensors.size(); ++i) {
    const std::vector<uint64_t>& offset = image.tensors[i].spec.offset;
    for (size_t d = 0; d < offset.size(); ++d) {
      added.Append(of.tensors[i].first_dimension + static_cast<uint32_t>(d), offset[d], 1, kOnce);
    }
  }
  Shard shard;
  shard.data_offset = image.data_offset;
  shard.image_bytes = image.image_bytes;
  for (const PlacedExtra& extra : image.extras) {
    const uint64_t at = extra.begin - image.extras.front().begin;
    if (at > extras.size() || extra.bytes() > extras.size() - at) {
      return InvalidArgumentError("too little extra state of " + ToString(identity.key()));
    }
    shard.extras.push_back(
        {extra.name, extra.bytes(),
         Content({reinterpret_cast<const char*>(extras.data()) + at, extra.bytes()})});
  }
  return AddMember(number, identity.rank, std::move(shard));
}

Result<std::vector<uint32_t>> VersionIndexBuilder::ClassesOf(const VersionIndex& part) {
  HOLDFAST_ASSIGN_OR_RETURN(std::string tensor_bytes, part.TensorBytes());
  if (tensor_bytes == joined_.tensor_bytes) return joined_.classes;
  std::vector<uint32_t> numbers;
  // The rows of classes do not overlap, so that the work is bounded by the length of the index.
  uint64_t tensors_left = part.tensors();
  for (uint64_t c = 0; c < part.classes(); ++c) {
    HOLDFAST_ASSIGN_OR_RETURN(const VersionIndex::Class from, part.ClassAt(c));
    if (from.tensors > tensors_left) return Fail(PartError("its classes overlap"));
    tensors_left -= from.tensors;
    std::vector<Tensor> tensors;
    for (uint64_t i = 0; i < from.tensors; ++i) {
      HOLDFAST_ASSIGN_OR_RETURN(const VersionIndex::Tensor row, part.TensorAt(from, i));
      HOLDFAST_ASSIGN_OR_RETURN(const VersionIndex::Name name, part.NameAt(row.name));
      tensors.push_back({NameNumber(name.text, name.marked),
                         row.dtype,
                         {row.shape.begin(), row.shape.end()},
                         {row.global_shape.begin(), row.global_shape.end()},
                         row.begin,
                         0});
    }
    numbers.push_back(0);
    ClassOf(std::move(tensors), from.tensor_bytes, &numbers.back());
  }
  joined_ = {std::move(tensor_bytes), numbers};
  return numbers;
}

/// Appends the offsets of the members of `from` at `positions` to the class `to`.
Status VersionIndexBuilder::AddOffsets(const VersionIndex& part, const VersionIndex::Class& from,
                                       std::span<const uint32_t> positions, Class& to) {
  NewMembers added(to, to.members.size());
  // The values of one column of the part; mostly the next dimension has the same one.
  std::vector<uint64_t> values;
  uint64_t most = 0;
  uint32_t column = index::kNoColumn;
  for (uint64_t i = 0; i < from.tensors; ++i) {
    HOLDFAST_ASSIGN_OR_RETURN(const VersionIndex::Tensor row, part.TensorAt(from, i));
    for (size_t d = 0; d < row.shape.size(); ++d) {
      const index::OffsetRow& offset = row.offsets[d];
      const uint32_t dimension = to.tensors[i].first_dimension + static_cast<uint32_t>(d);
      if (offset.column == index::kNoColumn || offset.unit == 0) {
        added.Append(dimension, 0, 0, {});
        continue;
      }
      if (offset.column != column) {
        HOLDFAST_ASSIGN_OR_RETURN(values, part.ValuesOf(offset.column, from, positions));
        most = *std::max_element(values.begin(), values.end());
        column = offset.column;
      }
      uint64_t largest = 0;
      if (__builtin_mul_overflow(offset.unit, most, &largest) ||
          largest > row.global_shape[d] - row.shape[d]) {
        return PartError("a slice is outside of its global shape");
      }
      added.Append(dimension, most == 0 ? 0 : offset.unit, offset.column + 1, values);
    }
  }
  return Status::Ok();
}

Status VersionIndexBuilder::Add(const VersionIndex& part) {
  if (part.job() != job_ || part.version() != version_ || part.world() != world_) {
    return DataLossError("the index of a node is of another version");
  }
  HOLDFAST_ASSIGN_OR_RETURN(const std::vector<uint32_t> numbers, ClassesOf(part));
  uint64_t members_left = part.shards();
  for (uint64_t c = 0; c < numbers.size(); ++c) {
    HOLDFAST_ASSIGN_OR_RETURN(const VersionIndex::Class from, part.ClassAt(c));
    if (from.members.size() > members_left) return PartError("its classes overlap");
    members_left -= from.members.size();
    Class& of = classes_[numbers[c]];
    // The members that are new here, in the order of their positions.
    std::vector<uint32_t> positions;
    for (uint32_t p = 0; p < from.members.size(); ++p) {
      if (!Has(Rank{from.members[p]})) positions.push_back(p);
    }
    if (positions.empty()) continue;
    HOLDFAST_RETURN_IF_ERROR(AddOffsets(part, from, positions, of));
    for (uint32_t position : positions) {
      const Rank rank{from.members[position]};
      HOLDFAST_ASSIGN_OR_RETURN(const VersionIndex::Shard shard, part.ShardOf(rank));
      if (shard.shard_class != c || shard.position != position || Has(rank)) {
        return PartError("it has a shard twice");
      }
      Shard added;
      added.data_offset = shard.data_offset;
      added.image_bytes = shard.image_bytes;
      HOLDFAST_ASSIGN_OR_RETURN(const auto extras, part.ExtrasOf(shard));
      for (const VersionIndex::Extra& extra : extras) {
        added.extras.push_back({std::string(extra.name), extra.bytes,
                                extra.content ? Content(*extra.content) : nullptr});
      }
      HOLDFAST_RETURN_IF_ERROR(AddMember(numbers[c], rank, std::move(added)));
    }
  }
  return Status::Ok();
}

/// Collects the rows of each section. Call the Write functions in their order, each once.
struct VersionIndexBuilder::Writer {
  const VersionIndexBuilder& from;
  std::vector<ShardRow> shards;
  std::vector<ClassRow> classes;
  std::vector<uint32_t> members;
  std::vector<TensorRow> tensors;
  std::vector<uint64_t> numbers;
  std::vector<OffsetRow> offsets;
  std::vector<ColumnRow> columns;
  std::vector<uint32_t> values;
  std::vector<NameRow> names;
  std::vector<UseRow> uses;
  std::vector<ExtraRow> extras;
  std::string text;
  std::unordered_map<std::string, uint32_t> texts;
  std::unordered_map<std::string, uint32_t> known_columns;
  /// Rows of the columns of the class that is written, by their numbers; unit 0: not yet made.
  std::vector<OffsetRow> column_rows;
  std::map<std::vector<uint64_t>, uint32_t> known_numbers;
  // The order of names, classes and members does not depend on the order of adding.
  std::vector<uint32_t> name_index;         // by number of the name
  std::vector<uint32_t> class_index;        // by number of the class
  std::vector<std::vector<UseRow>> use_of;  // by number of the name
  std::map<uint32_t, uint32_t> positions;   // by rank

  explicit Writer(const VersionIndexBuilder& builder)
      : from(builder),
        name_index(builder.names_.size()),
        class_index(builder.classes_.size()),
        use_of(builder.names_.size()) {
    uint32_t next = 0;
    Text(from.job_);
    for (const auto& [name, number] : from.name_numbers_) name_index[number] = next++;
  }

  uint32_t Text(const std::string& of) {
    const auto [entry, added] = texts.try_emplace(of, static_cast<uint32_t>(text.size()));
    if (added) text += of;
    return entry->second;
  }

  uint32_t Numbers(const std::vector<uint64_t>& shape, const std::vector<uint64_t>& global_shape) {
    std::vector<uint64_t> both = shape;
    both.insert(both.end(), global_shape.begin(), global_shape.end());
    const auto [entry, added] =
        known_numbers.try_emplace(std::move(both), static_cast<uint32_t>(numbers.size()));
    if (added) numbers.insert(numbers.end(), entry->first.begin(), entry->first.end());
    return entry->second;
  }

  /// Stores the values of a column as multiples of their greatest common divisor, in the order of
  /// the ranks. Dimensions that are cut alike thus have equal columns. Returns the divisor and the
  /// column.
  Result<OffsetRow> WriteColumn(const Column& column, const std::vector<uint32_t>& order) {
    uint64_t unit = 0;
    for (uint64_t value : column) {
      if (unit != 1 && (unit == 0 || value % unit != 0)) unit = std::gcd(unit, value);
    }
    if (unit == 0) return OffsetRow{};
    std::vector<uint32_t> multiples(order.size());
    for (size_t i = 0; i < order.size(); ++i) {
      const uint64_t value = order[i] < column.size() ? column[order[i]] / unit : 0;
      if (value > UINT32_MAX) {
        return Fail(
            ResourceExhaustedError("the index of the version has no room for an offset of " +
                                   std::to_string(value) + " units"));
      }
      multiples[i] = static_cast<uint32_t>(value);
    }
    std::string key(reinterpret_cast<const char*>(multiples.data()), multiples.size() * 4);
    const auto [entry, added] =
        known_columns.try_emplace(std::move(key), static_cast<uint32_t>(columns.size()));
    if (added) {
      columns.push_back(
          {static_cast<uint32_t>(values.size()), static_cast<uint32_t>(multiples.size())});
      values.insert(values.end(), multiples.begin(), multiples.end());
      std::vector<uint32_t> sorted(multiples.size());
      std::iota(sorted.begin(), sorted.end(), 0U);
      std::stable_sort(sorted.begin(), sorted.end(),
                       [&](uint32_t a, uint32_t b) { return multiples[a] < multiples[b]; });
      values.insert(values.end(), sorted.begin(), sorted.end());
    }
    return OffsetRow{unit, entry->second, 0};
  }

  /// Returns the row of a dimension. A column that several dimensions share is written once.
  Result<OffsetRow> Offsets(const Class& of, const Dimension& dimension,
                            const std::vector<uint32_t>& order) {
    if (dimension.unit == 0) return OffsetRow{};
    OffsetRow& row = column_rows[dimension.column];
    if (row.unit == 0) {
      HOLDFAST_ASSIGN_OR_RETURN(row, WriteColumn(of.columns[dimension.column], order));
    }
    return OffsetRow{row.unit * dimension.unit, row.column, 0};
  }

  /// Returns the classes with members, by their lowest ranks.
  std::vector<uint32_t> ClassesInOrder() const {
    std::vector<uint32_t> order(from.classes_.size());
    std::iota(order.begin(), order.end(), 0U);
    std::erase_if(order, [&](uint32_t c) { return from.classes_[c].members.empty(); });
    const auto least = [&](uint32_t c) {
      return *std::min_element(from.classes_[c].members.begin(), from.classes_[c].members.end());
    };
    std::sort(order.begin(), order.end(),
              [&](uint32_t a, uint32_t b) { return least(a) < least(b); });
    return order;
  }

  Status WriteClasses() {
    const std::vector<uint32_t> order = ClassesInOrder();
    for (uint32_t c = 0; c < order.size(); ++c) {
      class_index[order[c]] = c;
      HOLDFAST_RETURN_IF_ERROR(WriteClass(from.classes_[order[c]], c));
    }
    return Status::Ok();
  }

  Status WriteClass(const Class& of, uint32_t number) {
    std::vector<uint32_t> order(of.members.size());
    std::iota(order.begin(), order.end(), 0U);
    std::sort(order.begin(), order.end(),
              [&](uint32_t a, uint32_t b) { return of.members[a] < of.members[b]; });
    classes.push_back({static_cast<uint32_t>(tensors.size()),
                       static_cast<uint32_t>(of.tensors.size()),
                       static_cast<uint32_t>(members.size()), static_cast<uint32_t>(order.size()),
                       of.tensor_bytes});
    for (uint32_t p = 0; p < order.size(); ++p) {
      members.push_back(of.members[order[p]]);
      positions[of.members[order[p]]] = p;
    }
    column_rows.assign(of.columns.size(), OffsetRow{});
    for (uint32_t t = 0; t < of.tensors.size(); ++t) {
      const Tensor& tensor = of.tensors[t];
      const TensorRow row{name_index[tensor.name],
                          static_cast<uint16_t>(tensor.dtype),
                          static_cast<uint16_t>(tensor.shape.size()),
                          Numbers(tensor.shape, tensor.global_shape),
                          static_cast<uint32_t>(offsets.size()),
                          tensor.begin};
      for (uint32_t d = 0; d < tensor.shape.size(); ++d) {
        HOLDFAST_ASSIGN_OR_RETURN(const OffsetRow offset,
                                  Offsets(of, of.dimensions[tensor.first_dimension + d], order));
        offsets.push_back(offset);
      }
      tensors.push_back(row);
      use_of[tensor.name].push_back({number, t});
    }
    return Status::Ok();
  }

  void WriteNames() {
    for (const auto& [name, number] : from.name_numbers_) {
      const std::vector<UseRow>& of = use_of[number];
      names.push_back({Text(name.text), static_cast<uint32_t>(name.text.size()),
                       static_cast<uint32_t>(uses.size()), static_cast<uint32_t>(of.size()),
                       name.marked ? 1U : 0U, 0});
      uses.insert(uses.end(), of.begin(), of.end());
    }
  }

  Status WriteShards() {
    for (const auto& [rank, shard] : from.shards_) {
      shards.push_back({rank, class_index[shard.shard_class], positions[rank],
                        static_cast<uint32_t>(extras.size()),
                        static_cast<uint32_t>(shard.extras.size()), 0, shard.data_offset,
                        shard.image_bytes});
      for (const Extra& extra : shard.extras) {
        ExtraRow row{Text(extra.name), static_cast<uint32_t>(extra.name.size()), extra.bytes, 0};
        // An entry that only one rank has stays in its shard, unless it is small.
        const bool stored = extra.content != nullptr && (from.contents_.at(*extra.content) > 1 ||
                                                         extra.content->size() <= kSmallContent);
        if (stored) row.content = uint64_t{Text(*extra.content)} + 1;
        extras.push_back(row);
      }
      if (text.size() > kIndexBytesMax) return TooLong();
    }
    return Status::Ok();
  }

  /// Returns the head, the sections and the checksum.
  Result<std::string> Bytes() const {
    Head head;
    head.incarnation = from.version_.incarnation.value;
    head.step = from.version_.step.value;
    head.world = from.world_;
    head.job_bytes = static_cast<uint32_t>(from.job_.size());
    std::string bytes(sizeof(head), '\0');
    const auto put = [&bytes](const auto& rows, Section* section) {
      *section = {bytes.size(), rows.size()};
      bytes.append(reinterpret_cast<const char*>(rows.data()), rows.size() * sizeof(rows[0]));
      bytes.resize((bytes.size() + 7) / 8 * 8);
    };
    put(shards, &head.shards);
    put(classes, &head.classes);
    put(members, &head.members);
    put(tensors, &head.tensors);
    put(numbers, &head.numbers);
    put(offsets, &head.offsets);
    put(columns, &head.columns);
    put(values, &head.values);
    put(names, &head.names);
    put(uses, &head.uses);
    put(extras, &head.extras);
    put(text, &head.text);
    head.bytes = bytes.size() + sizeof(uint64_t);
    if (head.bytes > kIndexBytesMax) return Fail(TooLong());
    std::memcpy(bytes.data(), &head, sizeof(head));
    Append(uint64_t{Crc32c(std::as_bytes(std::span(bytes)))}, &bytes);
    return bytes;
  }
};

Result<std::string> VersionIndexBuilder::Finish() const {
  Writer out(*this);
  HOLDFAST_RETURN_IF_ERROR(out.WriteClasses());
  out.WriteNames();
  HOLDFAST_RETURN_IF_ERROR(out.WriteShards());
  return out.Bytes();
}

}  // namespace holdfast
