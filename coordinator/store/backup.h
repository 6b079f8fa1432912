#pragma once

#include <cstdint>
#include <string>

#include "storage/base/status.h"

namespace holdfast::coord {

/// A copy's epoch is so much higher than the store's: agents that know no lives have seen none as
/// high, and follow the copy.
inline constexpr uint64_t kBackupEpochs = 1'000'000;

struct BackupCounts {
  uint64_t records = 0;
  uint64_t bytes = 0;
};

/// Copies the metadata store in `from`, which may be in use, into `to`, which must be absent or
/// empty. The copy has a life of its own and is durable on return. After an error `to` is of no
/// use.
Result<BackupCounts> BackUpStore(const std::string& from, const std::string& to);

}  // namespace holdfast::coord
