#pragma once

#include <cstdint>
#include <memory>

#include "agent/selftest/check.h"
#include "storage/io/block_file.h"

namespace holdfast::selftest {

struct DiskCheckOptions {
  uint64_t bytes = uint64_t{256} << 20U;  // at most; a quarter of the free space where that is less
  double seconds = 8;                     // no further block is written after so long
};

/// Writes a file without a name, syncs it, reads it back and compares the bytes. With O_DIRECT the
/// bytes come from the device. Nothing stays behind, whatever happens.
CheckResult CheckDisk(Directory& directory, const DiskCheckOptions& options);

}  // namespace holdfast::selftest
