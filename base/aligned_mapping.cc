#include "base/aligned_mapping.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <string>

namespace holdfast {

Result<std::span<std::byte>> MapAligned(int fd, uint64_t bytes) {
  const auto page_bytes = static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
  // Reserves one huge page more, and gives back what is in front of the mapping and behind it.
  const uint64_t reserved = bytes + kHugePageBytes;
  void* reservation = ::mmap(nullptr, reserved, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  void* address = MAP_FAILED;
  if (reservation != MAP_FAILED) {
    const auto base = reinterpret_cast<uintptr_t>(reservation);
    const uintptr_t aligned = (base + kHugePageBytes - 1) / kHugePageBytes * kHugePageBytes;
    const uintptr_t end = (aligned + bytes + page_bytes - 1) / page_bytes * page_bytes;
    if (aligned > base) ::munmap(reservation, aligned - base);
    ::munmap(reinterpret_cast<void*>(end), base + reserved - end);
    address = ::mmap(reinterpret_cast<void*>(aligned), bytes, PROT_READ | PROT_WRITE,
                     MAP_SHARED | MAP_FIXED, fd, 0);
    if (address == MAP_FAILED) {
      const int error = errno;
      ::munmap(reinterpret_cast<void*>(aligned), end - aligned);
      errno = error;
    }
  }
  if (address == MAP_FAILED) {
    return Fail(ErrnoStatus(
        errno, "map " + std::to_string(bytes) + " bytes of shared memory (see ulimit -v)"));
  }
  return std::span(static_cast<std::byte*>(address), bytes);
}

}  // namespace holdfast
