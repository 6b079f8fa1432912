#include "client/core/content_tables.h"

#include <optional>
#include <utility>

namespace holdfast::client {
namespace {
// The shape of a scalar.
constexpr uint64_t kNoDimensions[1] = {0};

/// Of the uses of a name, the one in the shard of the lowest rank.
Result<index::UseRow> LowestUse(const VersionIndex& index, const VersionIndex::Name& name) {
  index::UseRow lowest = name.uses.front();
  uint32_t lowest_rank = UINT32_MAX;
  for (const index::UseRow& use : name.uses) {
    HOLDFAST_ASSIGN_OR_RETURN(const VersionIndex::Class of, index.ClassAt(use.shard_class));
    if (of.members.empty() || of.members.front() >= lowest_rank) continue;
    lowest_rank = of.members.front();
    lowest = use;
  }
  return lowest;
}
}  // namespace

const char* ContentTables::Kept(std::string_view name) {
  auto kept = names_.find(name);
  if (kept == names_.end()) kept = names_.emplace(name).first;
  return kept->c_str();
}

const uint64_t* ContentTables::Kept(std::span<const uint64_t> numbers) {
  if (numbers.empty()) return kNoDimensions;
  return numbers_.emplace(numbers.begin(), numbers.end()).first->data();
}

void ContentTables::AddPiece(uint32_t rank, std::string_view name, DType dtype,
                             std::span<const uint64_t> shape,
                             std::span<const uint64_t> global_shape,
                             std::span<const uint64_t> offset) {
  pieces_.push_back({Kept(name), rank, static_cast<uint32_t>(dtype),
                     static_cast<uint32_t>(shape.size()), 0, Kept(shape), Kept(global_shape),
                     Kept(offset)});
}

void ContentTables::AddExtra(uint32_t rank, std::string_view name, std::string bytes) {
  const std::string& kept = contents_.emplace_back(std::move(bytes));
  extras_.push_back({rank, 0, {Kept(name), kept.c_str(), kept.size()}});
}

void ContentTables::Show(holdfast_reader_info* info) const {
  info->pieces = pieces_.data();
  info->piece_count = pieces_.size();
  info->extras = extras_.data();
  info->extra_count = extras_.size();
}

Status AddTensor(const VersionIndex& index, const VersionIndex::Class& of, uint64_t tensor,
                 uint32_t position, ContentTables& tables) {
  HOLDFAST_ASSIGN_OR_RETURN(const VersionIndex::Tensor found, index.TensorAt(of, tensor));
  HOLDFAST_ASSIGN_OR_RETURN(const VersionIndex::Name name, index.NameAt(found.name));
  HOLDFAST_ASSIGN_OR_RETURN(const auto offset, index.OffsetOf(found, of, position));
  if (position >= of.members.size()) {
    return DataLossError("the index of the version has a shard outside of its class");
  }
  const uint32_t rank = of.members[position];
  const std::string text = std::string(name.text) + (name.marked ? std::to_string(rank) : "");
  tables.AddPiece(rank, text, found.dtype, found.shape, found.global_shape, offset);
  return Status::Ok();
}

Status ListTensors(const VersionIndex& index, ContentTables& tables) {
  for (uint64_t i = 0; i < index.names(); ++i) {
    HOLDFAST_ASSIGN_OR_RETURN(const VersionIndex::Name name, index.NameAt(i));
    if (name.uses.empty()) continue;
    if (!name.marked) {
      HOLDFAST_ASSIGN_OR_RETURN(const index::UseRow use, LowestUse(index, name));
      HOLDFAST_ASSIGN_OR_RETURN(const VersionIndex::Class of, index.ClassAt(use.shard_class));
      HOLDFAST_RETURN_IF_ERROR(AddTensor(index, of, use.tensor, 0, tables));
      continue;
    }
    // Under such a name, each rank has a rank-local tensor. Uses of one class are adjacent:
    // further ones are other slices of the same tensors.
    std::optional<uint32_t> listed;
    for (const index::UseRow& use : name.uses) {
      if (listed == use.shard_class) continue;
      listed = use.shard_class;
      HOLDFAST_ASSIGN_OR_RETURN(const VersionIndex::Class of, index.ClassAt(use.shard_class));
      for (uint32_t position = 0; position < of.members.size(); ++position) {
        HOLDFAST_RETURN_IF_ERROR(AddTensor(index, of, use.tensor, position, tables));
      }
    }
  }
  return Status::Ok();
}

}  // namespace holdfast::client
