#include "tests/client/cuda/simulated_driver/memory.h"

#include <sys/mman.h>

#include <iterator>

namespace holdfast::cuda::simulated {
namespace {
constexpr size_t kAddressBytes = 256ULL << 30;  // address space only
constexpr size_t kAlign = 64ULL << 10;
}  // namespace

CUdeviceptr Memory::Allocate(int device, size_t bytes) {
  if (begin_ == 0) {
    void* space = ::mmap(nullptr, kAddressBytes, PROT_NONE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (space == MAP_FAILED) return 0;
    begin_ = next_ = reinterpret_cast<CUdeviceptr>(space);
  }
  // A gap follows each allocation, so that an overrun hits no other one.
  const size_t room = (bytes / kAlign + 2) * kAlign;
  if (room > begin_ + kAddressBytes - next_) return 0;
  const CUdeviceptr address = next_;
  next_ += room;
  allocations_[address] = {bytes, device, std::make_unique_for_overwrite<std::byte[]>(bytes)};
  return address;
}

bool Memory::Free(CUdeviceptr address) { return allocations_.erase(address) != 0; }

bool Memory::IsDevice(CUdeviceptr address) const {
  return begin_ != 0 && address >= begin_ && address < begin_ + kAddressBytes;
}

bool Memory::FindAllocation(CUdeviceptr address, CUdeviceptr* base, size_t* bytes) const {
  auto after = allocations_.upper_bound(address);
  if (after == allocations_.begin()) return false;
  const auto& [begin, allocation] = *std::prev(after);
  *base = begin;
  *bytes = allocation.bytes;
  return address - begin < allocation.bytes;
}

std::shared_ptr<std::byte> Memory::Find(CUdeviceptr address, size_t bytes) const {
  auto after = allocations_.upper_bound(address);
  if (after == allocations_.begin()) return nullptr;
  const auto& [begin, allocation] = *std::prev(after);
  const size_t offset = address - begin;
  if (offset > allocation.bytes || bytes > allocation.bytes - offset) return nullptr;
  return {allocation.content, allocation.content.get() + offset};
}

CUresult Memory::Register(void* memory, size_t bytes, int device, unsigned flags) {
  const auto begin = reinterpret_cast<uintptr_t>(memory);
  if (begin == 0 || bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  auto after = pinned_.lower_bound(begin + bytes);
  if (after != pinned_.begin()) {
    auto before = std::prev(after);
    if (before->first + before->second->bytes > begin) {
      return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
    }
  }
  auto made = std::make_shared<Pinned>();
  made->bytes = bytes;
  made->device = device;
  made->portable = (flags & CU_MEMHOSTREGISTER_PORTABLE) != 0;
  pinned_[begin] = std::move(made);
  return CUDA_SUCCESS;
}

CUresult Memory::Unregister(void* memory, bool* in_use) { return Forget(memory, false, in_use); }

void* Memory::AllocatePinned(size_t bytes, int device) {
  auto made = std::make_shared<Pinned>();
  made->bytes = bytes;
  made->device = device;
  made->owned = std::make_unique_for_overwrite<std::byte[]>(bytes);
  void* memory = made->owned.get();
  pinned_[reinterpret_cast<uintptr_t>(memory)] = std::move(made);
  return memory;
}

CUresult Memory::FreePinned(void* memory, bool* in_use) { return Forget(memory, true, in_use); }

CUresult Memory::Forget(void* memory, bool owned, bool* in_use) {
  auto found = pinned_.find(reinterpret_cast<uintptr_t>(memory));
  if (found == pinned_.end() || (found->second->owned != nullptr) != owned) {
    return owned ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
  }
  *in_use = found->second.use_count() > 1;
  pinned_.erase(found);
  return CUDA_SUCCESS;
}

std::shared_ptr<Pinned> Memory::FindPinned(const void* memory, size_t bytes, int device) const {
  const auto begin = reinterpret_cast<uintptr_t>(memory);
  auto after = pinned_.upper_bound(begin);
  if (after == pinned_.begin()) return nullptr;
  const auto& [base, pinned] = *std::prev(after);
  const size_t offset = begin - base;
  if (offset > pinned->bytes || bytes > pinned->bytes - offset) return nullptr;
  return pinned->portable || pinned->device == device ? pinned : nullptr;
}

size_t Memory::LeftOn(int device) const {
  size_t left = 0;
  for (const auto& [address, allocation] : allocations_) left += allocation.device == device;
  for (const auto& [base, pinned] : pinned_) left += pinned->device == device;
  return left;
}

}  // namespace holdfast::cuda::simulated
