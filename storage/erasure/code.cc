#include "storage/erasure/code.h"

#include <fmt/format.h>

#include <array>
#include <bit>
#include <utility>

namespace holdfast {
namespace {

// A rebuild needs one pattern per stripe, at most 32, and a few more at the ends of images.
constexpr size_t kCachedPatternsMax = 128;

using Pointers = CodingTables::Pointers;

constexpr SegmentSet Bit(uint32_t index) { return SegmentSet{1} << index; }

unsigned char* Raw(std::span<std::byte> bytes) {
  return reinterpret_cast<unsigned char*>(bytes.data());
}
/// ISA-L only reads these bytes, but its parameters are not const.
unsigned char* Raw(std::span<const std::byte> bytes) {
  return reinterpret_cast<unsigned char*>(const_cast<std::byte*>(bytes.data()));
}

Status LengthError(std::string_view what, uint32_t index, uint64_t bytes, uint64_t expected) {
  return InvalidArgumentError(
      fmt::format("{} segment {} has {} bytes, the others have {}", what, index, bytes, expected));
}

/// Returns the pointers of the segments in `set`, in ascending order.
Pointers InOrder(SegmentSet set, const Pointers& by_index) {
  Pointers ordered{};
  size_t count = 0;
  for (; set != 0; set &= set - 1) ordered[count++] = by_index[std::countr_zero(set)];
  return ordered;
}

/// Returns the `count` lowest segments of `set`.
SegmentSet Lowest(SegmentSet set, uint32_t count) {
  SegmentSet lowest = 0;
  for (; count > 0; --count, set &= set - 1) lowest |= set & -set;
  return lowest;
}

}  // namespace

Result<std::unique_ptr<ErasureCode>> ErasureCode::Make(uint32_t data_count, uint32_t parity_count) {
  if (data_count == 0 || parity_count == 0 || parity_count > kCodeParityMax ||
      data_count > kCodeSegmentsMax - parity_count) {
    return Fail(InvalidArgumentError(
        fmt::format("no erasure code has {}+{} segments: use at least 1+1, at most {} parity, and "
                    "at most {} in all",
                    data_count, parity_count, kCodeParityMax, kCodeSegmentsMax)));
  }
  const CodingPattern full{
      .sources = Bit(data_count) - 1, .zeros = 0, .outputs = (Bit(parity_count) - 1) << data_count};
  HOLDFAST_ASSIGN_OR_RETURN(CodingTables tables,
                            CodingTables::Make(data_count, parity_count, full));
  return std::unique_ptr<ErasureCode>(new ErasureCode(data_count, parity_count, std::move(tables)));
}

ErasureCode::ErasureCode(uint32_t data_count, uint32_t parity_count, CodingTables full_encode)
    : data_count_(data_count),
      parity_count_(parity_count),
      full_encode_(std::move(full_encode)),
      cache_(kCachedPatternsMax) {}

Status ErasureCode::CheckParity(std::span<const std::span<std::byte>> parity) const {
  if (parity.size() != parity_count_) {
    return InvalidArgumentError(
        fmt::format("got {} parity segments, the code has {}", parity.size(), parity_count_));
  }
  for (uint32_t i = 1; i < parity_count_; ++i) {
    if (parity[i].size() != parity[0].size()) {
      return LengthError("parity", data_count_ + i, parity[i].size(), parity[0].size());
    }
  }
  return Status::Ok();
}

Status ErasureCode::Encode(std::span<const std::span<const std::byte>> data,
                           std::span<const std::span<std::byte>> parity) const {
  HOLDFAST_RETURN_IF_ERROR(CheckParity(parity));
  if (data.size() != data_count_) {
    return InvalidArgumentError(
        fmt::format("got {} data segments, the code has {}", data.size(), data_count_));
  }
  const uint64_t bytes = parity[0].size();
  CodingPattern pattern{.sources = 0, .zeros = 0, .outputs = AllParity()};
  Pointers sources{};
  size_t source_count = 0;
  for (uint32_t i = 0; i < data_count_; ++i) {
    if (data[i].empty()) {
      pattern.zeros |= Bit(i);
      continue;
    }
    if (data[i].size() != bytes) return LengthError("data", i, data[i].size(), bytes);
    pattern.sources |= Bit(i);
    sources[source_count++] = Raw(data[i]);
  }
  Pointers outputs{};
  for (uint32_t i = 0; i < parity_count_; ++i) outputs[i] = Raw(parity[i]);
  if (pattern.zeros == 0) {
    full_encode_.Run(sources, outputs, bytes);
    return Status::Ok();
  }
  return RunCached(pattern, sources, outputs, bytes);
}

Status ErasureCode::Accumulate(uint32_t data_index, std::span<const std::byte> data,
                               std::span<const std::span<std::byte>> parity) const {
  HOLDFAST_RETURN_IF_ERROR(CheckParity(parity));
  if (data_index >= data_count_) {
    return InvalidArgumentError(
        fmt::format("segment {} is not one of the {} data segments", data_index, data_count_));
  }
  if (data.empty()) return Status::Ok();
  if (data.size() != parity[0].size()) {
    return LengthError("data", data_index, data.size(), parity[0].size());
  }
  Pointers outputs{};
  for (uint32_t i = 0; i < parity_count_; ++i) outputs[i] = Raw(parity[i]);
  full_encode_.Add(data_index, Raw(data), outputs, data.size());
  return Status::Ok();
}

Status ErasureCode::CheckIndex(uint32_t index, SegmentSet seen) const {
  if (index >= data_count_ + parity_count_) {
    return InvalidArgumentError(
        fmt::format("the {}+{} code has no segment {}", data_count_, parity_count_, index));
  }
  if ((seen & Bit(index)) != 0) {
    return InvalidArgumentError(fmt::format("segment {} occurs twice", index));
  }
  return Status::Ok();
}

Status ErasureCode::Decode(std::span<const PresentSegment> present,
                           std::span<const WantedSegment> wanted) const {
  if (wanted.empty()) return Status::Ok();
  const uint64_t bytes = wanted[0].bytes.size();
  SegmentSet seen = 0;
  CodingPattern pattern;
  Pointers sources{};
  for (const PresentSegment& segment : present) {
    HOLDFAST_RETURN_IF_ERROR(CheckIndex(segment.index, seen));
    seen |= Bit(segment.index);
    if (segment.bytes.empty() && segment.index < data_count_) {
      pattern.zeros |= Bit(segment.index);
    } else if (segment.bytes.size() != bytes) {
      return LengthError("present", segment.index, segment.bytes.size(), bytes);
    }
    sources[segment.index] = Raw(segment.bytes);
  }
  const SegmentSet survivors = seen;
  Pointers outputs{};
  for (const WantedSegment& segment : wanted) {
    HOLDFAST_RETURN_IF_ERROR(CheckIndex(segment.index, seen));
    seen |= Bit(segment.index);
    pattern.outputs |= Bit(segment.index);
    if (segment.bytes.size() != bytes) {
      return LengthError("wanted", segment.index, segment.bytes.size(), bytes);
    }
    outputs[segment.index] = Raw(segment.bytes);
  }
  const auto count = static_cast<uint32_t>(std::popcount(survivors));
  if (count < data_count_) {
    return DataLossError(fmt::format("{} of the {}+{} segments are left, {} are needed", count,
                                     data_count_, parity_count_, data_count_));
  }
  // Any k survivors are enough. The lowest k include all present data before any parity. Data
  // segments may be zeros, which cost nothing.
  pattern.sources = Lowest(survivors, data_count_) & ~pattern.zeros;
  return RunCached(pattern, InOrder(pattern.sources, sources), InOrder(pattern.outputs, outputs),
                   bytes);
}

Status ErasureCode::RunCached(const CodingPattern& pattern, const Pointers& sources,
                              const Pointers& outputs, uint64_t bytes) const {
  TableCache::Tables tables = cache_.Find(pattern);
  if (tables == nullptr) {
    // The tables are made without the cache's lock, so other threads are not blocked meanwhile.
    HOLDFAST_ASSIGN_OR_RETURN(CodingTables made,
                              CodingTables::Make(data_count_, parity_count_, pattern));
    tables = std::make_shared<const CodingTables>(std::move(made));
    cache_.Keep(pattern, tables);
  }
  tables->Run(sources, outputs, bytes);
  return Status::Ok();
}

}  // namespace holdfast
