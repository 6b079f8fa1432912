#pragma once

#include <cstdint>
#include <memory>

#include "agent/selftest/check.h"
#include "storage/io/block_file.h"

namespace holdfast::selftest {

struct DiskCheckOptions {
  uint64_t bytes = uint64_t{256} << 20U;  // at most; a quarter of the free space where that is less
  double seconds = 8;                     // no block is started after this time
};

/// Writes a file without a name, syncs it, reads it back and compares the bytes. With O_DIRECT the
/// bytes come from the device. The file is unlinked as soon as it is open: a crash leaves nothing.
CheckResult CheckDisk(Directory& directory, const DiskCheckOptions& options);

}  // namespace holdfast::selftest
