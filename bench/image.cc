#include "bench/image.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "agent/arena/allocation.h"
#include "base/fd.h"
#include "bench/bench.h"
#include "storage/format/image.h"

namespace holdfast::bench {

void Unmap::operator()(std::byte* memory) const { ::munmap(memory, bytes); }

Result<SealedImage> SealedImage::Make(uint32_t rank, uint32_t world, uint64_t bytes, Pages pages) {
  SealedImage image;
  image.elements_ = bytes / 4;
  image.capacity_ = (bytes + (4ULL << 20)) / (2ULL << 20) * (2ULL << 20);
  const UniqueFd fd(::memfd_create("holdfast-bench", MFD_CLOEXEC));
  if (::ftruncate(fd.get(), static_cast<off_t>(image.capacity_)) != 0) {
    return Fail(ErrnoStatus(errno, "ftruncate"));
  }
  void* memory = ::mmap(nullptr, image.capacity_, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  if (memory == MAP_FAILED) return Fail(ErrnoStatus(errno, "mmap"));
  image.memory_ = {static_cast<std::byte*>(memory), Unmap{image.capacity_}};
  if (pages == Pages::kAsASlot) {
    agent::Allocation allocation(fd.get(), image.memory(), 0, image.capacity_);
    HOLDFAST_RETURN_IF_ERROR(allocation.Run());
  }
  FillRandom(memory, image.capacity_, rank + 1);
  image.seal_.identity = {"bench", {Incarnation{1}, Step{0}}, Rank{rank}, world};
  HOLDFAST_RETURN_IF_ERROR(image.Restamp(0));
  for (uint64_t at = 0; at < image.seal_.image_bytes; at += kChunkBytes) {
    auto chunk = image.bytes().subspan(at, std::min(kChunkBytes, image.seal_.image_bytes - at));
    image.seal_.chunk_crcs[at / kChunkBytes] = Crc32c(chunk);
  }
  return image;
}

Status SealedImage::Restamp(uint64_t step) {
  HOLDFAST_ASSIGN_OR_RETURN(
      ImageLayout layout,
      ImageLayout::Plan({{"weights", DType::kF32, {elements_}, {elements_}, {0}}}));
  seal_.identity.version.step = Step{step};
  HOLDFAST_ASSIGN_OR_RETURN(std::string header, layout.RenderHeader(seal_.identity, {}));
  std::memcpy(memory_.get(), header.data(), header.size());
  seal_.image_bytes = header.size() + layout.tensor_bytes();
  seal_.chunk_crcs.resize(ChunkCount(seal_.image_bytes));
  seal_.chunk_crcs[0] = Crc32c(bytes().first(std::min(kChunkBytes, seal_.image_bytes)));
  return Status::Ok();
}

}  // namespace holdfast::bench
