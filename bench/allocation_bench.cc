// How fast an agent reserves the slots of a rank: shared memory in huge pages.

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <functional>

#include "agent/arena/allocation.h"
#include "base/fd.h"
#include "bench/bench.h"

namespace holdfast::bench {
namespace {

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif

using agent::Allocation;

/// Returns the seconds that `allocate` takes for a new file of `bytes` bytes.
Result<double> SecondsToAllocate(uint64_t bytes,
                                 const std::function<Status(int, std::span<std::byte>)>& allocate) {
  const UniqueFd fd(::memfd_create("holdfast-bench", MFD_CLOEXEC));
  if (!fd.valid() || ::ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0) {
    return Fail(ErrnoStatus(errno, "memfd_create"));
  }
  const uint64_t mapped = bytes + Allocation::kHugeBytes;
  void* const address = ::mmap(nullptr, mapped, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (address == MAP_FAILED) return Fail(ErrnoStatus(errno, "mmap"));
  auto* const begin = static_cast<std::byte*>(address) + Allocation::kHugeBytes -
                      reinterpret_cast<uintptr_t>(address) % Allocation::kHugeBytes;
  ::mmap(begin, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd.get(), 0);
  Status status;
  const double seconds = SecondsOf([&] { status = allocate(fd.get(), {begin, bytes}); });
  ::munmap(address, mapped);
  if (!status.ok()) return Fail(status);
  return seconds;
}

/// One thread and one call for each huge page.
Status AllocatePageByPage(int fd, std::span<std::byte> memory) {
  for (uint64_t at = 0; at < memory.size(); at += Allocation::kHugeBytes) {
    const auto begin = static_cast<off_t>(at);
    if (::fallocate(fd, 0, begin, Allocation::kPageBytes) != 0) return ErrnoStatus(errno, "memory");
    ::madvise(memory.data() + at, Allocation::kHugeBytes, MADV_COLLAPSE);
    if (::fallocate(fd, 0, begin, Allocation::kHugeBytes) != 0) return ErrnoStatus(errno, "memory");
  }
  return Status::Ok();
}

}  // namespace

Result<std::vector<BenchResult>> RunAllocation(const BenchOptions& options) {
  const uint64_t bytes = options.quick ? 512ULL << 20 : 2ULL << 30;
  std::vector<double> ours;
  std::vector<double> alone;
  std::vector<double> pages;
  const auto with = [](uint64_t threads) {
    return [threads](int fd, std::span<std::byte> memory) {
      return Allocation(fd, memory, 0, memory.size()).Run(threads);
    };
  };
  for (int round = 0; round < 5; ++round) {
    HOLDFAST_ASSIGN_OR_RETURN(const double many,
                              SecondsToAllocate(bytes, with(Allocation::kThreadsMax)));
    HOLDFAST_ASSIGN_OR_RETURN(const double one, SecondsToAllocate(bytes, with(1)));
    HOLDFAST_ASSIGN_OR_RETURN(const double page, SecondsToAllocate(bytes, AllocatePageByPage));
    ours.push_back(many);
    alone.push_back(one);
    pages.push_back(page);
  }
  const double gigabytes = static_cast<double>(bytes) / 1e9;
  const auto result = [&](const char* name, const std::vector<double>& reference,
                          const char* note) {
    return BenchResult{.name = name,
                       .ratio = Median(reference) / Median(ours),
                       .ours = gigabytes / Median(ours),
                       .reference = gigabytes / Median(reference),
                       .unit = "GB/s",
                       .goal = "",
                       .note = note};
  };
  return std::vector<BenchResult>{
      result("allocation_threads", alone, "slots of a rank in huge pages ÷ with one thread"),
      result("allocation_steps", pages, "the same ÷ one thread and one call for each huge page")};
}

}  // namespace holdfast::bench
