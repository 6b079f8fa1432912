#include "client/core/stream_copy.h"

#include <cstdint>
#include <cstring>

#ifdef __SSE2__
#include <emmintrin.h>
#endif

namespace holdfast::client {

#ifdef __SSE2__
namespace {
constexpr size_t kLineBytes = 64;
// Smaller pieces stay in the cache, from which the checksum reads them soon.
constexpr size_t kStreamedBytesMin = 16 << 10;

/// Copies full cache lines: a part of a line costs as much. `to` is aligned to a line.
void StreamLines(std::byte* to, const std::byte* from, size_t bytes) {
  for (size_t done = 0; done < bytes; done += kLineBytes) {
    auto* source = reinterpret_cast<const __m128i*>(from + done);
    auto* target = reinterpret_cast<__m128i*>(to + done);
    const __m128i words[] = {_mm_loadu_si128(source), _mm_loadu_si128(source + 1),
                             _mm_loadu_si128(source + 2), _mm_loadu_si128(source + 3)};
    _mm_stream_si128(target, words[0]);
    _mm_stream_si128(target + 1, words[1]);
    _mm_stream_si128(target + 2, words[2]);
    _mm_stream_si128(target + 3, words[3]);
  }
  // Streaming stores are not ordered with other stores, not even with those of an atomic.
  _mm_sfence();
}
}  // namespace

void StreamCopy(std::byte* to, const std::byte* from, size_t bytes) {
  if (bytes < kStreamedBytesMin) {
    if (bytes > 0) std::memcpy(to, from, bytes);
    return;
  }
  const size_t head = -reinterpret_cast<uintptr_t>(to) % kLineBytes;
  const size_t lines = (bytes - head) / kLineBytes * kLineBytes;
  const size_t tail = bytes - head - lines;
  std::memcpy(to, from, head);
  StreamLines(to + head, from + head, lines);
  std::memcpy(to + head + lines, from + head + lines, tail);
}
#else
void StreamCopy(std::byte* to, const std::byte* from, size_t bytes) {
  if (bytes > 0) std::memcpy(to, from, bytes);
}
#endif

}  // namespace holdfast::client
