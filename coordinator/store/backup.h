#pragma once

#include <cstdint>
#include <string>

#include "storage/base/status.h"

namespace holdfast::coord {

/// A copy's epoch is so much higher than the store's: agents have seen none as high of the store
/// that it replaces, follow the copy, and no longer follow that store.
inline constexpr uint64_t kBackupEpochs = 1'000'000;

struct BackupCounts {
  uint64_t records = 0;
  uint64_t bytes = 0;
};

/// Copies the metadata store in `from`, which may be in use, into `to`, which must be absent or
/// empty. The copy is durable on return. After an error `to` is of no use.
Result<BackupCounts> BackUpStore(const std::string& from, const std::string& to);

}  // namespace holdfast::coord
