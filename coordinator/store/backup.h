#pragma once

#include <cstdint>
#include <string>

#include "base/status.h"
#include "coordinator/store/meta_store.h"

namespace holdfast::coord {

/// Added to the epoch of a copy. Agents whose version has no lives then find an epoch above all
/// that they have seen, and accept a coordinator with the copy.
inline constexpr uint64_t kBackupEpochs = 1'000'000;

struct BackupCounts {
  uint64_t records = 0;
  uint64_t bytes = 0;
};

/// Copies the records of `from`, as of one moment, into a new embedded store in `to`, which must be
/// absent or empty. The copy has a new life and is durable on return. After an error `to` is not
/// usable.
Result<BackupCounts> BackUpStore(MetaStore& from, const std::string& to);

/// Copies the metadata store in `from`, which may be in use, into `to`, which must be absent or
/// empty. See above.
Result<BackupCounts> BackUpStore(const std::string& from, const std::string& to);

}  // namespace holdfast::coord
