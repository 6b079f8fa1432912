#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <string_view>

#include "base/status.h"

namespace holdfast::certificates {

/// The user and group of a new file.
struct FileOwner {
  uid_t uid = 0;
  gid_t gid = 0;
};

/// Replaces a file: readers see the old contents or the new ones. Durable when this returns: the
/// file and its directory are synced. A new file has mode `mode` from its creation on. Without
/// `owner` the file belongs to this process's user.
Status ReplaceFile(const std::string& path, std::string_view contents, mode_t mode,
                   std::optional<FileOwner> owner = std::nullopt);

/// Reads a file of at most 1 MiB.
Result<std::string> ReadSmallFile(const std::string& path);

}  // namespace holdfast::certificates
