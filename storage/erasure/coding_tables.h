#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "base/status.h"

namespace holdfast {

/// Limits of a code: segments per stripe (data and parity), and parity segments per stripe.
inline constexpr uint32_t kCodeSegmentsMax = 32;
inline constexpr uint32_t kCodeParityMax = 4;

/// Segments of a stripe as bits: bit i is segment i, data first, then parity.
using SegmentSet = uint32_t;

/// The inputs and outputs of one computation.
struct CodingPattern {
  SegmentSet sources = 0;  // read
  SegmentSet zeros = 0;    // known to be zeros: count as sources, but are never read
  SegmentSet outputs = 0;  // computed

  friend bool operator==(const CodingPattern&, const CodingPattern&) = default;
};

/// The coefficients of one pattern, expanded for ISA-L. Immutable, so any threads may share it.
class CodingTables {
 public:
  using Pointers = std::array<unsigned char*, kCodeSegmentsMax>;

  /// Makes the tables for the code of `data_count` and `parity_count` segments
  /// (docs/formats/stripe.md). The sources and zeros of `pattern` are `data_count` segments in
  /// total, and none of them is an output.
  static Result<CodingTables> Make(uint32_t data_count, uint32_t parity_count,
                                   const CodingPattern& pattern);

  /// Computes the outputs from the sources. Each buffer has `bytes` bytes, and both lists are in
  /// ascending order of segments. No output may overlap another buffer.
  void Run(const Pointers& sources, const Pointers& outputs, uint64_t bytes) const;
  /// Adds the contribution of source number `source` to each output.
  void Add(uint32_t source, unsigned char* bytes_of_source, const Pointers& outputs,
           uint64_t bytes) const;

 private:
  CodingTables() = default;
  bool RunXor(const Pointers& sources, const Pointers& outputs, uint64_t bytes) const;

  int source_count_ = 0;
  int output_count_ = 0;
  bool is_xor_ = false;                // one output, the XOR of the sources
  std::vector<unsigned char> tables_;  // 32 bytes per coefficient, output by output
};

}  // namespace holdfast
