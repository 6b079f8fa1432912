#pragma once

#include <cstdint>

namespace holdfast::agent {

/// What the child of the crash test writes to its pipe, in order.
struct CrashEvent {
  enum Kind : uint32_t { kSealed = 1, kFreeing = 2, kFreed = 3 };
  Kind kind = kSealed;
  uint32_t rank = 0;
  uint32_t slot = 0;
  uint32_t padding = 0;
  uint64_t step = 0;
};

}  // namespace holdfast::agent
