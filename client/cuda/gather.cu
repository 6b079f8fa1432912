// Copies many small runs between device memory and pinned host memory. A copy engine needs about
// 2 µs for each run, however small; this kernel reaches the rate of one large copy with a few
// multiprocessors.

#include "client/cuda/gather_item.h"

namespace {

/// Loads 16 bytes whose address is a multiple of sizeof(Word).
template <typename Word>
__device__ uint4 Load(const unsigned char* from) {
  constexpr int kWords = sizeof(uint4) / sizeof(Word);
  union {
    uint4 all;
    Word words[kWords];
  } loaded;
#pragma unroll
  for (int i = 0; i < kWords; ++i) loaded.words[i] = reinterpret_cast<const Word*>(from)[i];
  return loaded.all;
}

/// Copies `lines` lines of 16 bytes with one warp. `to` is aligned to a line, `from` to a Word.
template <typename Word>
__device__ void CopyLines(unsigned char* to, const unsigned char* from, unsigned lines,
                          unsigned lane) {
  uint4* out = reinterpret_cast<uint4*>(to);
  unsigned line = lane;
  for (; line + 96 < lines; line += 128) {
    const uint4 a = Load<Word>(from + 16ull * line);
    const uint4 b = Load<Word>(from + 16ull * (line + 32));
    const uint4 c = Load<Word>(from + 16ull * (line + 64));
    const uint4 d = Load<Word>(from + 16ull * (line + 96));
    out[line] = a;
    out[line + 32] = b;
    out[line + 64] = c;
    out[line + 96] = d;
  }
  for (; line < lines; line += 32) out[line] = Load<Word>(from + 16ull * line);
}

__device__ void CopyRun(unsigned char* to, const unsigned char* from, unsigned bytes,
                        unsigned lane) {
  const unsigned to_line = static_cast<unsigned>(-reinterpret_cast<unsigned long long>(to) & 15);
  const unsigned head = to_line < bytes ? to_line : bytes;
  if (lane < head) to[lane] = from[lane];
  to += head;
  from += head;
  const unsigned lines = (bytes - head) / 16;
  const unsigned odd = static_cast<unsigned>(reinterpret_cast<unsigned long long>(from) & 15);
  if (odd == 0) {
    CopyLines<uint4>(to, from, lines, lane);
  } else if (odd % 8 == 0) {
    CopyLines<unsigned long long>(to, from, lines, lane);
  } else if (odd % 4 == 0) {
    CopyLines<unsigned>(to, from, lines, lane);
  } else if (odd % 2 == 0) {
    CopyLines<unsigned short>(to, from, lines, lane);
  } else {
    CopyLines<unsigned char>(to, from, lines, lane);
  }
  const unsigned tail = (bytes - head) % 16;
  if (lane < tail) to[16ull * lines + lane] = from[16ull * lines + lane];
}

}  // namespace

/// A warp copies an item at a time: from the device to `slot`, or back.
extern "C" __global__ void holdfast_gather(const holdfast::cuda::GatherItem* items, unsigned count,
                                           unsigned char* slot, int to_host) {
  const unsigned lane = threadIdx.x % 32;
  const unsigned warps = gridDim.x * (blockDim.x / 32);
  for (unsigned i = (blockIdx.x * blockDim.x + threadIdx.x) / 32; i < count; i += warps) {
    const holdfast::cuda::GatherItem item = items[i];
    auto* on_device = reinterpret_cast<unsigned char*>(item.device);
    unsigned char* on_host = slot + item.slot_offset;
    if (to_host) {
      CopyRun(on_host, on_device, item.bytes, lane);
    } else {
      CopyRun(on_device, on_host, item.bytes, lane);
    }
  }
}
