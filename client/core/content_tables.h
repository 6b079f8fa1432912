#pragma once

#include <holdfast/holdfast.h>

#include <cstdint>
#include <deque>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "storage/format/version_index.h"

namespace holdfast::client {

/// What a shard contains, in the form of the C interface. The tables stay where they are until the
/// object is destroyed.
class ContentTables {
 public:
  ContentTables() = default;
  ContentTables(const ContentTables&) = delete;
  ContentTables& operator=(const ContentTables&) = delete;

  void AddPiece(uint32_t rank, std::string_view name, DType dtype, std::span<const uint64_t> shape,
                std::span<const uint64_t> global_shape, std::span<const uint64_t> offset);
  void AddExtra(uint32_t rank, std::string_view name, std::string bytes);
  /// Fills the tables of `info`.
  void Show(holdfast_reader_info* info) const;

 private:
  const char* Kept(std::string_view name);
  const uint64_t* Kept(std::span<const uint64_t> numbers);

  std::set<std::string, std::less<>> names_;
  std::set<std::vector<uint64_t>> numbers_;
  std::deque<std::string> contents_;
  std::vector<holdfast_piece> pieces_;
  std::vector<holdfast_rank_extra> extras_;
};

/// Adds a tensor of the shard at `position` of a class.
Status AddTensor(const VersionIndex& index, const VersionIndex::Class& of, uint64_t tensor,
                 uint32_t position, ContentTables& tables);

/// Adds each tensor of the version once, as the lowest rank that saved it described it. Reads one
/// row for each name, and one for each rank where the ranks have tensors of their own: the slices
/// of the other ranks are not read.
Status ListTensors(const VersionIndex& index, ContentTables& tables);

}  // namespace holdfast::client
