#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "base/status.h"
#include "storage/erasure/coding_tables.h"
#include "storage/erasure/table_cache.h"

namespace holdfast {

/// A segment whose bytes are available. An empty data segment stands for zeros.
struct PresentSegment {
  uint32_t index = 0;  // in the code: data 0 … k − 1, parity k … k + m − 1
  std::span<const std::byte> bytes;
};

/// A segment to compute, and the buffer for it.
struct WantedSegment {
  uint32_t index = 0;
  std::span<std::byte> bytes;
};

/// Reed–Solomon over GF(2^8): m parity segments are computed from k data segments, and any k of the
/// k + m segments determine all others. The matrix is in docs/formats/stripe.md. Each byte column
/// is coded on its own, so callers may cut long segments into pieces at any offsets, the same for
/// all segments.
///
/// An empty data span stands for zeros of the common length and costs nothing. Buffers need no
/// alignment (32 bytes is fastest), and outputs must not overlap any other buffer. Thread-safe.
class ErasureCode {
 public:
  /// Makes a code. Returns InvalidArgument unless k = `data_count` ≥ 1, 1 ≤ m = `parity_count` ≤
  /// kCodeParityMax and k + m ≤ kCodeSegmentsMax.
  static Result<std::unique_ptr<ErasureCode>> Make(uint32_t data_count, uint32_t parity_count);

  uint32_t data_count() const { return data_count_; }
  uint32_t parity_count() const { return parity_count_; }

  /// Overwrites all m parities with those of the k `data`. Returns InvalidArgument and writes
  /// nothing when the counts or lengths do not match.
  Status Encode(std::span<const std::span<const std::byte>> data,
                std::span<const std::span<std::byte>> parity) const;

  /// Adds one data segment to the parities, which must be zeros before the first call. After all k
  /// segments, in any order, the parities equal those of Encode. Slower than Encode, but needs only
  /// one segment at a time. Adding a segment a second time removes it again.
  Status Accumulate(uint32_t data_index, std::span<const std::byte> data,
                    std::span<const std::span<std::byte>> parity) const;

  /// Computes the `wanted` segments, data or parity, from the `present` ones, both in any order.
  /// All have the same length. Returns DataLoss when fewer than k are present, and InvalidArgument
  /// for an index outside the code, an index that occurs twice, or lengths that differ. On error
  /// nothing is written. Decode cannot detect wrong bytes in a present segment: verify them first.
  Status Decode(std::span<const PresentSegment> present,
                std::span<const WantedSegment> wanted) const;

 private:
  ErasureCode(uint32_t data_count, uint32_t parity_count, CodingTables full_encode);

  SegmentSet AllParity() const { return ((SegmentSet{1} << parity_count_) - 1) << data_count_; }
  Status CheckParity(std::span<const std::span<std::byte>> parity) const;
  Status CheckIndex(uint32_t index, SegmentSet seen) const;
  Status RunCached(const CodingPattern& pattern, const CodingTables::Pointers& sources,
                   const CodingTables::Pointers& outputs, uint64_t bytes) const;

  const uint32_t data_count_;
  const uint32_t parity_count_;
  const CodingTables full_encode_;  // all data into all parities: the common case takes no lock
  mutable TableCache cache_;
};

}  // namespace holdfast
