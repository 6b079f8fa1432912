#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "base/random.h"
#include "storage/erasure/code.h"

// Segments for tests, and an oracle that is independent of the code under test: the field's
// definition and the matrix of docs/formats/stripe.md.

namespace holdfast {

/// GF(2^8) with the polynomial x^8 + x^4 + x^3 + x^2 + 1, bit by bit.
inline uint8_t SlowMultiply(uint8_t a, uint8_t b) {
  unsigned product = 0;
  for (unsigned shifted = a; b != 0; b >>= 1) {
    if ((b & 1) != 0) product ^= shifted;
    shifted <<= 1;
    if ((shifted & 0x100) != 0) shifted ^= 0x11d;
  }
  return static_cast<uint8_t>(product);
}

/// Returns every product as [a][b], so that each is computed only once.
inline const std::vector<std::array<std::byte, 256>>& SlowProducts() {
  static const std::vector<std::array<std::byte, 256>> products = [] {
    std::vector<std::array<std::byte, 256>> made(256);
    for (unsigned a = 0; a < 256; ++a) {
      for (unsigned b = 0; b < 256; ++b) {
        made[a][b] = std::byte{SlowMultiply(static_cast<uint8_t>(a), static_cast<uint8_t>(b))};
      }
    }
    return made;
  }();
  return products;
}

inline uint8_t SlowInverse(uint8_t a) {
  uint8_t inverse = 1;
  while (SlowProducts()[a][inverse] != std::byte{1}) ++inverse;
  return inverse;
}

/// Returns the coefficient of data segment `column` in parity `row`.
inline uint8_t SlowCoefficient(uint32_t k, uint32_t row, uint32_t column) {
  return SlowMultiply(static_cast<uint8_t>(k ^ column),
                      SlowInverse(static_cast<uint8_t>((k + row) ^ column)));
}

using Bytes = std::vector<std::byte>;

inline Bytes RandomSegment(Random& random, size_t bytes) {
  Bytes segment(bytes);
  for (std::byte& b : segment) b = static_cast<std::byte>(random.Next() >> 56);
  return segment;
}

/// Returns the m parities of `data`, in which an empty segment stands for zeros.
inline std::vector<Bytes> SlowEncode(const std::vector<Bytes>& data, uint32_t m, size_t bytes) {
  const auto k = static_cast<uint32_t>(data.size());
  std::vector<Bytes> parity(m, Bytes(bytes));
  for (uint32_t row = 0; row < m; ++row) {
    for (uint32_t column = 0; column < k; ++column) {
      const auto& times = SlowProducts()[SlowCoefficient(k, row, column)];
      for (size_t i = 0; i < data[column].size(); ++i) {
        parity[row][i] ^= times[std::to_integer<size_t>(data[column][i])];
      }
    }
  }
  return parity;
}

inline std::vector<std::span<const std::byte>> Views(const std::vector<Bytes>& segments) {
  return {segments.begin(), segments.end()};
}
inline std::vector<std::span<std::byte>> Buffers(std::vector<Bytes>& segments) {
  return {segments.begin(), segments.end()};
}

template <typename T>
void Shuffle(Random& random, std::vector<T>& values) {
  for (size_t i = values.size(); i > 1; --i) std::swap(values[i - 1], values[random.Below(i)]);
}

/// Returns the bits of `set` as numbers, ascending.
inline std::vector<uint32_t> Members(uint32_t set) {
  std::vector<uint32_t> members;
  for (; set != 0; set &= set - 1) {
    members.push_back(static_cast<uint32_t>(std::countr_zero(set)));
  }
  return members;
}

/// Returns `count` random bits of the lowest `of`.
inline uint32_t RandomSubset(Random& random, uint32_t of, uint32_t count) {
  uint32_t set = 0;
  while (static_cast<uint32_t>(std::popcount(set)) < count) set |= 1U << random.Below(of);
  return set;
}

/// Returns each (k, m) that a code can have.
inline std::vector<std::pair<uint32_t, uint32_t>> AllShapes() {
  std::vector<std::pair<uint32_t, uint32_t>> shapes;
  for (uint32_t m = 1; m <= kCodeParityMax; ++m) {
    for (uint32_t k = 1; k + m <= kCodeSegmentsMax; ++k) shapes.emplace_back(k, m);
  }
  return shapes;
}

}  // namespace holdfast
