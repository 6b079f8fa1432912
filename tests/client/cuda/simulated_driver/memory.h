#pragma once

#include <cuda.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>

namespace holdfast::cuda::simulated {

/// Host memory that is registered as pinned. Shared with the copies that use it.
struct Pinned {
  size_t bytes = 0;
  int device = 0;
  bool portable = false;
  std::unique_ptr<std::byte[]> owned;  // of cuMemHostAlloc
};

/// Device memory and pinned host memory. A device pointer is an address that this process can
/// neither read nor write; only the driver can find its bytes, which are stored elsewhere.
/// Addresses are never reused. The caller holds the machine's lock.
class Memory {
 public:
  /// Returns 0 when no address is left.
  CUdeviceptr Allocate(int device, size_t bytes);
  bool Free(CUdeviceptr address);
  bool IsDevice(CUdeviceptr address) const;
  /// Gets the live allocation of an address. Returns false when there is none.
  bool FindAllocation(CUdeviceptr address, CUdeviceptr* base, size_t* bytes) const;
  /// Returns the bytes; null unless all of them are in one live allocation. They stay valid while
  /// the result exists.
  std::shared_ptr<std::byte> Find(CUdeviceptr address, size_t bytes) const;

  CUresult Register(void* memory, size_t bytes, int device, unsigned flags);
  /// Sets `in_use` when copies from or to the memory are queued.
  CUresult Unregister(void* memory, bool* in_use);
  void* AllocatePinned(size_t bytes, int device);
  CUresult FreePinned(void* memory, bool* in_use);
  /// Returns null when the memory is pageable for `device`.
  std::shared_ptr<Pinned> FindPinned(const void* memory, size_t bytes, int device) const;

  size_t allocations() const { return allocations_.size(); }
  size_t registrations() const { return pinned_.size(); }
  size_t LeftOn(int device) const;

 private:
  struct Allocation {
    size_t bytes = 0;
    int device = 0;
    std::shared_ptr<std::byte[]> content;
  };
  CUresult Forget(void* memory, bool owned, bool* in_use);

  CUdeviceptr begin_ = 0;  // of the address range; 0 before the first allocation
  CUdeviceptr next_ = 0;
  std::map<CUdeviceptr, Allocation> allocations_;
  std::map<uintptr_t, std::shared_ptr<Pinned>> pinned_;
};

}  // namespace holdfast::cuda::simulated
