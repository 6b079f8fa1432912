#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "storage/base/status.h"
#include "storage/erasure/coding_tables.h"
#include "storage/erasure/table_cache.h"

namespace holdfast {

/// A segment that is at hand. A data segment without bytes is known to be zeros all over.
struct PresentSegment {
  uint32_t index = 0;  // in the code: data 0 … k − 1, parity k … k + m − 1
  std::span<const std::byte> bytes;
};

/// A segment to make, and where.
struct WantedSegment {
  uint32_t index = 0;
  std::span<std::byte> bytes;
};

/// Reed–Solomon over GF(2^8): k data segments get m parity segments, and any k of the k + m give
/// back all others. The matrix is in docs/formats/stripe.md. Computes byte by byte along the
/// segments, so callers may cut long segments into pieces as they like, the same for all segments.
///
/// Absent bytes are zeros that nobody sends: an empty data span stands for zeros of the common
/// length and costs nothing. Buffers need no alignment (32 bytes is fastest), and outputs must not
/// overlap any other buffer. Thread-safe.
class ErasureCode {
 public:
  /// InvalidArgument unless k = `data_count` ≥ 1, 1 ≤ m = `parity_count` ≤ kCodeParityMax and
  /// k + m ≤ kCodeSegmentsMax.
  static Result<std::unique_ptr<ErasureCode>> Make(uint32_t data_count, uint32_t parity_count);

  uint32_t data_count() const { return data_count_; }
  uint32_t parity_count() const { return parity_count_; }

  /// Overwrites all m parities with those of the k `data`. InvalidArgument when the numbers or
  /// lengths do not fit; then nothing was written.
  Status Encode(std::span<const std::span<const std::byte>> data,
                std::span<const std::span<std::byte>> parity) const;

  /// Adds one data segment to parities that began as zeros: after all k, in any order, they are
  /// those of Encode. Slower than Encode, but needs only one segment at a time. Adding a segment
  /// twice takes it out again.
  Status Accumulate(uint32_t data_index, std::span<const std::byte> data,
                    std::span<const std::span<std::byte>> parity) const;

  /// Makes `wanted` segments, data or parity, from those that are `present`, both in any order. All
  /// are equally long. DataLoss when fewer than k are present; InvalidArgument for an index outside
  /// the code or named twice, and for lengths that differ. On error nothing was written. Cannot
  /// see that a present segment holds wrong bytes: check them before.
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
  const CodingTables full_encode_;  // of all data into all parities: the usual case takes no lock
  mutable TableCache cache_;
};

}  // namespace holdfast
