#include "agent/arena/allocation.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <thread>

#include "agent/arena/headroom.h"
#include "base/config.h"

namespace holdfast::agent {
namespace {

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25  // Linux 6.1
#endif

int Fallocate(int fd, uint64_t begin, uint64_t bytes) {
  int result = 0;
  do {
    result = ::fallocate(fd, 0, static_cast<off_t>(begin), static_cast<off_t>(bytes));
  } while (result != 0 && errno == EINTR);
  return result;
}

/// Turns the full 2 MiB extents of [begin, end) into huge pages, as far as the kernel can. Direct
/// I/O then needs 1/512 of the segments per request, and pinning becomes cheaper by the same
/// factor. The first page of each extent is fallocated, so that a lack of memory is an error and
/// never a fault. One call for all extents, since each call waits for every processor.
void TryHugePages(int fd, std::span<std::byte> memory, uint64_t begin, uint64_t end) {
  end -= (end - begin) % Allocation::kHugeBytes;
  for (uint64_t at = begin; at < end; at += Allocation::kHugeBytes) {
    if (Fallocate(fd, at, Allocation::kPageBytes) != 0) return;
  }
  // A failure leaves small pages.
  if (begin < end) ::madvise(memory.data() + begin, end - begin, MADV_COLLAPSE);
}

}  // namespace

Status Allocation::Run(uint64_t threads_max) {
  const uint64_t steps = (bytes() + kStepBytes - 1) / kStepBytes;
  const uint64_t processors = std::max(1U, std::thread::hardware_concurrency());
  std::vector<std::thread> helpers;
  try {
    while (helpers.size() + 1 < std::min({steps, processors, threads_max})) {
      helpers.emplace_back([this] { TakeSteps(); });
    }
  } catch (const std::system_error&) {
    // The process cannot start another thread: those that run take all steps.
  }
  TakeSteps();
  for (std::thread& helper : helpers) helper.join();
  // The rest, after a failure: no other step is in flight now, so the numbers are exact.
  std::vector<uint64_t> rest;
  {
    MutexLock lock(mutex_);
    rest = failed_steps_;
  }
  std::ranges::sort(rest);
  for (uint64_t at = next_; at < end_; at += kStepBytes) rest.push_back(at);
  for (const uint64_t at : rest) HOLDFAST_RETURN_IF_ERROR(Take(at));
  return Status::Ok();
}

void Allocation::TakeSteps() {
  while (!failed_) {
    const uint64_t at = next_.fetch_add(kStepBytes);
    if (at >= end_) return;
    if (Take(at).ok()) continue;
    failed_ = true;
    MutexLock lock(mutex_);
    failed_steps_.push_back(at);
  }
}

Status Allocation::Take(uint64_t at) {
  HOLDFAST_RETURN_IF_ERROR(CheckHeadroom(bytes() - done_, bytes()));
  const uint64_t step = std::min(kStepBytes, end_ - at);
  TryHugePages(fd_, memory_, at, at + step);
  if (Fallocate(fd_, at, step) != 0) return FallocateError(errno);
  done_ += step;
  return Status::Ok();
}

Status Allocation::FallocateError(int error) const {
  if (error != ENOMEM && error != ENOSPC) {
    return ErrnoStatus(error, fmt::format("allocate {} of shared memory", FormatBytes(bytes())));
  }
  return ResourceExhaustedError(
      fmt::format("the kernel allocated only {} of the {} for a segment: {}", FormatBytes(done_),
                  FormatBytes(bytes()),
                  error == ENOMEM ? "out of memory" : "the shared memory file system is full"));
}

}  // namespace holdfast::agent
