#include "agent/arena/sealed_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "agent/arena/headroom.h"

namespace holdfast::agent {
namespace {
constexpr uint64_t kSpareBytes = 64ULL << 20;
constexpr uint64_t kWriteUnit = 64ULL << 20;
constexpr int kSeals = F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
}  // namespace

SealedFile& SealedFile::operator=(SealedFile&& other) noexcept {
  std::swap(fd_, other.fd_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

SealedFile::~SealedFile() {
  if (!bytes_.empty()) ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

Result<SealedFile> SealedFile::Create(const std::string& name, std::span<const std::byte> bytes) {
  const MemoryHeadroom headroom = AvailableMemory();
  if (bytes.size() + kSpareBytes > headroom.bytes) {
    return Fail(ResourceExhaustedError(fmt::format("{} needs {} bytes, and {} leaves {}", name,
                                                   bytes.size(), headroom.limit, headroom.bytes)));
  }
  SealedFile file;
  file.fd_ = UniqueFd(::memfd_create(name.c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!file.fd_.valid()) return Fail(ErrnoStatus(errno, "memfd_create"));
  for (uint64_t at = 0; at < bytes.size();) {
    const uint64_t count = std::min<uint64_t>(bytes.size() - at, kWriteUnit);
    const ssize_t written = ::write(file.fd(), bytes.data() + at, count);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return Fail(ErrnoStatus(errno, "write " + name));
    at += static_cast<uint64_t>(written);
  }
  if (::fcntl(file.fd(), F_ADD_SEALS, kSeals) != 0) {
    return Fail(ErrnoStatus(errno, "fcntl(F_ADD_SEALS) of " + name));
  }
  void* base = ::mmap(nullptr, bytes.size(), PROT_READ, MAP_SHARED, file.fd(), 0);
  if (base == MAP_FAILED) return Fail(ErrnoStatus(errno, "mmap of " + name));
  file.bytes_ = {static_cast<const std::byte*>(base), bytes.size()};
  return file;
}

}  // namespace holdfast::agent
