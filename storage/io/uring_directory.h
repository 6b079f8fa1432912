#pragma once

#include <atomic>
#include <memory>
#include <string>

#include "storage/io/fd_directory.h"
#include "storage/io/uring_pool.h"

namespace holdfast {

/// io_uring with O_DIRECT: bytes go from the caller's memory to the device without a copy. Files
/// must be closed before their directory. Thread-safe.
class UringDirectory final : public FdDirectory {
 public:
  /// Use Create, which checks that io_uring is available.
  UringDirectory(UniqueFd root, std::string path, const IoOptions& options);
  /// Opens a directory. Returns Unsupported, PermissionDenied or another error when the kernel
  /// refuses a ring. Writes nothing to the directory. Out-of-range `options` are clamped.
  static Result<std::unique_ptr<UringDirectory>> Create(UniqueFd root, std::string path,
                                                        const IoOptions& options);

  /// Writes and reads one block of a scratch file without a name, or with one that is removed at
  /// once.
  Status Probe();

  Result<std::unique_ptr<BlockFile>> OpenFile(const std::string& path, OpenMode mode) override;
  void RegisterMemory(std::span<std::byte> memory) override { pool_.RegisterMemory(memory); }
  void UnregisterMemory(std::span<std::byte> memory) override { pool_.UnregisterMemory(memory); }
  std::string Describe() const override { return "io_uring+O_DIRECT"; }

 private:
  Result<UniqueFd> OpenScratch() const;

  const IoOptions options_;
  UringPool pool_;
  std::atomic<bool> warned_{false};
};

}  // namespace holdfast
