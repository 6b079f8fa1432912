#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/status.h"

namespace holdfast {

/// The bytes of a huge page on x86-64.
constexpr uint64_t kHugePageBytes = 2ULL << 20;

/// Maps the first `bytes` of `fd`, shared and writable, at an address that is a multiple of
/// kHugePageBytes: otherwise the process sees the huge pages of the file as small pages. The caller
/// unmaps the result.
Result<std::span<std::byte>> MapAligned(int fd, uint64_t bytes);

}  // namespace holdfast
