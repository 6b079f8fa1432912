#include "client/core/image_order.h"

#include <gtest/gtest.h>

namespace holdfast::client {
namespace {
constexpr uint64_t kKib = 1024;
constexpr uint64_t kMib = 1024 * kKib;

/// Tensors "t0", "t1", … in the order in which the program lists them.
struct Tensors {
  void Add(uint64_t bytes, uint64_t address, int32_t device = 0, DType dtype = DType::kU8) {
    const std::vector<uint64_t> shape = {bytes / SizeOf(dtype)};
    specs.push_back({"t" + std::to_string(specs.size()), dtype, shape, shape, {0}});
    memory.push_back({reinterpret_cast<std::byte*>(address), device >= 0, std::max(device, 0)});
  }
  /// Returns the numbers of the tensors in image order, such as "0 2 1".
  std::string Order() const {
    const ImageLayout layout = ImageLayout::Plan(specs, PlacesOf(specs, memory)).value();
    std::string order;
    for (const PlacedTensor& tensor : layout.tensors()) {
      order += (order.empty() ? "" : " ") + tensor.spec.name.substr(1);
    }
    return order;
  }
  std::vector<TensorSpec> specs;
  std::vector<TensorMemory> memory;
};

TEST(ImageOrderTest, TensorsOfOneBufferKeepTheirOrder) {
  Tensors tensors;
  uint64_t address = 1 << 20;
  for (const uint64_t bytes : {4 * kKib, 20 * kMib, 4 * kKib, 2 * kMib, 512 * kKib}) {
    tensors.Add(bytes, address);
    address += bytes;
  }
  EXPECT_EQ(tensors.Order(), "0 1 2 3 4");
}

TEST(ImageOrderTest, TensorsOfThreePoolsAreGrouped) {
  Tensors tensors;
  uint64_t small = 1 << 20;
  uint64_t medium = 1ULL << 32;
  for (int layer = 0; layer < 3; ++layer) {
    tensors.Add(40 * kMib, (3ULL << 32) + static_cast<uint64_t>(layer) * 64 * kMib);
    tensors.Add(4 * kKib, small);
    tensors.Add(2 * kMib, medium);
    small += 4 * kKib;
    medium += 2 * kMib;
  }
  EXPECT_EQ(tensors.Order(), "1 4 7 2 5 8 0 3 6");
}

TEST(ImageOrderTest, TheLimitsOfThePoolsAreThoseOfTheAllocator) {
  Tensors tensors;
  tensors.Add(10 * kMib, 9ULL << 32);
  tensors.Add(10 * kMib - 512, 4ULL << 32);
  tensors.Add(1 * kMib, 1ULL << 32);
  tensors.Add(1 * kMib + 512, (4ULL << 32) + 10 * kMib - 512);
  tensors.Add(512, (1ULL << 32) + 1 * kMib);
  EXPECT_EQ(tensors.Order(), "2 4 1 3 0");
}

/// Ranks whose allocators have placed the tensors differently have the same order.
TEST(ImageOrderTest, AddressesDoNotChangeTheOrderOfAPool) {
  Tensors tensors;
  for (uint64_t i = 0; i < 4; ++i) tensors.Add(4 * kKib, (1 << 20) - i * 8 * kKib);
  EXPECT_EQ(tensors.Order(), "0 1 2 3");
}

TEST(ImageOrderTest, HostTensorsAreFirstAndDevicesAreSeparate) {
  Tensors tensors;
  tensors.Add(4 * kKib, 1 << 20, 1);
  tensors.Add(4 * kKib, 2 << 20, 0);
  tensors.Add(4 * kKib, 3 << 20, -1);
  tensors.Add(4 * kKib, (1 << 20) + 4 * kKib, 1);
  tensors.Add(4 * kKib, (2 << 20) + 4 * kKib, 0);
  tensors.Add(4 * kKib, 4 << 20, -1);
  tensors.specs[2].name = "z2";
  EXPECT_EQ(tensors.Order(), "5 2 1 4 0 3");
}

TEST(ImageOrderTest, TheElementSizeComesFirst) {
  Tensors tensors;
  tensors.Add(4 * kKib, 1 << 20, 0, DType::kBF16);
  tensors.Add(4 * kKib, 2 << 20, 0, DType::kF32);
  tensors.Add(0, 0, 0, DType::kF32);
  EXPECT_EQ(tensors.Order(), "1 2 0");
}

TEST(ImageOrderTest, NoTensors) { EXPECT_EQ(Tensors().Order(), ""); }

}  // namespace
}  // namespace holdfast::client
