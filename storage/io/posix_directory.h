#pragma once

#include <memory>
#include <string>

#include "storage/io/fd_directory.h"

namespace holdfast {

/// Plain pread and pwrite through the page cache: for file systems that refuse O_DIRECT (tmpfs) and
/// kernels or containers that refuse io_uring. Queue calls complete their operation before they
/// return. Writeback is started at once, so that Sync has less to wait for. Thread-safe.
class PosixDirectory final : public FdDirectory {
 public:
  /// `refusal`: see io_uring_refusal().
  PosixDirectory(UniqueFd root, std::string path, Status refusal)
      : FdDirectory(std::move(root), std::move(path)), refusal_(std::move(refusal)) {}

  Result<std::unique_ptr<BlockFile>> OpenFile(const std::string& path, OpenMode mode) override;
  void RegisterMemory(std::span<std::byte> /*memory*/) override {}
  void UnregisterMemory(std::span<std::byte> /*memory*/) override {}
  std::string Describe() const override { return "posix"; }
  Status io_uring_refusal() const override { return refusal_; }

 private:
  const Status refusal_;
};

}  // namespace holdfast
