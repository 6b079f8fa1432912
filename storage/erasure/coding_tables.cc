#include "storage/erasure/coding_tables.h"

#include <isa-l/erasure_code.h>
#include <isa-l/raid.h>

#include <algorithm>
#include <bit>
#include <cstring>

namespace holdfast {
namespace {

constexpr size_t kTableBytes = 32;  // ISA-L's expansion of one coefficient
// ISA-L takes an int length. A multiple of every vector width keeps the pieces aligned.
constexpr uint64_t kCallBytesMax = 1ULL << 30;
constexpr uintptr_t kXorAlignment = 32;

using Matrix = std::vector<unsigned char>;  // row by row, `data_count` columns

/// Returns the matrix that maps the data segments to all segments: the identity, then one row for
/// each parity.
///
/// The parity rows are a Cauchy matrix with each column divided by its first entry, which makes the
/// first parity the plain XOR of the data. No minor of a Cauchy matrix is zero, and dividing a
/// column only multiplies minors by nonzero numbers. Any `data_count` rows therefore stay
/// independent, and any `parity_count` losses can be decoded.
Matrix Generator(uint32_t data_count, uint32_t parity_count) {
  const uint32_t segments = data_count + parity_count;
  Matrix rows(size_t{segments} * data_count);
  gf_gen_cauchy1_matrix(rows.data(), static_cast<int>(segments), static_cast<int>(data_count));
  unsigned char* parity = rows.data() + size_t{data_count} * data_count;
  for (uint32_t column = 0; column < data_count; ++column) {
    const unsigned char scale = gf_inv(parity[column]);
    for (uint32_t row = 0; row < parity_count; ++row) {
      unsigned char& entry = parity[row * data_count + column];
      entry = gf_mul(entry, scale);
    }
  }
  return rows;
}

/// Returns the matrix that maps the survivors to the data segments. Internal when the survivors'
/// rows are not independent.
Result<Matrix> DataFromSurvivors(const Matrix& generator, uint32_t data_count,
                                 SegmentSet survivors) {
  Matrix rows;
  rows.reserve(size_t{data_count} * data_count);
  for (SegmentSet left = survivors; left != 0; left &= left - 1) {
    auto row = generator.begin() + std::countr_zero(left) * static_cast<ptrdiff_t>(data_count);
    rows.insert(rows.end(), row, row + data_count);
  }
  Matrix inverse(rows.size());
  if (gf_invert_matrix(rows.data(), inverse.data(), static_cast<int>(data_count)) != 0) {
    return Fail(InternalError("the rows of an erasure code are not independent"));
  }
  return inverse;
}

/// Returns `row` × `matrix`.
Matrix Product(const unsigned char* row, const Matrix& matrix, uint32_t data_count) {
  Matrix product(data_count);
  for (uint32_t i = 0; i < data_count; ++i) {
    for (uint32_t column = 0; column < data_count; ++column) {
      product[column] ^= gf_mul(row[i], matrix[i * data_count + column]);
    }
  }
  return product;
}

}  // namespace

Result<CodingTables> CodingTables::Make(uint32_t data_count, uint32_t parity_count,
                                        const CodingPattern& pattern) {
  const SegmentSet survivors = pattern.sources | pattern.zeros;
  const Matrix generator = Generator(data_count, parity_count);
  HOLDFAST_ASSIGN_OR_RETURN(Matrix to_data, DataFromSurvivors(generator, data_count, survivors));

  Matrix coefficients;  // outputs × sources, without the zeros
  for (SegmentSet left = pattern.outputs; left != 0; left &= left - 1) {
    const int output = std::countr_zero(left);
    Matrix row = Product(&generator[static_cast<size_t>(output) * data_count], to_data, data_count);
    size_t column = 0;
    for (SegmentSet from = survivors; from != 0; from &= from - 1, ++column) {
      const bool is_source = (pattern.sources >> std::countr_zero(from) & 1) != 0;
      if (is_source) coefficients.push_back(row[column]);
    }
  }

  CodingTables made;
  made.source_count_ = std::popcount(pattern.sources);
  made.output_count_ = std::popcount(pattern.outputs);
  made.is_xor_ = made.output_count_ == 1 &&
                 std::all_of(coefficients.begin(), coefficients.end(),
                             [](unsigned char coefficient) { return coefficient == 1; });
  made.tables_.resize(coefficients.size() * kTableBytes);
  if (!coefficients.empty()) {
    ec_init_tables(made.source_count_, made.output_count_, coefficients.data(),
                   made.tables_.data());
  }
  return made;
}

void CodingTables::Run(const Pointers& sources, const Pointers& outputs, uint64_t bytes) const {
  if (bytes == 0) return;  // the pointers may be null in this case
  if (source_count_ == 0) {
    for (int i = 0; i < output_count_; ++i) std::memset(outputs[i], 0, bytes);
    return;
  }
  Pointers from = sources;
  Pointers to = outputs;
  auto* tables = const_cast<unsigned char*>(tables_.data());  // only read
  while (bytes > 0) {
    const uint64_t count = std::min(bytes, kCallBytesMax);
    if (!RunXor(from, to, count)) {
      ec_encode_data(static_cast<int>(count), source_count_, output_count_, tables, from.data(),
                     to.data());
    }
    for (int i = 0; i < source_count_; ++i) from[i] += count;
    for (int i = 0; i < output_count_; ++i) to[i] += count;
    bytes -= count;
  }
}

/// Computes the output with ISA-L's XOR, which needs no tables. Returns false when XOR does not
/// apply.
bool CodingTables::RunXor(const Pointers& sources, const Pointers& outputs, uint64_t bytes) const {
  constexpr int kSourcesMin = 2;
  if (!is_xor_ || source_count_ < kSourcesMin) return false;
  std::array<void*, kCodeSegmentsMax + 1> all;
  std::copy_n(sources.begin(), source_count_, all.begin());
  all[source_count_] = outputs[0];
  for (int i = 0; i <= source_count_; ++i) {
    if (reinterpret_cast<uintptr_t>(all[i]) % kXorAlignment != 0) return false;
  }
  return xor_gen(source_count_ + 1, static_cast<int>(bytes), all.data()) == 0;
}

void CodingTables::Add(uint32_t source, unsigned char* bytes_of_source, const Pointers& outputs,
                       uint64_t bytes) const {
  Pointers to = outputs;
  auto* tables = const_cast<unsigned char*>(tables_.data());  // only read
  while (bytes > 0) {
    const uint64_t count = std::min(bytes, kCallBytesMax);
    ec_encode_data_update(static_cast<int>(count), source_count_, output_count_,
                          static_cast<int>(source), tables, bytes_of_source, to.data());
    bytes_of_source += count;
    for (int i = 0; i < output_count_; ++i) to[i] += count;
    bytes -= count;
  }
}

}  // namespace holdfast
