#pragma once

#include <cstdint>
#include <memory>

#include "agent/selftest/check.h"
#include "storage/io/block_file.h"

namespace holdfast::selftest {

struct DiskCheckOptions {
  /// At most this many bytes, rounded down to blocks of 4 MiB, but at least one block. Never more
  /// than a quarter of the free space.
  uint64_t bytes = uint64_t{256} << 20U;
  double seconds = 8;  // no block is written after this time
};

/// Writes a file, syncs it, reads it back and compares the bytes. With O_DIRECT the bytes come from
/// the device. The file is unlinked as soon as it is open, so a crash leaves no file behind.
CheckResult CheckDisk(Directory& directory, const DiskCheckOptions& options);

}  // namespace holdfast::selftest
