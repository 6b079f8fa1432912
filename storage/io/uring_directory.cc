#include "storage/io/uring_directory.h"

#include <fcntl.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "base/log.h"
#include "base/random.h"
#include "storage/io/uring_block_file.h"

namespace holdfast {
namespace {
constexpr uint32_t kQueueDepthMax = 1024;
constexpr uint64_t kOperationBytesMax = 1ULL << 30;

IoOptions InRange(IoOptions options) {
  options.queue_depth = std::clamp(options.queue_depth, 1U, kQueueDepthMax);
  options.operation_bytes = std::clamp(options.operation_bytes / kBlockBytes * kBlockBytes,
                                       kBlockBytes, kOperationBytesMax);
  return options;
}
}  // namespace

UringDirectory::UringDirectory(UniqueFd root, std::string path, const IoOptions& options)
    : FdDirectory(std::move(root), path),
      options_(InRange(options)),
      pool_(std::move(path), options_.queue_depth) {}

Result<std::unique_ptr<UringDirectory>> UringDirectory::Create(UniqueFd root, std::string path,
                                                               const IoOptions& options) {
  auto directory = std::make_unique<UringDirectory>(std::move(root), std::move(path), options);
  HOLDFAST_ASSIGN_OR_RETURN(std::unique_ptr<UringRing> ring, directory->pool_.Borrow());
  directory->pool_.Return(std::move(ring));
  return directory;
}

Result<UniqueFd> UringDirectory::OpenScratch() const {
  Result<UniqueFd> unnamed = Open(".", O_TMPFILE | O_RDWR | O_DIRECT, 0600);
  if (unnamed) return unnamed;
  std::string name = ".probe-" + RandomHex(8);
  HOLDFAST_ASSIGN_OR_RETURN(UniqueFd fd, Open(name, O_RDWR | O_CREAT | O_EXCL | O_DIRECT, 0600));
  if (::unlinkat(root_fd(), name.c_str(), 0) != 0) return Fail(ErrnoStatus(errno, Full(name)));
  return fd;
}

Status UringDirectory::Probe() {
  HOLDFAST_ASSIGN_OR_RETURN(UniqueFd fd, OpenScratch());
  UringBlockFile file(std::move(fd), Full("(scratch file)"), true, pool_, options_);
  std::unique_ptr<std::byte, void (*)(void*)> memory(
      static_cast<std::byte*>(std::aligned_alloc(kBlockBytes, 2 * kBlockBytes)), &std::free);
  if (memory == nullptr) return ResourceExhaustedError("not enough memory for a scratch block");
  std::span<std::byte> written(memory.get(), kBlockBytes);
  std::span<std::byte> read(memory.get() + kBlockBytes, kBlockBytes);
  std::memset(written.data(), 0x5A, kBlockBytes);
  std::memset(read.data(), 0, kBlockBytes);
  HOLDFAST_RETURN_IF_ERROR(file.QueueWrite(0, written));
  HOLDFAST_RETURN_IF_ERROR(file.Drain());
  HOLDFAST_RETURN_IF_ERROR(file.QueueRead(0, read));
  HOLDFAST_RETURN_IF_ERROR(file.Drain());
  if (!std::equal(written.begin(), written.end(), read.begin())) {
    return DataLossError(fmt::format("{}: a scratch block was read back changed", path()));
  }
  return Status::Ok();
}

Result<std::unique_ptr<BlockFile>> UringDirectory::OpenFile(const std::string& path,
                                                            OpenMode mode) {
  Result<UniqueFd> fd = OpenRegular(path, mode, O_DIRECT);
  if (!fd && mode == OpenMode::kRead) {
    // A directory that was opened for reading was not probed: its file system may refuse O_DIRECT.
    Result<UniqueFd> buffered = OpenRegular(path, mode, 0);
    if (!buffered) return Fail(buffered.error());
    if (!warned_.exchange(true)) {
      Log(LogLevel::kWarn, "IoFallback",
          {Kv("path", Full(path)), Kv("to", "buffered reads"),
           Kv("reason", fd.error().ToString())});
    }
    fd = std::move(buffered);
  }
  if (!fd) return Fail(fd.error());
  return std::make_unique<UringBlockFile>(*std::move(fd), Full(path),
                                          mode == OpenMode::kCreateExclusive, pool_, options_);
}

}  // namespace holdfast
