#include "client/core/image_order.h"

#include <algorithm>

namespace holdfast::client {
namespace {
// The pools of PyTorch's allocator: segments of 2 MiB for tensors of up to 1 MiB, of 20 MiB for
// those below 10 MiB, and one segment for each larger tensor.
constexpr uint64_t kSmallMax = 1 << 20;
constexpr uint64_t kMediumMax = (10 << 20) - 1;

// The bits of a place, from the highest: the device, the pool, the number of the tensor.
constexpr unsigned kPoolShift = 20;
constexpr unsigned kDeviceShift = kPoolShift + 2;
static_assert(kTensorsMax <= uint64_t{1} << kPoolShift);

uint64_t BytesOf(const TensorSpec& spec) {
  uint64_t bytes = SizeOf(spec.dtype);
  for (const uint64_t extent : spec.shape) bytes *= extent;
  return bytes;
}

uint64_t AddressOf(const TensorMemory& tensor) { return reinterpret_cast<uint64_t>(tensor.data); }

uint64_t PoolOf(uint64_t bytes) { return bytes <= kSmallMax ? 0 : bytes <= kMediumMax ? 1 : 2; }

std::vector<uint64_t> Places(std::span<const TensorSpec> specs,
                             std::span<const TensorMemory> memory, bool by_pool) {
  std::vector<uint64_t> places(memory.size());
  for (size_t i = 0; i < memory.size(); ++i) {
    if (!memory[i].device) continue;
    const auto device = static_cast<uint64_t>(memory[i].device_index) + 1;
    const uint64_t pool = by_pool ? PoolOf(BytesOf(specs[i])) : 0;
    places[i] = (device << kDeviceShift) | (pool << kPoolShift) | i;
  }
  return places;
}

/// Returns how many copies the device tensors need in this order.
size_t CopiesIn(std::span<const TensorSpec> specs, std::span<const TensorMemory> memory,
                const std::vector<uint64_t>& places) {
  std::vector<size_t> order;
  for (size_t i = 0; i < memory.size(); ++i) {
    if (memory[i].device && BytesOf(specs[i]) > 0) order.push_back(i);
  }
  std::ranges::sort(order, [&](size_t a, size_t b) {
    const uint32_t size_a = SizeOf(specs[a].dtype);
    const uint32_t size_b = SizeOf(specs[b].dtype);
    return size_a != size_b ? size_a > size_b : places[a] < places[b];
  });
  size_t copies = 0;
  for (size_t k = 0; k < order.size(); ++k) {
    const size_t last = order[k == 0 ? 0 : k - 1];
    const bool follows =
        k > 0 && memory[last].device_index == memory[order[k]].device_index &&
        AddressOf(memory[last]) + BytesOf(specs[last]) == AddressOf(memory[order[k]]);
    copies += follows ? 0 : 1;
  }
  return copies;
}
}  // namespace

std::vector<uint64_t> PlacesOf(std::span<const TensorSpec> specs,
                               std::span<const TensorMemory> memory) {
  std::vector<uint64_t> as_listed = Places(specs, memory, false);
  std::vector<uint64_t> by_pool = Places(specs, memory, true);
  const bool fewer = CopiesIn(specs, memory, by_pool) < CopiesIn(specs, memory, as_listed);
  return fewer ? by_pool : as_listed;
}

}  // namespace holdfast::client
